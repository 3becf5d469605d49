/** Cron expressions of five fields, in UTC. */
import { badRequest, quote } from '@releap/contract';
import { Cron } from 'croner';

const FIELDS = 5;

/** @throws RangeError or TypeError for an expression that is not valid */
function parse(text: string): Cron {
  // Nicknames like `@daily` have no fields.
  const count = text.trim().split(/\s+/).length;
  if (count !== FIELDS)
    throw new RangeError(`it must have ${FIELDS} fields (minute, hour, day of month, month, day of week)`);
  return new Cron(text.trim(), { timezone: 'UTC', mode: '5-part' });
}

/** The first time after this one; undefined when there is none. */
export function nextRun(cron: string, after: Date): Date | undefined {
  return parse(cron).nextRun(after) ?? undefined;
}

/** The first time of an expression from a client. @throws 400 for one that is not valid, or never fires */
export function firstRun(cron: string, after: Date): Date {
  let next: Date | undefined;
  try {
    next = nextRun(cron, after);
  } catch (error) {
    const reason = (error as Error).message.replace(/^Cron[A-Za-z]*: /, '');
    throw badRequest(`cron ${quote(cron)} is not valid: ${reason}`);
  }
  if (next === undefined) throw badRequest(`cron ${quote(cron)} never fires: use a date that exists`);
  return next;
}
