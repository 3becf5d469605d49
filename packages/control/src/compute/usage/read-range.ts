/** The range of a query: its defaults, and what is refused. */
import { badRequest, quote } from '@releap/contract';
import type { Range } from './history.ts';

const DAY_MS = 86_400_000;
/** RFC 3339: date, time and offset. `Date.parse` takes much more. */
const RFC_3339 = /^(\d{4})-(\d\d)-(\d\d)[Tt ](\d\d):(\d\d):(\d\d)(?:\.\d{1,9})?(?:[Zz]|[+-]\d\d:\d\d)$/;

/** @throws 400 */
export function readTime(name: string, text: string): Date {
  const [, year, month, day] = RFC_3339.exec(text) ?? [];
  const date = new Date(text.toUpperCase().replace(' ', 'T'));
  // Date takes 31 April for 1 May.
  const days = new Date(Date.UTC(Number(year), Number(month), 0)).getUTCDate();
  if (year === undefined || Number.isNaN(date.getTime()) || Number(day) > days)
    throw badRequest(
      `${name} must be a time as in RFC 3339, for example 2026-01-31T12:00:00Z, but was ${quote(text)}`,
    );
  return date;
}

export interface RangeBounds {
  /** Longest range. */
  maxDays: number;
  /** Added to the refusal of a longer one. */
  advice: string;
  /** Length of the range when no start is given. */
  defaultDays?: number;
}

/**
 * @param names of the two parameters
 * @throws 400
 */
export function readRange(
  names: readonly [string, string],
  given: readonly [string | undefined, string | undefined],
  { maxDays, advice, defaultDays = 1 }: RangeBounds,
  now = new Date(),
): Range {
  const to = given[1] === undefined ? now : readTime(names[1], given[1]);
  const from =
    given[0] === undefined ? new Date(to.getTime() - defaultDays * DAY_MS) : readTime(names[0], given[0]);
  if (from >= to)
    throw badRequest(
      `${names[0]} must be before ${names[1]}, but was ${from.toISOString()} and ${names[1]} ${to.toISOString()}`,
    );
  if (to.getTime() - from.getTime() > maxDays * DAY_MS)
    throw badRequest(`${names[0]} and ${names[1]} must be at most ${maxDays} days apart${advice}`);
  return { from, to };
}
