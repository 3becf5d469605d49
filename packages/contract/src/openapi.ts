/**
 * The OpenAPI 3.1 documents, generated from the tables of operations. Pure and deterministic. The operations of runners and
 * gateways are in none: they change with the service, whose parts are of one release, and no other program calls them.
 */
import { Type, type TSchema } from 'typebox';
import { compatOperations, compatSchemas, CompatError } from './compat/operations.ts';
import { type Json, SchemaWriter } from './openapi-schema.ts';
import type { SchemaNode } from './rules/http/describe-schema.ts';
import {
  codesOf,
  ErrorBody,
  type ErrorStatus,
  OverloadBody,
  STATUS_MEANINGS,
} from './wire/platform/errors.ts';
import {
  IDEMPOTENCY_KEY_CHARS,
  type Operation,
  type OperationResponse,
  type WebSocketMessages,
} from './wire/platform/operation.ts';
import { operationErrors } from './wire/platform/operation-errors.ts';
import { listOperations, resources } from './wire/operations.ts';
import { operatorResource } from './wire/operator.ts';
import type { OpenApiPlane } from './wire/edge/service.ts';
import { GatewayErrorBody } from './wire/toolbox/shared.ts';

export interface OpenApiOptions {
  /** Default `api`. */
  plane?: OpenApiPlane;
  /** Base URL of the API; left out, the document has no `servers`. */
  serverUrl?: string;
  /** Base URLs of the toolboxes of all regions, that of the default region first. */
  toolboxUrls?: readonly string[];
  version?: string;
}

interface Plane {
  title: string;
  description: string;
  tags: Readonly<Record<string, string>>;
  operations: readonly (readonly [id: string, operation: Operation])[];
}

const INTERNAL_LISTENER = {
  url: '{internal_url}',
  description: 'The internal listener.',
  variables: { internal_url: { default: 'http://127.0.0.1:7071' } },
};

const tagsOf = (list: readonly { tags: Readonly<Record<string, string>> }[]): Record<string, string> =>
  Object.assign({}, ...list.map(({ tags }) => tags)) as Record<string, string>;

const planes: Record<OpenApiPlane, () => Plane> = {
  api: () => ({
    title: 'Releap',
    description: 'Isolated micro-VM sandboxes on your own machines.',
    tags: tagsOf(resources),
    operations: listOperations(),
  }),
  operator: () => ({
    title: 'Releap: operator',
    description: 'Hosts, credits, quotas and the audit log, for the operator of the service.',
    tags: operatorResource.tags,
    operations: Object.entries(operatorResource.operations),
  }),
  compat: () => ({
    title: 'Releap: compatibility facade',
    description: 'What the service has of the wire protocol of the SDK `@daytonaio/sdk`.',
    tags: { Compatibility: 'Sandboxes and snapshots in the form of that SDK.' },
    operations: Object.entries(compatOperations),
  }),
};

/** Named schemas; their occurrences become references. Those that a document does not use are left out. */
const NAMED = new Map<unknown, string>(
  [...resources, operatorResource, { schemas: compatSchemas }].flatMap(({ schemas }) =>
    Object.entries<TSchema>(schemas).map(([name, schema]): [unknown, string] => [schema, name]),
  ),
);

/** The errors of the control plane, by status. */
const ERRORS = new Map(
  (Object.keys(STATUS_MEANINGS).map(Number) as ErrorStatus[]).map((status) => {
    const code = Type.Enum(codesOf(status), { description: 'What kind of error it is.' });
    const { properties } = status === 429 ? OverloadBody : ErrorBody;
    return [status, Type.Object({ ...properties, code }, { description: STATUS_MEANINGS[status] })] as const;
  }),
);
for (const [status, schema] of ERRORS) NAMED.set(schema, `Error${status}`);

const writer = new SchemaWriter(NAMED);

export function openApiDocument(options: OpenApiOptions = {}): { openapi: string } & Json {
  const { plane: name = 'api', serverUrl, version = '0.1.0' } = options;
  const plane = planes[name]();
  const paths: Record<string, Json> = {};
  const toolbox = toolboxServer(options.toolboxUrls ?? []);
  for (const [id, operation] of plane.operations) {
    const path = operation.path.replaceAll(/:([a-z_]+)/g, '{$1}');
    paths[path] = {
      ...paths[path],
      ...(operation.server === 'toolbox' ? { servers: [toolbox] } : {}),
      [operation.method.toLowerCase()]: operationObject(id, operation, name),
    };
  }
  return {
    openapi: '3.1.0',
    info: {
      title: plane.title,
      version,
      description: plane.description,
      license: { name: 'Apache-2.0', identifier: 'Apache-2.0' },
    },
    servers: [name === 'operator' ? INTERNAL_LISTENER : { url: serverUrl ?? '/' }],
    tags: Object.entries(plane.tags).map(([tag, description]) => ({ name: tag, description })),
    paths,
    components: {
      securitySchemes: securitySchemes(plane),
      headers: { RequestId: REQUEST_ID, RetryAfter: RETRY_AFTER },
      schemas: usedSchemas(paths),
    },
  };
}

const SECURITY_SCHEMES: Readonly<Record<string, Json>> = {
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
  operator: { type: 'http', scheme: 'bearer', description: "The operator's token." },
};

function securitySchemes({ operations }: Plane): Json {
  const used = new Set<string>(operations.map(([, { security }]) => security));
  return Object.fromEntries(Object.entries(SECURITY_SCHEMES).filter(([name]) => used.has(name)));
}

