/**
 * Turns the time that meters have run into ledger entries. The database opens and closes the meters by itself, in the
 * statements that change sandboxes (migration 0006-credits); here elapsed time is charged, all of it in one statement a
 * batch: the meter moves on, the entry is written and the balance falls together or not at all. So it does not matter
 * how often this runs, on how many servers, or where one of them dies.
 *
 * Amounts are exact. A charge is `microseconds × rate`, with the rate an integer, cut down to whole nano-credits; what
 * is cut off is carried into the meter's next charge. However a time is divided into charges, they sum up to
 * `floor(microseconds × rate ÷ METER_SCALE)`.
 */
import { first, statement, type Queryable } from '@releap/database';
import type { Prices } from './prices.ts';

const MICROS = 1_000_000n;
/** Thousandths of a core times 1024, and MiB times 1000: both are 1024000ths of their unit then. */
const SIZE = 1_024_000n;
const PICO_IN_NANO = 1_000n;
const PERCENT = 100n;
/** Parts of a nano-credit in which a meter counts. */
export const METER_SCALE = MICROS * SIZE * PICO_IN_NANO * PERCENT;

export interface MeteredSize {
  millicores: number;
  memMib: number;
  gpus: number;
  spot: boolean;
}

/** Parts of a nano-credit that a microsecond of this sandbox costs. The statement below computes the same. */
export function meterRate(size: MeteredSize, prices: Prices): bigint {
  const full =
    BigInt(size.millicores) * 1024n * prices.cpuSecond +
    BigInt(size.memMib) * 1000n * prices.memGibSecond +
    BigInt(size.gpus) * SIZE * prices.gpuSecond;
  return full * BigInt(size.spot ? 100 - prices.spotDiscountPercent : 100);
}

/** Meters that one statement moves: their rows stay locked while it runs, and whoever stops a sandbox waits. */
export const METER_BATCH = 2_000;

interface Row {
  moved: number;
  full: boolean;
  orgs: string[];
  now: string;
}

/**
 * $1..$3 prices of cpu, memory, GPU; $4 percent that spot costs; $5 how long a meter may run uncharged, in
 * milliseconds; $6 batch; $7 what time it is, or null. A running meter is charged up to the last time that its host was heard of: should the host
 * be lost, nothing after that was charged.
 */
const CHARGE = statement<Row>(
  'charge-meters',
  `with due as (
  select m.id, m.sandbox_id, m.org_id, m.region, m.metered_until as since, m.closed_at, m.carry,
         coalesce(m.closed_at, least(clock.now, r.last_seen_at)) as until,
         (m.millicores::numeric * 1024 * $1::numeric + m.mem_mib::numeric * 1000 * $2::numeric + m.gpus::numeric * ${SIZE} * $3::numeric)
           * case when m.spot then $4::integer else 100 end as rate
    from (select coalesce($7::timestamptz, now()) as now) clock
   cross join sandbox_meters m left join runners r on r.id = m.runner_id
   where m.closed_at is not null
      or (m.closed_at is null and m.metered_until <= clock.now - $5 * interval '1 millisecond'
          and least(clock.now, r.last_seen_at) >= m.metered_until + $5 * interval '1 millisecond')
   order by m.metered_until limit $6
     for update of m skip locked
), priced as (
  select *, greatest(0, trunc(extract(epoch from until - since) * 1000000)) * rate + carry as parts from due
), moved as (
  update sandbox_meters m set metered_until = p.until, carry = mod(p.parts, ${METER_SCALE})
    from priced p where m.id = p.id and p.closed_at is null and m.metered_until = p.since
  returning p.*
), ended as (
  delete from sandbox_meters m using priced p
   where m.id = p.id and p.closed_at is not null and m.metered_until = p.since
  returning p.*
), charged as (
  insert into credit_ledger (org_id, amount, kind, sandbox_id, region, period_from, period_to)
  select org_id, -div(parts, ${METER_SCALE}), 'usage', sandbox_id, region, since, until
    from (select * from moved union all select * from ended) done
   where parts >= ${METER_SCALE} and since < until
   order by since
  returning org_id
)
select (select count(*)::integer from moved) + (select count(*)::integer from ended) as moved,
       (select count(*) from due) >= $6 as full,
       array(select distinct org_id::text from charged) as orgs, coalesce($7::timestamptz, now())::text as now`,
);

export interface Charged {
  /** Meters that moved on or ended. */
  moved: number;
  /** Organizations that were charged, each once. */
  orgs: string[];
}

/**
 * Charges all that is due, in batches, each of which holds by itself.
 * @param options.meterMs how long a meter may run uncharged, in milliseconds
 * @param options.now for tests, instead of the database's clock
 */
export async function chargeMeters(
  on: Queryable,
  prices: Prices,
  options: { meterMs: number; batch?: number; now?: Date },
): Promise<Charged> {
  const batch = options.batch ?? METER_BATCH;
  const values = [
    String(prices.cpuSecond),
    String(prices.memGibSecond),
    String(prices.gpuSecond),
    100 - prices.spotDiscountPercent,
    options.meterMs,
    batch,
  ];
  const orgs = new Set<string>();
  let moved = 0;
  // All batches mean the same moment: each meter is due once, and the last batch comes.
  let now: Date | string | null = options.now ?? null;
  for (;;) {
    const row: Row | undefined = await first(on, CHARGE, [...values, now]);
    now = row?.now ?? now;
    moved += row?.moved ?? 0;
    for (const org of row?.orgs ?? []) orgs.add(org);
    // A batch that moved nothing was another server's.
    if (row === undefined || !row.full || row.moved === 0) return { moved, orgs: [...orgs] };
  }
}
