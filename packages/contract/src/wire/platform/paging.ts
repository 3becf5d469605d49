/**
 * Pages of lists: their query parameters, of which out-of-range numbers are clamped, and the kinds of their cursors; and long
 * polls.
 */
import { Type } from 'typebox';
import { DEFAULTS, LIMITS } from './limits.ts';

export const LimitParam = Type.Integer({
  default: DEFAULTS.pageSize,
  description: `Items a page. Clamped to ${LIMITS.pageMin}..${LIMITS.pageMax}.`,
});

export const CursorParam = Type.String({
  description: 'The `next_cursor` of the page before; leave it out for the first page.',
});

export const PageQuery = Type.Object({
  limit: Type.Optional(LimitParam),
  cursor: Type.Optional(CursorParam),
});

/** Of lists that answered as a whole before they had pages. */
export const pageFields = {
  limit: Type.Optional(
    Type.Integer({
      description: `Items a page. Clamped to ${LIMITS.pageMin}..${LIMITS.pageMax}. Without it and \`cursor\`, all are listed.`,
    }),
  ),
  cursor: Type.Optional(CursorParam),
};
export const OptionalPageQuery = Type.Object(pageFields);

export const NextCursor = Type.Union([Type.String(), Type.Null()], {
  description: 'Where the next page starts; null on the last page.',
});

export const TimeoutParam = Type.Integer({
  default: DEFAULTS.waitMs,
  description: `Longest wait in milliseconds. Clamped to ${LIMITS.waitMsMin}..${LIMITS.waitMsMax}.`,
});

/** A time in a query. Its form is checked when the range is read, whose error says more. */
export const TimeParam = (description: string) =>
  Type.String({ openapi: { format: 'date-time' }, description });

/** Of `OptionalPageQuery`: absent when no page was asked for. */
export const nextPage = { next_cursor: Type.Optional(NextCursor) };

/** Identifies the lists of one resource in their cursors. */
export interface CursorKind {
  readonly number: number;
}

const cursorNumbers = new Set<number>();

/**
 * Declares the cursors of a list.
 * @param number part of the wire form, 1 to 255: never reuse one
 */
export function cursorKind(number: number): CursorKind {
  if (!Number.isInteger(number) || number < 1 || number > 255)
    throw new RangeError(`a cursor kind has a number from 1 to 255, but was given ${number}`);
  if (cursorNumbers.has(number)) throw new Error(`two lists have cursors of kind ${number}`);
  cursorNumbers.add(number);
  return { number };
}

/** The cursors of the lists that are paged by their keys. */
export const LIST_CURSORS = {
  volumes: cursorKind(17),
  objectStores: cursorKind(18),
  secrets: cursorKind(19),
  registries: cursorKind(20),
  endpoints: cursorKind(21),
  schedules: cursorKind(22),
  apiKeys: cursorKind(23),
  members: cursorKind(24),
  orgInvitations: cursorKind(25),
  myInvitations: cursorKind(26),
  organizations: cursorKind(27),
  projects: cursorKind(28),
  hosts: cursorKind(29),
  ledger: cursorKind(30),
  grants: cursorKind(31),
  operatorAudit: cursorKind(32),
  invocations: cursorKind(33),
  joinTokens: cursorKind(34),
} as const;