/** The components that the paths refer to, and those that these refer to. */
function usedSchemas(paths: object): Json {
  const all = writer.components();
  const used = new Set<string>();
  const visit = (value: unknown): void => {
    for (const [, name = ''] of JSON.stringify(value).matchAll(/"#\/components\/schemas\/([A-Za-z0-9]+)"/g)) {
      if (used.has(name)) continue;
      used.add(name);
      visit(all[name]);
    }
  };
  visit(paths);
  return Object.fromEntries(Object.entries(all).filter(([name]) => used.has(name)));
}

const REQUEST_ID = {
  description: 'Of this request: its own `x-request-id`, or one that the service made. The logs have it.',
  schema: { type: 'string' },
};
const RETRY_AFTER = { description: 'Seconds to wait.', schema: { type: 'integer', format: 'int32' } };
const RESPONSE_HEADERS = { 'x-request-id': { $ref: '#/components/headers/RequestId' } };

const JSON_TYPE = 'application/json';
const BYTES_TYPE = 'application/octet-stream';
const FORM_TYPE = 'multipart/form-data';

const requiredOf = (schema: SchemaNode | undefined): number => schema?.required?.length ?? 0;

function toolboxServer([first, ...others]: readonly string[]): Json {
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

const REPLICATED: ReadonlySet<string> = new Set(['image_not_ready', 'snapshot_not_ready']);

function operationObject(id: string, operation: Operation, plane: OpenApiPlane): Json {
  const { status, response } = operation.success;
  const responses: Json = { [status]: { ...responseObject(response), headers: RESPONSE_HEADERS } };
  for (const [code, description, codes] of operationErrors(operation)) {
    const schema =
      plane === 'compat' ? CompatError : operation.server === undefined ? ERRORS.get(code) : GatewayErrorBody;
    // Not yet in the region.
    const isReplicated = code === 409 && codes.some((one) => REPLICATED.has(one));
    const isLater = code === 429 || code === 503 || isReplicated;
    responses[code] = {
      ...responseObject({ description, ...(schema && { schema }) }),
      headers: {
        ...RESPONSE_HEADERS,
        ...(isLater ? { 'Retry-After': { $ref: '#/components/headers/RetryAfter' } } : {}),
      },
      'x-codes': codes,
    };
  }
  const parameters = [
    ...parametersOf('path', operation.params),
    ...parametersOf('query', operation.query),
    ...(operation.idempotent === true ? [IDEMPOTENCY_PARAMETER] : []),
  ];
  const { websocket } = operation;
  return {
    operationId: plane === 'compat' ? `compat${id.charAt(0).toUpperCase()}${id.slice(1)}` : id,
    tags: [operation.tag],
    summary: operation.summary,
    ...(operation.description === undefined ? {} : { description: operation.description }),
    security: operation.security === 'public' ? [] : [{ [operation.security]: [] }],
    'x-idempotent': idempotence(operation),
    ...(operation.items === undefined ? {} : { 'x-items': operation.items }),
    ...(websocket === undefined
      ? {}
      : {
          'x-websocket': {
            ...websocket,
            client: messages(websocket.client),
            server: messages(websocket.server),
          },
        }),
    ...(parameters.length > 0 ? { parameters } : {}),
    ...(operation.body || operation.consumes
      ? {
          requestBody: {
            required: requiredOf(operation.body) > 0 || operation.consumes?.some(isStreamed) === true,
            content: Object.fromEntries(
              (operation.consumes ?? [JSON_TYPE])
                .flatMap((type) => (type === '*/*' ? [JSON_TYPE, BYTES_TYPE] : type))
                .map((type) => [type, { schema: bodySchema(operation, type) }]),
            ),
          },
        }
      : {}),
    responses,
  };
}

const messages = ({ text, binary }: WebSocketMessages): Json => ({
  ...(text === undefined ? {} : { text: writer.schema(text) }),
  ...(binary === undefined ? {} : { binary }),
});

/**
 * Whether a request may be sent again. `always`: it has no effect that the first one has not had. `with_key`: under an
 * `Idempotency-Key`. `never`.
 */
function idempotence({ idempotent, method }: Operation): 'always' | 'with_key' | 'never' {
  if (idempotent === true) return 'with_key';
  return method === 'POST' ? 'never' : 'always';
}

/** A body that is sent as it is; `*\/*` may be empty. */
const isStreamed = (type: string): boolean => type !== JSON_TYPE && type !== '*/*';

/** Generators know no wildcards: bytes are the most general. */
const mediaType = (type: string): string => (type === '*/*' ? BYTES_TYPE : type);

const ANY = Type.Unknown();
const BINARY = { type: 'string', format: 'binary' };

function bodySchema({ body, form }: Operation, type: string): Json {
  const schema = type === JSON_TYPE ? (body ?? ANY) : type === FORM_TYPE ? form : undefined;
  return schema === undefined ? BINARY : writer.schema(schema);
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

function responseObject({ description, schema, contentType = JSON_TYPE }: OperationResponse): Json {
  if (!schema) return { description };
  const isText = contentType === JSON_TYPE || contentType.startsWith('text/');
  return {
    description,
    content: { [mediaType(contentType)]: { schema: isText ? writer.schema(schema) : BINARY } },
  };
}

function parametersOf(place: 'path' | 'query', schema: TSchema | undefined): Json[] {
  const node = (schema ?? {}) as SchemaNode;
  return Object.entries(node.properties ?? {}).map(([name, child]) => {
    const { description, ...rest } = writer.schema(child) as { description?: string };
    return {
      name,
      in: place,
      required: place === 'path' || (node.required?.includes(name) ?? false),
      ...(description === undefined ? {} : { description }),
      schema: rest,
    };
  });
}
