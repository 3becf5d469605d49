/**
 * Burst: CPU time above the guarantee, charged per minute. Runners report the counters of their micro-VMs; the database
 * stores the last charged reading of each and advances it in the statement that charges. So a reading that is lost,
 * repeated or reported to two servers changes nothing. Times are the runner's, and it is not believed about more time than has
 * passed on the database's clock since the last charge.
 */
import type { CpuReading } from '@releap/contract';
import { queryAll, statement, type Database } from '@releap/database';
import type { Prices } from './prices.ts';

/** Shortest interval over which use is compared with the guarantee, in microseconds of a micro-VM's life. */
const WINDOW_USEC = 60_000_000;
/** A micro-VM without a reading for this long has ended: its remaining use is charged. */
const GONE_MS = 25_000;
/** Most micro-VMs that one statement charges. */
const BATCH = 2_000;
/** How much older a stored reading may be than the charge that stored it, in microseconds. */
const SLACK_USEC = 60_000_000;
/** Units per nano-credit: microseconds times pico-credits per second. */
const BURST_SCALE = 1_000_000_000n;

/** Counting starts at a micro-VM's first reading: its use before, in the warm pool, belongs to no tenant. */
const CHARGE = statement<{ org_id: string }>(
  'charge-bursts',
  `with given as (
  select t.*, p.org_id, s.region, round(s.cpu * 1000) as millicores, greatest(s.vcpus, ceil(s.cpu)) as most
    from unnest($1::uuid[], $2::uuid[], $3::text[], $4::bigint[], $5::bigint[]) as t(sandbox_id, runner_id, incarnation, cpu_usec, age_usec)
    join sandbox_states s on s.id = t.sandbox_id and s.runner_id = t.runner_id and s.mode = 'burstable'
     and s.owner_service is distinct from 'functions'
    join projects p on p.id = s.project_id
), known as (
  select g.*, k.incarnation as life, k.carry, k.age_usec as since, g.age_usec - k.age_usec as claimed, g.cpu_usec - k.cpu_usec as used,
         least(g.age_usec - k.age_usec, (extract(epoch from greatest(now() - k.updated_at, interval '0')) * 1000000)::bigint + ${SLACK_USEC}) as passed
    from given g join cpu_readings k on k.sandbox_id = g.sandbox_id order by g.sandbox_id for update of k
), over as (
  select known.*, carry + $6::numeric * above as parts, above from known
   cross join lateral (select greatest(0, trunc(
           (least(used, most::numeric * claimed) - millicores::numeric * claimed / 1000) * passed / nullif(claimed, 0))) as above) a
   where incarnation = life and claimed > 0 and used >= 0
), moved as (
  update cpu_readings k set cpu_usec = o.cpu_usec, age_usec = o.age_usec, carry = mod(o.parts, ${BURST_SCALE}), updated_at = now()
    from over o where k.sandbox_id = o.sandbox_id and k.incarnation = o.incarnation and k.age_usec = o.since
  returning o.*
), begun as (
  insert into cpu_readings as k (sandbox_id, incarnation, cpu_usec, age_usec)
  select sandbox_id, incarnation, cpu_usec, age_usec from given g
   where sandbox_id not in (select sandbox_id from known where incarnation = life)
   order by sandbox_id
  on conflict (sandbox_id) do update set incarnation = excluded.incarnation, cpu_usec = excluded.cpu_usec,
     age_usec = excluded.age_usec, updated_at = now()
   where k.incarnation <> excluded.incarnation
)
insert into credit_usage (org_id, amount, kind, sandbox_id, region, period_from, period_to, note)
select org_id, -div(parts, ${BURST_SCALE}), 'burst', sandbox_id, region, now() - passed * interval '1 microsecond', now(),
       trim_scale(round(above / 1000000, 3)) || ' core-seconds above the guarantee in '
         || trim_scale(round(passed::numeric / 1000000, 3)) || ' s'
  from moved where parts >= ${BURST_SCALE}
returning org_id`,
);

const FORGET = statement(
  'cpu-readings-forget',
  `delete from cpu_readings where updated_at < now() - interval '1 day'`,
);

export interface BurstMeter {
  /** Records a runner's readings in memory. */
  take(runnerId: string, readings: readonly CpuReading[]): void;
  /** Charges what is due. @returns the organizations that were charged */
  charge(prices: Prices): Promise<string[]>;
  /** Removes the stored readings of micro-VMs that ended long ago. */
  forget(): Promise<void>;
}

/** A run of a micro-VM, of which something is not charged yet. */
interface Life {
  runnerId: string;
  /** Counting starts here. */
  first: CpuReading;
  /** The newest one. */
  reading: CpuReading;
  heardAt: number;
  /** Of the stored reading; undefined when it is unknown. */
  chargedAge: number | undefined;
}

/** Lives of one sandbox that are kept until they are charged. */
const LIVES_MAX = 8;

/** @param now milliseconds, monotonic; for tests */
export function createBurstMeter(
  database: Database,
  now: () => number = () => performance.now(),
): BurstMeter {
  /** By sandbox, the present life last. */
  const sandboxes = new Map<string, Life[]>();

  /** The reading of a sandbox that is charged next: in order, because the database has one of each. */
  function next(lives: readonly Life[], at: number): { life: Life; reading: CpuReading } | undefined {
    for (const life of lives) {
      const { first, reading, chargedAge, heardAt } = life;
      if (chargedAge === undefined) return { life, reading: first };
      const left = reading.age_usec - chargedAge;
      const hasEnded = life !== lives.at(-1) || at - heardAt >= GONE_MS;
      if (left > 0 && (hasEnded || left >= WINDOW_USEC)) return { life, reading };
    }
    return undefined;
  }

  return {
    take(runnerId, readings) {
      const heardAt = now();
      for (const reading of readings) {
        const lives = sandboxes.get(reading.vm_id) ?? [];
        sandboxes.set(reading.vm_id, lives);
        const present = lives.at(-1);
        if (present?.reading.incarnation === reading.incarnation && present.runnerId === runnerId) {
          present.reading = reading;
          present.heardAt = heardAt;
          continue;
        }
        lives.push({ runnerId, first: reading, reading, heardAt, chargedAge: undefined });
        if (lives.length > LIVES_MAX) lives.shift();
      }
    },
    async charge(prices) {
      const at = now();
      const orgs = new Set<string>();
      for (;;) {
        const due = [...sandboxes.values()].flatMap((lives) => next(lives, at) ?? []);
        if (due.length === 0) break;
        for (let from = 0; from < due.length; from += BATCH) {
          const batch = due.slice(from, from + BATCH);
          const rows = await queryAll(database.pool, CHARGE, [
            batch.map(({ reading }) => reading.vm_id),
            batch.map(({ life }) => life.runnerId),
            batch.map(({ reading }) => reading.incarnation),
            batch.map(({ reading }) => reading.cpu_usec),
            batch.map(({ reading }) => reading.age_usec),
            String(prices.burstCpuSecond),
          ]);
          for (const { org_id } of rows) orgs.add(org_id);
          for (const { life, reading } of batch) life.chargedAge = reading.age_usec;
        }
      }
      for (const [id, lives] of sandboxes) {
        const present = lives.at(-1);
        const isGone = present !== undefined && at - present.heardAt >= GONE_MS;
        if (isGone && present.reading.age_usec === present.chargedAge) sandboxes.delete(id);
        else if (lives.length > 1) lives.splice(0, lives.length - 1);
      }
      return [...orgs];
    },
    async forget() {
      await queryAll(database.pool, FORGET);
    },
  };
}
