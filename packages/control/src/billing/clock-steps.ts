/**
 * Keeps meters right when the database's clock is set, or the machine of the service was suspended: nobody is charged
 * for hours that only a clock has passed, and no hour is lost to one that was set back. How much time has passed is told
 * by this process's monotonic clock, which does neither.
 */
import { queryOne, statement, type Database } from '@releap/database';
import type { Logger } from 'pino';

/** Less is what a clock that is being kept right does, and a second's cost. */
const STEP_MIN_MS = 10_000;
/** Meters that another server has moved are told from those that none has by more than this. */
const MARGIN_MS = 5_000;

const NOW = statement<{ ms: number }>(
  'clock-now',
  'select (extract(epoch from clock_timestamp()) * 1000)::double precision as ms',
);

/**
 * $1 what time it was at the last look, in milliseconds; $2 by how many the clock was moved; $3 margin. A meter that was
 * moved does not fit the condition again, so any number of servers may do this. One that has run uncharged for longer
 * than the step stays as it is: it is wrong by less than that time.
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
)
select count(*)::integer as moved from moved`,
);

export interface ClockSteps {
  /** Looks at the clock, and moves the meters with it if it was set. Before anything is charged. */
  look(): Promise<void>;
}

/** @param now milliseconds, monotonic; for tests */
export function createClockSteps(
  database: Database,
  log: Logger,
  now: () => number = () => performance.now(),
): ClockSteps {
  /** What time it was, at some moment between two of ours. */
  let last: { ms: number; from: number; to: number } | undefined;
  return {
    async look() {
      const from = now();
      const row = await queryOne(database.pool, NOW);
      if (row === undefined) throw new Error('the database does not know what time it is');
      const here = { ms: row.ms, from, to: now() };
      if (last !== undefined) {
        const passed = here.ms - last.ms;
        const [least, most] = [here.from - last.to, here.to - last.from];
        const step = passed > most ? passed - most : Math.min(0, passed - least);
        if (Math.abs(step) >= STEP_MIN_MS) {
          const moved = await queryOne(database.pool, MOVE, [last.ms, step, MARGIN_MS]);
          log.warn(
            { step_ms: Math.round(step), meters: moved?.moved },
            'the clock was set: meters follow it',
          );
        }
      }
      last = here;
    },
  };
}
