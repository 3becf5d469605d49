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
