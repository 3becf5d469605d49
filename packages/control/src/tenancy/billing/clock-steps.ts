/**
 * Corrects meters when the database's clock is set or the machine was suspended: such hours are not charged, and no hour
 * is lost when the clock is set back. Elapsed time is measured with this process's monotonic clock, which neither
 * affects.
 */
import { queryOne, statement, type Database } from '@releap/database';
import type { Logger } from 'pino';

/** Smaller steps are normal clock corrections, and cost at most a second's charge. */
const STEP_MIN_MS = 10_000;
/** Distinguishes meters that another server has moved from those that none has. */
const MARGIN_MS = 5_000;

const NOW = statement<{ ms: number }>(
  'clock-now',
  'select (extract(epoch from clock_timestamp()) * 1000)::double precision as ms',
);

/**
 * $1 time of the last check, in milliseconds; $2 size of the step; $3 margin. A moved meter does not match the condition
 * again, so any number of servers may run this. A meter that has been uncharged for longer than the step is not moved:
 * its error is less than that time. Hosts that were last heard of in what is the future now are moved too: one that has died would
 * be charged until then, and not be lost.
 */
const MOVE = statement<{ moved: number }>(
  'meters-move',
  `with clock as (
  select to_timestamp($1::double precision / 1000) as before, $2::double precision * interval '1 millisecond' as step,
         $3::integer * interval '1 millisecond' as margin
), moved as (
  update sandbox_meters m set metered_until = m.metered_until + step from clock
   where case when step > interval '0'
              then m.metered_until <= before and m.metered_until + step > before + margin
                   and (m.closed_at is null or m.closed_at >= before + step)
              else m.metered_until > before + step + margin and m.closed_at is null end
  returning 1
), hosts as (
  update runners r set last_seen_at = r.last_seen_at + step from clock
   where step < interval '0' and r.last_seen_at > clock_timestamp() + margin
)
select count(*)::integer as moved from moved`,
);

export interface ClockSteps {
  /** Checks the clock, and moves the meters if it was set. Call it before charging. */
  look(): Promise<void>;
}

/** @param now milliseconds, monotonic; for tests */
export function createClockSteps(
  database: Database,
  log: Logger,
  now: () => number = () => performance.now(),
): ClockSteps {
  /** The database's time, read between two readings of the monotonic clock. */
  let last: { ms: number; from: number; to: number } | undefined;
  return {
    async look() {
      const from = now();
      const row = await queryOne(database.pool, NOW);
      if (row === undefined) throw new Error('the database returned no time');
      const here = { ms: row.ms, from, to: now() };
      if (last !== undefined) {
        const passed = here.ms - last.ms;
        const [least, most] = [here.from - last.to, here.to - last.from];
        const step = passed > most ? passed - most : Math.min(0, passed - least);
        if (Math.abs(step) >= STEP_MIN_MS) {
          const moved = await queryOne(database.pool, MOVE, [last.ms, step, MARGIN_MS]);
          log.warn(
            { step_ms: Math.round(step), meters: moved?.moved },
            'the clock was set: meters were moved by the same time',
          );
        }
      }
      last = here;
    },
  };
}
