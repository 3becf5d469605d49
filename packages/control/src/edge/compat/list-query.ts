/** The query of a list of sandboxes. Parsed by hand: its lists are repeated parameters, which other routes refuse. */
import { badRequest, BOUNDS, clampLimit, COMPAT_SANDBOX_STATES, isUuid, quote } from '@releap/contract';

/** Sort fields and the SQL of what they sort by, with its type. */
export const SORTS = {
  createdAt: { sql: 's.created_at', type: 'timestamptz' },
  lastActivityAt: { sql: 'coalesce(c.last_activity_at, s.created_at)', type: 'timestamptz' },
  name: { sql: `s.spec ->> 'name'`, type: 'text' },
  cpu: { sql: 's.cpu', type: 'float8' },
  memoryGib: { sql: 's.mem_mib', type: 'integer' },
  diskGib: { sql: 's.scratch_mib', type: 'integer' },
} as const;
export type SortField = keyof typeof SORTS;

/** The last item of a page: the value that it is sorted by, as PostgreSQL writes it, and its UUID. */
export interface Position {
  value: string;
  id: string;
}

/** Null: any. */
export interface ListQuery {
  sort: SortField;
  order: 'asc' | 'desc';
  limit: number;
  after: Position | null;
  idPrefix: string | null;
  namePrefix: string | null;
  labels: Record<string, string> | null;
  states: string[] | null;
  snapshots: string[] | null;
  regions: string[] | null;
  cpu: Range<number>;
  memoryGib: Range<number>;
  diskGib: Range<number>;
  createdAt: Range<Date>;
  updatedAt: Range<Date>;
  /** No sandbox of the service is public or recoverable. */
  impossible: boolean;
}

interface Range<T> {
  min: T | null;
  max: T | null;
}

type Raw = Readonly<Record<string, unknown>>;

/** @throws 400 that names the parameter */
export function parseListQuery(raw: Raw): ListQuery {
  const sort = choice(raw, 'sort', Object.keys(SORTS) as SortField[]) ?? 'createdAt';
  const order = choice(raw, 'order', ['asc', 'desc'] as const) ?? 'desc';
  const cursor = one(raw, 'cursor');
  return {
    sort,
    order,
    limit: clampLimit(integer(raw, 'limit')),
    after: cursor === null ? null : readCursor(cursor, sort, order),
    idPrefix: one(raw, 'id')?.toLowerCase() ?? null,
    namePrefix: one(raw, 'name'),
    labels: labels(raw),
    states: states(raw),
    snapshots: many(raw, 'snapshots'),
    regions: many(raw, 'regionIds'),
    cpu: { min: number(raw, 'minCpu'), max: number(raw, 'maxCpu') },
    memoryGib: { min: number(raw, 'minMemoryGiB'), max: number(raw, 'maxMemoryGiB') },
    diskGib: { min: number(raw, 'minDiskGiB'), max: number(raw, 'maxDiskGiB') },
    createdAt: { min: time(raw, 'createdAtAfter'), max: time(raw, 'createdAtBefore') },
    updatedAt: { min: time(raw, 'lastEventAfter'), max: time(raw, 'lastEventBefore') },
    impossible: flag(raw, 'isPublic') === true || flag(raw, 'isRecoverable') === true,
  };
}

const VERSION = 1;

export function writeCursor({ sort, order }: Pick<ListQuery, 'sort' | 'order'>, last: Position): string {
  return Buffer.from(JSON.stringify([VERSION, sort, order, last.value, last.id])).toString('base64url');
}

const TIMESTAMP =
  /^(?!0000)(\d{4}-(?:0[1-9]|1[0-2])-(?:0[1-9]|[12]\d|3[01])) (?:[01]\d|2[0-3]):[0-5]\d:[0-5]\d(?:\.\d{1,6})?[+-](?:0\d|1[0-4])(?::[0-5]\d)?$/;

/** Whether PostgreSQL can read a value: one that it cannot read would be an internal error. */
const IS_VALUE: Readonly<Record<(typeof SORTS)[SortField]['type'], (text: string) => boolean>> = {
  timestamptz(text) {
    const day = TIMESTAMP.exec(text)?.[1];
    // JavaScript reads February 30 as March 2.
    return day !== undefined && new Date(`${day}T00:00Z`).toISOString().startsWith(day);
  },
  text: isText,
  float8: (text) => /^\d{1,12}(?:\.\d{1,12})?$/.test(text),
  integer: (text) => /^\d{1,9}$/.test(text),
};

