/**
 * Validates requests strictly, with readable messages.
 *
 * - Unknown fields are dropped, never an error; only own properties are read, so
 *   `__proto__` and `constructor` in a body are names like any other.
 * - `null` for an optional field means that it is absent, which is how many clients write it; unless the schema allows null, where it
 *   means something else.
 * - Query and path parameters are text and are converted to the schema's type.
 * - Text that PostgreSQL cannot store (NUL characters, unpaired surrogates) is refused, except in fields for any JSON (`Type.Unknown`).
 */
import { IsUnknown, type Static, type TSchema } from 'typebox';
import { Compile } from 'typebox/compile';
import { Errors } from 'typebox/value';
import type { Operation } from '../../wire/platform/operation.ts';
import { ApiError, badRequest, quote } from '../errors.ts';
import { describeSchema, type SchemaNode } from './describe-schema.ts';

export type RequestPart = 'body' | 'query' | 'params' | 'headers';
export type ValidationResult = { value: unknown } | { error: ApiError };

const cache = new WeakMap<object, Map<RequestPart, (data: unknown) => ValidationResult>>();

/**
 * A validator for Fastify's `setValidatorCompiler` (`querystring` is `query`). It never throws; each schema is compiled
 * once.
 */
export function requestValidator(
  schema: TSchema,
  part: RequestPart | 'querystring' | undefined,
): (data: unknown) => ValidationResult {
  const where: RequestPart = part === 'querystring' ? 'query' : (part ?? 'body');
  const known = cache.get(schema)?.get(where);
  if (known) return known;
  const made = compileValidator(schema, where);
  const parts = cache.get(schema) ?? new Map<RequestPart, (data: unknown) => ValidationResult>();
  parts.set(where, made);
  cache.set(schema, parts);
  return made;
}

/** The cleaned value. @throws the 400 that `requestValidator` would return */
export function validate<T extends TSchema>(schema: T, part: RequestPart, data: unknown): Static<T> {
  const result = requestValidator(schema, part)(data);
  if ('error' in result) throw result.error;
  return result.value as Static<T>;
}

function compileValidator(schema: TSchema, part: RequestPart): (data: unknown) => ValidationResult {
  const compiled = Compile(schema);
  const root = schema as SchemaNode;
  return (data) => {
    try {
      const value = clean(root, startOf(root, data), { part, path: [] });
      if (compiled.Check(value)) return { value };
      return { error: explain(root, compiled.Errors(value), value, part) };
    } catch (error) {
      if (error instanceof ApiError) return { error };
      throw error;
    }
  };
}

/** An absent body is `{}` if no field is required. */
function startOf(root: SchemaNode, data: unknown): unknown {
  return (data === undefined || data === null) && root.type === 'object' && !root.required?.length
    ? {}
    : data;
}

interface Place {
  part: RequestPart;
  path: (string | number)[];
}

function clean(node: SchemaNode, value: unknown, at: Place): unknown {
  if (at.part === 'body' && IsUnknown(node)) return checkDepth(value, at);
  if (typeof value === 'string') {
    checkText(value, at);
    return at.part === 'body' ? value : convert(node, value);
  }
  if (value === null || typeof value !== 'object') return value;
  if (Array.isArray(value) && at.part !== 'body')
    throw badRequest(`${nameOf(at)} was given ${value.length} times: give it once`);
  if (at.path.length > MAX_DEPTH)
    throw badRequest(`${nameOf(at)} is nested too deep: at most ${MAX_DEPTH} levels`);
  if (Array.isArray(value)) return value.map((item, index) => clean(node.items ?? {}, item, into(at, index)));
  const source = value as Record<string, unknown>;
  return Object.fromEntries(
    node.properties ? knownEntries(node, node.properties, source, at) : allEntries(node, source, at),
  );
}

/** Deep enough for every field. */
const MAX_DEPTH = 32;

/** Of any JSON (`Type.Unknown`), which is only passed on: JSON.stringify is recursive. */
const MAX_FREE_DEPTH = 1_000;

function checkDepth(value: unknown, at: Place): unknown {
  let level = [value];
  for (let depth = 0; level.length > 0; depth++) {
    if (depth > MAX_FREE_DEPTH)
      throw badRequest(`${nameOf(at)} is nested too deep: at most ${MAX_FREE_DEPTH} levels`);
    level = level.flatMap((one) => (one !== null && typeof one === 'object' ? Object.values(one) : []));
  }
  return value;
}

function* knownEntries(
  node: SchemaNode,
  properties: Record<string, SchemaNode>,
  source: Record<string, unknown>,
  at: Place,
): Iterable<[string, unknown]> {
  for (const [key, child] of Object.entries(properties)) {
    if (!Object.hasOwn(source, key)) continue;
    const value = source[key];
    if (value === undefined) continue;
    if (value === null && !node.required?.includes(key) && !allowsNull(child)) continue;
    // Forms send an empty field as `?limit=`.
    if (value === '' && at.part === 'query' && !node.required?.includes(key)) continue;
    yield [key, clean(child, value, into(at, key))];
  }
}

const allowsNull = (node: SchemaNode): boolean =>
  node.type === 'null' || (node.anyOf?.some((one) => allowsNull(one)) ?? false);

function* allEntries(
  node: SchemaNode,
  source: Record<string, unknown>,
  at: Place,
): Iterable<[string, unknown]> {
  const child = Object.values(node.patternProperties ?? {})[0] ?? {};
  for (const [key, value] of Object.entries(source)) {
    checkText(key, at);
    yield [key, clean(child, value, into(at, key))];
  }
}

function into(at: Place, step: string | number): Place {
  return { part: at.part, path: [...at.path, step] };
}

