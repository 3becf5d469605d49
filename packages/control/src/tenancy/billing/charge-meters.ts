/**
 * Charges the running time of meters to the ledger. Triggers open and close meters in the statements that change
 * sandboxes (migration 0006-credits). One statement a batch advances the meters, writes the entries and lowers the
 * balances, so it does not matter how often this runs, on how many servers, or where one of them dies.
 *
 * Amounts are exact. A charge is `microseconds × rate` with an integer rate, rounded down to whole nano-credits; the
 * remainder is carried into the meter's next charge. However a time is divided into charges, their sum is
 * `floor(microseconds × rate ÷ METER_SCALE)`.
 */
import { HANDLER_LISTEN_MS } from '@releap/contract';
import {
  queryAll,
  queryOne,
  isDatabaseUnavailable,
  statement,
  type Queryable,
  type Statement,
} from '@releap/database';
import type { Prices } from './prices.ts';

const MICROS = 1_000_000n;
/** Thousandths of a core times 1024, and MiB times 1000: both are 1024000ths of their unit then. */
const SIZE = 1_024_000n;
const PICO_IN_NANO = 1_000n;
const PERCENT = 100n;
/** Units per nano-credit in which a meter counts. */
export const METER_SCALE = MICROS * SIZE * PICO_IN_NANO * PERCENT;

/** The first parameters of a statement with `METER_RATE` and `chargedMicros`. */
export const meterPrices = (prices: Prices): unknown[] => [
  [prices.cpuSecond, prices.buildCpuSecond, prices.functionCpuSecond].map(String),
  [prices.memGibSecond, prices.buildMemGibSecond, prices.functionMemGibSecond].map(String),
  String(prices.gpuSecond),
  100 - prices.spotDiscountPercent,
  prices.startFreeMs * 1000,
];

/** Meters per statement: their rows are locked while it runs, and the stop of a sandbox waits for it. */
const METER_BATCH = 2_000;
/** How long a meter that cannot be charged is parked, in seconds. */
const PARKED_SECONDS = 3_600;

interface Row {
  moved: number;
  full: boolean;
  orgs: string[];
  now: string;
}

/** Which price of an array a meter has. */
const CLASS = `[case m.kind when 'build' then 2 when 'trial' then 3 when 'start' then 3 else 1 end]`;
/** The rate in SQL, over `sandbox_meters m`. $1..$3 prices of cpu and memory (by class) and GPU; $4 percent that spot costs */
export const METER_RATE = `(m.millicores::numeric * 1024 * ($1::numeric[])${CLASS} + m.mem_mib::numeric * 1000 * ($2::numeric[])${CLASS} + m.gpus::numeric * ${SIZE} * $3::numeric)
           * case when m.spot then $4::integer else 100 end`;

/** Microseconds of `sandbox_meters m` that have passed until this time and were not counted yet. */
const passed = (until: string): string =>
  `greatest(0, trunc(extract(epoch from ${until} - m.metered_until) * 1000000))`;
/**
 * How many of these are charged. Of a start, not the first $5, nor any after the deadline of its handler: gateways of earlier releases
 * never say that it listens.
 */
export const chargedMicros = (until: string): string =>
  `case m.kind when 'start'
        then greatest(0, least(m.counted_us + ${passed(until)}, ${HANDLER_LISTEN_MS * 1000}) - greatest(m.counted_us, $5::bigint))
        else ${passed(until)} end`;

const CLOCK = 'coalesce($8::timestamptz, now())';
const NOT_PARKED = '(m.parked_until is null or m.parked_until <= now())';
/** Ids of the meters that a statement charges. Each branch reads a bounded range of an index. */
const DUE = `select id from (
      (select m.id from sandbox_meters m where m.closed_at is not null and ${NOT_PARKED} order by m.id limit $7)
      union all
      (select m.id from sandbox_meters m left join host_states r on r.id = m.runner_id
        where m.closed_at is null and m.metered_until <= ${CLOCK} - $6 * interval '1 millisecond'
          and least(${CLOCK}, r.last_seen_at) >= m.metered_until + $6 * interval '1 millisecond' and ${NOT_PARKED}
        order by m.metered_until limit $7)) d limit $7`;

const UNTIL = `coalesce(m.closed_at, least(${CLOCK}, r.last_seen_at))`;
const FUNCTION_NAME = `'function ' || coalesce((select split_part(f.name, '/', 1) from function_states f where f.id = function_id),
                                           function_id::text)`;

/**
 * $1..$5 `meterPrices`; $6 how long a meter may run uncharged, in
 * milliseconds; $7 batch; $8 the present time, or null; $9 the meters' ids. A running meter is charged up to
 * the last heartbeat of its host: should the host be lost, no time after that was charged.
 */
