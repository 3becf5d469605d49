/** Query parameters of lists and long polls. Out-of-range numbers are clamped. */
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

export const NextCursor = Type.Union([Type.String(), Type.Null()], {
  description: 'Where the next page starts; null on the last page.',
});

export const TimeoutParam = Type.Integer({
  default: DEFAULTS.waitMs,
  description: `Longest wait in milliseconds. Clamped to ${LIMITS.waitMsMin}..${LIMITS.waitMsMax}.`,
});
