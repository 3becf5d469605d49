/** The OpenAPI 3.1 document, generated from `operations`. Pure and deterministic. */
import type { TSchema } from 'typebox';
import type { SchemaNode } from './rules/describe-schema.ts';
import { IDEMPOTENCY_KEY_CHARS } from './wire/idempotency.ts';
import type { Operation } from './wire/operation.ts';
import { errorSchema, operationErrors } from './wire/operation-errors.ts';
import { listOperations, resources } from './wire/operations.ts';

export interface OpenApiOptions {
  /** Base URL of the API; left out, the document has no `servers`. */
  serverUrl?: string;
  /** Base URLs of the toolboxes of all regions, that of the default region first. */
  toolboxUrls?: readonly string[];
  version?: string;
}

/** Named schemas; their occurrences become references. */
const NAMED = new Map<unknown, string>(
  resources.flatMap(({ schemas }) =>
    Object.entries(schemas).map(([name, schema]): [unknown, string] => [schema, name]),
  ),
);

export function openApiDocument(options: OpenApiOptions = {}): { openapi: string } & Record<string, unknown> {
  const paths: Record<string, Record<string, unknown>> = {};
  const toolbox = toolboxServer(options.toolboxUrls ?? []);
  for (const [id, operation] of listOperations()) {
    const path = operation.path.replaceAll(/:([a-z_]+)/g, '{$1}');
    paths[path] = {
      ...paths[path],
      ...(operation.server === 'toolbox' ? { servers: [toolbox] } : {}),
      [operation.method.toLowerCase()]: operationObject(id, operation),
    };
  }
  return {
    openapi: '3.1.0',
    info: {
      title: 'Releap',
      version: options.version ?? '0.1.0',
      description: 'Isolated micro-VM sandboxes on your own machines.',
      license: { name: 'Apache-2.0', identifier: 'Apache-2.0' },
    },
    ...(options.serverUrl === undefined ? {} : { servers: [{ url: options.serverUrl }] }),
    tags: resources.flatMap(({ tags }) =>
      Object.entries(tags).map(([name, description]) => ({ name, description })),
    ),
    paths,
    components: {
      securitySchemes: {
        workload: { type: 'http', scheme: 'bearer', description: "A project's API key, `rlp_…`." },
        sandbox: {
          type: 'http',
          scheme: 'bearer',
          description: "A project's API key, or the access token of the sandbox, `rlpv_…`.",
        },
        management: {
          type: 'http',
          scheme: 'bearer',
          bearerFormat: 'JWT',
          description: "A user's token from the issuer that `GET /auth/config` names.",
        },
      },
      schemas: Object.fromEntries(
        [...NAMED].map(([schema, name]) => [name, plainSchema(schema as TSchema, schema as TSchema)]),
      ),
    },
  };
}

const JSON_TYPE = 'application/json';
const FORM_TYPE = 'multipart/form-data';

const requiredOf = (schema: SchemaNode | undefined): number => schema?.required?.length ?? 0;

function toolboxServer([first, ...others]: readonly string[]): Record<string, unknown> {
  return {
    url: '{toolbox_proxy_url}/{vm_id}',
    description: 'A sandbox; `GET /regions` has the base URL of its region.',
    variables: {
      toolbox_proxy_url:
        first === undefined
          ? { default: 'https://gateway.example.com/toolbox' }
          : { default: first, enum: [first, ...others] },
      vm_id: { default: 'id' },
    },
  };
}

function operationObject(id: string, operation: Operation): Record<string, unknown> {
  const { status, response } = operation.success;
  const responses: Record<string, unknown> = { [status]: responseObject(response.description, response) };
  for (const [code, meaning] of operationErrors(operation)) {
    responses[code] = {
      ...responseObject(meaning, { schema: errorSchema(code) }),
      ...(code === 429
        ? { headers: { 'Retry-After': { description: 'Seconds to wait.', schema: { type: 'integer' } } } }
        : {}),
    };
  }
  const parameters = [
    ...parametersOf('path', operation.params),
    ...parametersOf('query', operation.query),
    ...(operation.idempotent === true ? [IDEMPOTENCY_PARAMETER] : []),
  ];
  return {
    operationId: id,
    tags: [operation.tag],
    summary: operation.summary,
    ...(operation.description === undefined ? {} : { description: operation.description }),
    security: operation.security === 'public' ? [] : [{ [operation.security]: [] }],
    ...(parameters.length > 0 ? { parameters } : {}),
    ...(operation.body || operation.consumes
      ? {
          requestBody: {
            required: requiredOf(operation.body) > 0,
            content: Object.fromEntries(
              (operation.consumes ?? [JSON_TYPE]).map((type) => [
                type,
                { schema: plainSchema(bodySchema(operation, type)) },
              ]),
            ),
          },
        }
      : {}),
    responses,
  };
}

/** Other streamed bodies have no schema. */
function bodySchema({ body, form }: Operation, type: string): TSchema {
  return (type === JSON_TYPE ? body : type === FORM_TYPE ? form : undefined) ?? {};
}

const IDEMPOTENCY_PARAMETER = {
  name: 'Idempotency-Key',
  in: 'header',
  required: false,
  description:
    'For 24 hours the same key with the same request gets the recorded response, and nothing is created again. The same ' +
    'key with a different request is refused with 409.',
  schema: { type: 'string', minLength: 1, maxLength: IDEMPOTENCY_KEY_CHARS },
};

function responseObject(
  description: string,
  response: { schema?: TSchema; contentType?: string },
): Record<string, unknown> {
  if (!response.schema) return { description };
  return {
    description,
    content: { [response.contentType ?? 'application/json']: { schema: plainSchema(response.schema) } },
  };
}

function parametersOf(place: 'path' | 'query', schema: TSchema | undefined): Record<string, unknown>[] {
  const node = (schema ?? {}) as SchemaNode;
  return Object.entries(node.properties ?? {}).map(([name, child]) => {
    const { description, ...rest } = plainSchema(child) as { description?: string };
    return {
      name,
      in: place,
      required: place === 'path' || (node.required?.includes(name) ?? false),
      ...(description === undefined ? {} : { description }),
      schema: rest,
    };
  });
}

/** A plain JSON copy, with named schemas as references and without our annotation `expected`. */
function plainSchema(schema: TSchema, self?: TSchema): Record<string, unknown> {
  return plainValue(schema, self) as Record<string, unknown>;
}

function plainValue(value: unknown, self?: unknown): unknown {
  const name = value === self ? undefined : NAMED.get(value);
  if (name !== undefined) return { $ref: `#/components/schemas/${name}` };
  if (Array.isArray(value)) return value.map((item) => plainValue(item));
  if (value === null || typeof value !== 'object') return value;
  return Object.fromEntries(
    Object.entries(value)
      .filter(([key]) => key !== 'expected')
      .map(([key, child]) => [key, plainValue(child)]),
  );
}