function checkText(text: string, at: Place): void {
  if (text.includes('\0')) throw badRequest(`${nameOf(at)} must not contain a NUL character`);
  if (!text.isWellFormed())
    throw badRequest(`${nameOf(at)} must be well-formed Unicode: it has an unpaired surrogate`);
}

function convert(node: SchemaNode, text: string): unknown {
  if (node.type === 'integer' && /^[+-]?\d{1,400}$/.test(text)) return finite(Number(text));
  if (node.type === 'number' && /^[+-]?\d{1,400}(?:\.\d{1,400})?$/.test(text)) return finite(Number(text));
  if (node.type === 'boolean') {
    if (text === 'true' || text === '1') return true;
    if (text === 'false' || text === '0') return false;
  }
  return text;
}

/** A number of 300 digits is clamped like any other that is too large. */
function finite(number: number): number {
  return Math.min(Number.MAX_SAFE_INTEGER, Math.max(Number.MIN_SAFE_INTEGER, number));
}

interface SchemaError {
  keyword: string;
  instancePath: string;
  params: object;
}

function explain(
  root: SchemaNode,
  errors: SchemaError[],
  value: unknown,
  part: RequestPart,
  above: (string | number)[] = [],
): ApiError {
  const first = errors[0];
  if (!first) return badRequest('the request is invalid');
  const path: (string | number)[] = first.instancePath
    .split('/')
    .slice(1)
    .map((step) => step.replaceAll('~1', '/').replaceAll('~0', '~'));
  const missing = requiredProperty(first);
  if (missing !== null) path.push(missing);
  const found = follow(root, value, path);
  const place = { part, path: [...above, ...found.path] };
  const branch = branchOf(found.node, found.value);
  if (branch) return explain(branch, Errors(branch, found.value), found.value, part, place.path);
  const expected = describeSchema(found.node);
  if (place.path.length === 0 && part === 'body') {
    return badRequest(
      `the request body must be a JSON object, but was ${isNothing(value) ? 'missing' : shape(value)}`,
    );
  }
  if (isNothing(found.value)) return badRequest(`${nameOf(place)} is required: it must be ${expected}`);
  const shown = found.node.writeOnly === true ? shape(found.value) : show(found.node, found.value);
  return badRequest(`${nameOf(place)} must be ${expected}, but was ${shown}`);
}

function show(node: SchemaNode, value: unknown): string {
  const typed = node.anyOf && value !== null && typeof value === 'object' && Object.hasOwn(value, 'type');
  return typed ? `an object of type ${quote((value as { type: unknown }).type)}` : quote(value);
}

/** The member of a union that an object selects by its `type`. */
function branchOf(node: SchemaNode, value: unknown): SchemaNode | undefined {
  if (value === null || typeof value !== 'object' || !Object.hasOwn(value, 'type')) return undefined;
  const { type } = value as { type: unknown };
  return node.anyOf?.find((one) => one.properties?.['type']?.const === type);
}

function isNothing(value: unknown): boolean {
  return value === undefined || value === null;
}

function requiredProperty(error: SchemaError): string | null {
  if (error.keyword !== 'required') return null;
  const names = (error.params as { requiredProperties?: string[] }).requiredProperties;
  return names?.[0] ?? null;
}

/** Walks schema and value in parallel as far as both go, and stops at a union, whose members have the words. */
function follow(
  root: SchemaNode,
  value: unknown,
  path: (string | number)[],
): { node: SchemaNode; value: unknown; path: (string | number)[] } {
  let node = root;
  let current = value;
  const walked: (string | number)[] = [];
  for (const step of path) {
    const child =
      node.properties && Object.hasOwn(node.properties, step)
        ? node.properties[step]
        : (node.items ?? Object.values(node.patternProperties ?? {})[0]);
    if (!child || node.anyOf) break;
    const holder = current as Record<string, unknown>;
    current = Object.hasOwn(holder, step) ? holder[step] : undefined;
    walked.push(node.items ? Number(step) : step);
    node = child;
  }
  return { node, value: current, path: walked };
}

/** `ports[0].vm_port`; parameters are named as such, to tell them from fields of the body. */
function nameOf(at: Place): string {
  const text = at.path.map((step, index) => {
    if (typeof step === 'number') return `[${step}]`;
    const shown = /^[A-Za-z_][A-Za-z0-9_]{0,79}$/.test(step) ? step : quote(step);
    return index === 0 ? shown : `.${shown}`;
  });
  const name = text.join('');
  if (name === '') return at.part === 'body' ? 'the request body' : `the ${at.part}`;
  if (at.part === 'query') return `query parameter ${name}`;
  if (at.part === 'params') return `path parameter ${name}`;
  return at.part === 'headers' ? `header ${name}` : name;
}

/** Describes the type of a value without its content. */
function shape(value: unknown): string {
  if (value === null) return 'null';
  if (Array.isArray(value)) return 'an array';
  return typeof value === 'object' ? 'an object' : `a ${typeof value}`;
}

export interface FastifySchema {
  params?: TSchema;
  querystring?: TSchema;
  body?: TSchema;
  response?: Record<number, TSchema>;
}

/** The `schema` of a Fastify route. Only JSON responses have one, so that text is not serialized. */
export function fastifySchema(operation: Operation): FastifySchema {
  const { status, response } = operation.success;
  return {
    ...(operation.params ? { params: operation.params } : {}),
    ...(operation.query ? { querystring: operation.query } : {}),
    ...(operation.body ? { body: operation.body } : {}),
    ...(response.schema && response.contentType === undefined
      ? { response: { [status]: response.schema } }
      : {}),
  };
}