function readCursor(text: string, sort: SortField, order: 'asc' | 'desc'): Position {
  const malformed = badRequest(
    `malformed cursor ${quote(text)}: send the nextCursor of the page before, unchanged and with the same sort and order`,
    'invalid_cursor',
  );
  let parts: unknown;
  try {
    parts = JSON.parse(Buffer.from(text, 'base64url').toString('utf8'));
  } catch {
    throw malformed;
  }
  if (!Array.isArray(parts)) throw malformed;
  const [version, field, direction, value, id] = parts as unknown[];
  if (version !== VERSION || field !== sort || direction !== order) throw malformed;
  if (typeof value !== 'string' || !IS_VALUE[SORTS[sort].type](value)) throw malformed;
  if (typeof id !== 'string' || !isUuid(id)) throw malformed;
  return { value, id };
}

const MOST_VALUES = 200;

function many(raw: Raw, name: string): string[] | null {
  const value = Object.hasOwn(raw, name) ? raw[name] : undefined;
  if (value === undefined || value === '') return null;
  const all = (Array.isArray(value) ? value : [value]) as string[];
  if (all.length > MOST_VALUES)
    throw badRequest(
      `query parameter ${name} was given ${all.length} times: at most ${MOST_VALUES} are allowed`,
    );
  if (!all.every(isText)) throw badRequest(`query parameter ${name} must be text without NUL characters`);
  return all;
}

/** Whether PostgreSQL can store a value as text. */
function isText(value: unknown): boolean {
  return typeof value === 'string' && !value.includes('\0') && value.isWellFormed();
}

function one(raw: Raw, name: string): string | null {
  const all = many(raw, name);
  if (all !== null && all.length > 1)
    throw badRequest(`query parameter ${name} was given ${all.length} times: give it once`);
  return all?.[0] ?? null;
}

function number(raw: Raw, name: string): number | null {
  const text = one(raw, name);
  if (text === null) return null;
  if (!/^\d{1,12}(?:\.\d{1,12})?$/.test(text))
    throw badRequest(`query parameter ${name} must be a number, but was ${quote(text)}`);
  return Number(text);
}

function integer(raw: Raw, name: string): number | undefined {
  const value = number(raw, name) ?? undefined;
  if (value !== undefined && !Number.isInteger(value))
    throw badRequest(`query parameter ${name} must be an integer, but was ${quote(value)}`);
  return value;
}

function flag(raw: Raw, name: string): boolean | null {
  const text = choice(raw, name, ['true', 'false'] as const);
  return text === null ? null : text === 'true';
}

function time(raw: Raw, name: string): Date | null {
  const text = one(raw, name);
  if (text === null) return null;
  const date = new Date(text);
  const year = date.getUTCFullYear();
  // What PostgreSQL and JavaScript write alike.
  if (!(year >= 1 && year <= 9999))
    throw badRequest(
      `query parameter ${name} must be a time as in 2026-01-02T03:04:05Z, but was ${quote(text)}`,
    );
  return date;
}

function choice<T extends string>(raw: Raw, name: string, allowed: readonly T[]): T | null {
  const text = one(raw, name);
  if (text === null) return null;
  const found = allowed.find((value) => value === text);
  if (found === undefined)
    throw badRequest(`query parameter ${name} must be one of ${allowed.join(', ')}, but was ${quote(text)}`);
  return found;
}

/** States of the protocol that no sandbox of this service has are allowed, and match none. */
function states(raw: Raw): string[] | null {
  const all = many(raw, 'states');
  const bad = all?.find((state) => !/^[a-z_]{1,40}$/.test(state));
  if (bad !== undefined)
    throw badRequest(
      `query parameter states must have states, as in ${COMPAT_SANDBOX_STATES.join(', ')}, but has ${quote(bad)}`,
    );
  return all;
}

function labels(raw: Raw): Record<string, string> | null {
  const text = one(raw, 'labels');
  if (text === null) return null;
  let value: unknown;
  try {
    value = JSON.parse(text);
  } catch {
    value = undefined;
  }
  const isObject = typeof value === 'object' && value !== null && !Array.isArray(value);
  if (
    !isObject ||
    !Object.entries(value as object)
      .flat()
      .every(isText)
  )
    throw badRequest(
      `query parameter labels must be a JSON object with text values, but was ${quote(text.slice(0, BOUNDS.descriptionChars))}`,
    );
  return value as Record<string, string>;
}
