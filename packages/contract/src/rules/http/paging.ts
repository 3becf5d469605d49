/**
 * Opaque cursors of lists that are sorted newest first. A cursor holds the position of the last sent item: its time with
 * microseconds and its id. No other file depends on its form, and it is parsed strictly: anything but a cursor of the
 * same list is a 400.
 */
import { createHash } from 'node:crypto';
import { isUuid } from '../../wire/platform/ids.ts';
import { DEFAULTS, LIMITS } from '../../wire/platform/limits.ts';
import type { CursorKind } from '../../wire/platform/paging.ts';
import { LEDGER_LIMITS } from '../../wire/tenancy/credits.ts';
import { badRequest, quote } from '../errors.ts';

export interface CursorPosition {
  /** RFC 3339 in UTC with microseconds, as in `2026-01-02T03:04:05.000006Z`. */
  created_at: string;
  /** UUID, lower case. */
  id: string;
}

const VERSION = 1;
const CHECK_BYTES = 4;
const BODY_BYTES = 2 + 8 + 16;
const TIME = /^(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:\.(\d{1,6}))?(?:Z|[+]00(?::?00)?)$/;
// Year 0001 to 9999: what both JavaScript's and PostgreSQL's four-digit years can hold.
const MICROS_MIN = -62_135_596_800_000_000n;
const MICROS_MAX = 253_402_300_799_999_999n;

/** @throws TypeError for an invalid position, which is a bug of the caller */
export function encodeCursor(kind: CursorKind, position: { created_at: string | Date; id: string }): string {
  if (!isUuid(position.id)) throw new TypeError(`not a UUID: ${JSON.stringify(position.id)}`);
  const body = Buffer.alloc(BODY_BYTES);
  body.writeUInt8(VERSION, 0);
  body.writeUInt8(kind.number, 1);
  body.writeBigInt64BE(toMicros(position.created_at), 2);
  body.write(position.id.replaceAll('-', ''), 10, 'hex');
  return Buffer.concat([body, checksum(body)]).toString('base64url');
}

/** @throws a 400 `malformed cursor` for anything that `encodeCursor` has not returned for the same list */
export function decodeCursor(kind: CursorKind, text: string): CursorPosition {
  const bytes = Buffer.from(text, 'base64url');
  const body = bytes.subarray(0, BODY_BYTES);
  if (
    bytes.length !== BODY_BYTES + CHECK_BYTES ||
    // Only the canonical encoding: base64 decoders skip unknown characters.
    bytes.toString('base64url') !== text ||
    body.readUInt8(0) !== VERSION ||
    body.readUInt8(1) !== kind.number ||
    !checksum(body).equals(bytes.subarray(BODY_BYTES))
  ) {
    throw invalidCursor(text);
  }
  const micros = body.readBigInt64BE(2);
  if (micros < MICROS_MIN || micros > MICROS_MAX) throw invalidCursor(text);
  const hex = body.toString('hex', 10);
  const id = [hex.slice(0, 8), hex.slice(8, 12), hex.slice(12, 16), hex.slice(16, 20), hex.slice(20)].join(
    '-',
  );
  return { created_at: fromMicros(micros), id };
}

/** 400 for a text that is no cursor of the list. */
export function invalidCursor(text: string): Error {
  return badRequest(
    `malformed cursor ${quote(text)}: send the next_cursor of the page before, unchanged`,
    'invalid_cursor',
  );
}

/** The position after which a page starts; null for the first page. @throws a 400 `malformed cursor` */
export function cursorPosition(kind: CursorKind, cursor: string | undefined): CursorPosition | null {
  return cursor === undefined ? null : decodeCursor(kind, cursor);
}

/** `next_cursor` of a page. @param last position of its last item; null if there is no next page */
export function nextCursor(kind: CursorKind, last: CursorPosition | null): string | null {
  return last === null ? null : encodeCursor(kind, last);
}

const KEYS_VERSION = 2;

/** The cursor of a list that is sorted by any keys: those of its last sent item, as PostgreSQL shows them. */
export function encodeKeyCursor(kind: CursorKind, keys: readonly string[]): string {
  const body = Buffer.concat([Buffer.from([KEYS_VERSION, kind.number]), Buffer.from(JSON.stringify(keys))]);
  return Buffer.concat([body, checksum(body)]).toString('base64url');
}

/** @throws a 400 for anything that `encodeKeyCursor` has not returned for the same list */
export function decodeKeyCursor(kind: CursorKind, text: string, count: number): string[] {
  const bytes = Buffer.from(text, 'base64url');
  const body = bytes.subarray(0, -CHECK_BYTES);
  if (
    body.length < 2 ||
    bytes.toString('base64url') !== text ||
    body.readUInt8(0) !== KEYS_VERSION ||
    body.readUInt8(1) !== kind.number ||
    !checksum(body).equals(bytes.subarray(-CHECK_BYTES))
  )
    throw invalidCursor(text);
  const keys = parseKeys(body.toString('utf8', 2));
  if (keys?.length !== count) throw invalidCursor(text);
  return keys;
}

function parseKeys(json: string): string[] | undefined {
  try {
    const keys = JSON.parse(json) as unknown;
    return Array.isArray(keys) && keys.every((key) => typeof key === 'string') ? keys : undefined;
  } catch {
    return undefined;
  }
}

/** Detects typing errors and truncated copies. A forged cursor reveals nothing that the caller may not read. */
function checksum(body: Uint8Array): Buffer {
  return createHash('sha256').update(body).digest().subarray(0, CHECK_BYTES);
}

function toMicros(time: string | Date): bigint {
  const text = typeof time === 'string' ? time : time.toISOString();
  const match = TIME.exec(text);
  const millis = match ? Date.parse(`${match[1]}Z`) : Number.NaN;
  if (Number.isNaN(millis)) throw new TypeError(`not an RFC 3339 time in UTC: ${JSON.stringify(text)}`);
  return BigInt(millis) * 1000n + BigInt((match?.[2] ?? '').padEnd(6, '0'));
}

function fromMicros(micros: bigint): string {
  // Floor division, so that times before 1970 keep a positive fraction.
  const fraction = ((micros % 1_000_000n) + 1_000_000n) % 1_000_000n;
  const seconds = (micros - fraction) / 1_000_000n;
  const whole = new Date(Number(seconds) * 1000).toISOString().slice(0, 19);
  return `${whole}.${String(fraction).padStart(6, '0')}Z`;
}

/** Items per page. */
export function clampLimit(limit: number | undefined, max: number = LIMITS.pageMax): number {
  return clamp(limit ?? DEFAULTS.pageSize, LIMITS.pageMin, max);
}

/** Longest wait of a long poll, in milliseconds. */
export function clampTimeout(timeoutMs: number | undefined): number {
  return clamp(timeoutMs ?? DEFAULTS.waitMs, LIMITS.waitMsMin, LIMITS.waitMsMax);
}

/** Ledger entries to return. */
export function clampLedgerLimit(limit: number | undefined): number {
  return clamp(limit ?? LEDGER_LIMITS.default, LEDGER_LIMITS.min, LEDGER_LIMITS.max);
}

function clamp(value: number, min: number, max: number): number {
  return Math.min(max, Math.max(min, value));
}