function charge(name: string, meters: string, lock = 'skip locked'): Statement<Row> {
  return statement<Row>(
    name,
    `with due as (
  select m.id, m.sandbox_id, m.org_id, m.region, m.metered_until as since, m.closed_at, m.carry, m.kind, m.function_id,
         m.counted_us as counted, ${UNTIL} as until, ${passed(UNTIL)} as passed, ${chargedMicros(UNTIL)} as charged,
         ${METER_RATE} as rate
    from sandbox_meters m left join host_states r on r.id = m.runner_id
   where m.id = any(array(${meters}))
     and (m.closed_at is not null or least(${CLOCK}, r.last_seen_at) >= m.metered_until + $6 * interval '1 millisecond')
   order by m.metered_until limit $7
     for update of m ${lock}
), priced as (
  select *, charged * rate + carry as parts,
         since + case kind when 'start' then greatest(0, $5::bigint - counted) else 0 end * interval '1 microsecond' as charged_from
    from due
), moved as (
  update sandbox_meters m set metered_until = p.until, counted_us = p.counted + p.passed, carry = mod(p.parts, ${METER_SCALE}),
         parked_until = null, parked_reason = null
    from priced p where m.id = p.id and p.closed_at is null and m.metered_until = p.since
  returning p.*
), ended as (
  delete from sandbox_meters m using priced p
   where m.id = p.id and p.closed_at is not null and m.metered_until = p.since
  returning p.*
), charged as (
  insert into credit_usage (org_id, amount, kind, sandbox_id, function_id, region, period_from, period_to, note)
  select org_id, -div(parts, ${METER_SCALE}), 'usage', case kind when 'sandbox' then sandbox_id end, function_id, region, charged_from,
         case kind when 'start' then charged_from + charged::double precision * interval '1 microsecond' else until end,
         case kind when 'build' then 'build ' || sandbox_id
                   when 'trial' then ${FUNCTION_NAME} || ': trial of a version'
                   when 'start' then ${FUNCTION_NAME} || ': start of an instance' end
    from (select * from moved union all select * from ended) done
   where parts >= ${METER_SCALE} and since < until
   order by since
  returning org_id
)
select (select count(*)::integer from moved) + (select count(*)::integer from ended) as moved,
       (select count(*) from due) >= $7 as full,
       array(select distinct org_id::text from charged) as orgs, ${CLOCK}::text as now`,
  );
}

const CHARGE_DUE = charge('charge-meters', DUE);
/** Waits: the batch that has just failed may still hold its locks, because its error is sent before it is rolled back. */
const CHARGE_ONE = charge('charge-meter', 'select $9::bigint', '');
/** All running meters of these organizations. */
const OF_ORGS = `select m.id from sandbox_meters m where m.org_id = any($9::uuid[]) and ${NOT_PARKED}
    and (m.closed_at is not null or m.metered_until < ${CLOCK} - $6 * interval '1 millisecond')
  order by m.metered_until limit $7`;
const CHARGE_ORGS = charge('charge-meters-of-orgs', OF_ORGS);
/** Only the ids, with the same parameters. */
const ids = (name: string, meters: string): Statement<{ id: string }> =>
  statement<{ id: string }>(
    name,
    `select id from (${meters}) d where $1::numeric[] is not null and $2::numeric[] is not null and $3::numeric + $4::integer + $5::bigint is not null`,
  );
const DUE_IDS = ids('charge-meters-due', DUE);
const ORG_IDS = ids('charge-meters-due-of-orgs', OF_ORGS);
const PARK = statement<{ sandbox_id: string; org_id: string }>(
  'meter-park',
  `update sandbox_meters set parked_until = now() + interval '${PARKED_SECONDS} seconds', parked_reason = $2
    where id = $1 returning sandbox_id, org_id`,
);

export interface Charged {
  /** Meters that were advanced or ended. */
  moved: number;
  /** Organizations that were charged, each once. */
  orgs: string[];
  /** Meters that could not be charged and are parked for an hour. */
  parked: ParkedMeter[];
}

export interface ParkedMeter {
  id: string;
  sandboxId: string;
  orgId: string;
  reason: string;
}

export interface ChargeOptions {
  /** How long a meter may run uncharged, in milliseconds. */
  meterMs: number;
  batch?: number;
  /** For tests, instead of the database's clock. */
  now?: Date;
  /** Only the meters of these organizations. */
  orgs?: readonly string[];
}

/**
 * Charges everything that is due, in independent batches. If a batch fails although the database is available, its
 * meters are charged one by one and those that fail are parked, so that one bad row does not stop the others.
 */
export async function chargeMeters(on: Queryable, prices: Prices, options: ChargeOptions): Promise<Charged> {
  const batch = options.batch ?? METER_BATCH;
  const values = [...meterPrices(prices), options.meterMs, batch];
  const orgs = new Set<string>();
  const parked: ParkedMeter[] = [];
  let moved = 0;
  // All batches use the same time: each meter is due once, so the loop ends.
  let now: Date | string | null = options.now ?? null;
  const count = (row: Row | undefined): void => {
    moved += row?.moved ?? 0;
    for (const org of row?.orgs ?? []) orgs.add(org);
  };
  for (;;) {
    try {
      const row: Row | undefined =
        options.orgs === undefined
          ? await queryOne(on, CHARGE_DUE, [...values, now])
          : await queryOne(on, CHARGE_ORGS, [...values, now, options.orgs]);
      now = row?.now ?? now;
      count(row);
      // Another server has charged this batch.
      if (row === undefined || !row.full || row.moved === 0) break;
    } catch (error) {
      if (isDatabaseUnavailable(error)) throw error;
      const due =
        options.orgs === undefined
          ? await queryAll(on, DUE_IDS, [...values, now])
          : await queryAll(on, ORG_IDS, [...values, now, options.orgs]);
      const before = moved + parked.length;
      for (const { id } of due) {
        try {
          count(await queryOne(on, CHARGE_ONE, [...values, now, id]));
        } catch (failure) {
          if (isDatabaseUnavailable(failure)) throw failure;
          const reason = failure instanceof Error ? failure.message : String(failure);
          const row = await queryOne(on, PARK, [id, reason.slice(0, 500)]);
          if (row !== undefined) parked.push({ id, sandboxId: row.sandbox_id, orgId: row.org_id, reason });
        }
      }
      // The database is at fault, not a meter.
      if (moved + parked.length === before) throw error;
    }
  }
  return { moved, orgs: [...orgs], parked };
}
