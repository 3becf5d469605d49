/**
 * Charges of functions. Each invocation costs its duration times the vCPUs and the memory of its version. The statements that
 * record invocations, and what of them has passed, add the cost to the meter of their function (invocations/store.ts,
 * invocations/running.ts); this writes the meters to the ledger, at most once a minute each.
 *
 * Amounts are exact: durations are whole microseconds, and what is left below a nano-credit stays in the meter. However
 * invocations are divided into entries, their sum is `floor(cost ÷ FUNCTION_SCALE)`.
 */
import {
  isDatabaseUnavailable,
  queryAll,
  queryOne,
  statement,
  type Queryable,
  type Statement,
} from '@releap/database';

const MICROS = 1_000_000n;
const MIB_IN_GIB = 1024n;
const PICO_IN_NANO = 1_000n;
/** Units per nano-credit in which invocations are counted. */
export const FUNCTION_SCALE = MICROS * MIB_IN_GIB * PICO_IN_NANO;

/** Cost of a microsecond in those units, in SQL, over a version `v`. $1 and $2 prices of a vCPU and of a GiB for a second */
export const FUNCTION_RATE = `(v.vcpus::numeric * ${MIB_IN_GIB} * $1::numeric + v.mem_mib::numeric * $2::numeric)`;

/**
 * Adds to the meters, in SQL, over rows with `function_id`, `project_id` and `cost`.
 * @param invocations how many of them a meter's group has ended, in SQL
 */
export const addToMeters = (rows: string, invocations: string): string =>
  `insert into function_meters as m (function_id, project_id, parts, invocations, since)
  select function_id, project_id, sum(cost), ${invocations}, now() from ${rows} where cost > 0
   group by function_id, project_id order by function_id
  on conflict (function_id) do update set parts = m.parts + excluded.parts, invocations = m.invocations + excluded.invocations,
     since = coalesce(m.since, excluded.since)`;

/** How long an invocation may be uncharged, in milliseconds. */
const WINDOW_MS = 60_000;
const BATCH = 1_000;
/** How long a meter that cannot be charged is parked, in seconds. */
const PARKED_SECONDS = 3_600;

/** $1 window in milliseconds, $2 functions or null, $3 project or null, $4 batch, $5 organizations or null. After a clock step, `since` may be ahead. */
const charge = (
  name: string,
  lock: string,
): Statement<{ function_id: string; org_id: string; charged: boolean }> =>
  statement(
    name,
    `with due as (
  select m.function_id, m.since, m.parts, m.invocations, p.org_id, f.name, f.region
    from function_meters m join projects p on p.id = m.project_id left join function_states f on f.id = m.function_id
   where m.since is not null and (m.since <= now() - $1 * interval '1 millisecond' or m.since > now() + interval '1 minute')
     and (m.parked_until is null or m.parked_until <= now() or $2::uuid[] is not null)
     and ($2::uuid[] is null or m.function_id = any($2::uuid[])) and ($3::uuid is null or m.project_id = $3::uuid)
     and ($5::uuid[] is null or p.org_id = any($5::uuid[]))
   order by m.since limit $4
     for update of m ${lock}
), moved as (
  update function_meters m
     set parts = mod(d.parts, ${FUNCTION_SCALE}), invocations = case when d.parts < ${FUNCTION_SCALE} then d.invocations else 0 end,
         since = null, parked_until = null, parked_reason = null
    from due d where m.function_id = d.function_id
), charged as (
  insert into credit_usage (org_id, amount, kind, function_id, region, period_from, period_to, note)
  select org_id, -div(parts, ${FUNCTION_SCALE}), 'usage', function_id, region, since, greatest(now(), since + interval '1 microsecond'),
         format('function %s: %s', coalesce(split_part(name, '/', 1), function_id::text),
                case invocations when 0 then 'running invocations' when 1 then '1 invocation' else invocations || ' invocations' end)
    from due where parts >= ${FUNCTION_SCALE} order by since
  returning function_id
)
select function_id, org_id, function_id in (select function_id from charged) as charged from due`,
  );
const CHARGE = charge('charge-functions', 'skip locked');
/** Waits: the batch that has just failed may still hold its locks, because its error is sent before it is rolled back. */
const CHARGE_ONE = charge('charge-function', '');

/** The same as in the statement above. $1 window, $2 batch, $3 organizations or null */
const DUE = statement<{ function_id: string }>(
  'charge-functions-due',
  `select m.function_id from function_meters m join projects p on p.id = m.project_id
    where m.since is not null and (m.since <= now() - $1 * interval '1 millisecond' or m.since > now() + interval '1 minute')
      and (m.parked_until is null or m.parked_until <= now()) and ($3::uuid[] is null or p.org_id = any($3::uuid[]))
    order by m.since limit $2`,
);
const PARK = statement<{ project_id: string }>(
  'function-meter-park',
  `update function_meters set parked_until = now() + interval '${PARKED_SECONDS} seconds', parked_reason = $2
    where function_id = $1 returning project_id`,
);

export interface ChargedFunctions {
  /** Organizations that were charged, each once. */
  orgs: string[];
  /** Functions whose meter could not be charged and is parked for an hour. */
  parked: { functionId: string; reason: string }[];
}

/**
 * Charges what is due, in independent batches. If a batch fails although the database is available, its meters are charged one
 * by one and those that fail are parked.
 * @param options.windowMs how long an invocation may be uncharged
 * @param options.orgs only those of these organizations
 */
export async function chargeFunctions(
  on: Queryable,
  {
    windowMs = WINDOW_MS,
    batch = BATCH,
    orgs: only,
  }: { windowMs?: number; batch?: number; orgs?: readonly string[] } = {},
): Promise<ChargedFunctions> {
  const orgs = new Set<string>();
  const parked: ChargedFunctions['parked'] = [];
  for (;;) {
    let count: number;
    try {
      const rows = await queryAll(on, CHARGE, [windowMs, null, null, batch, only ?? null]);
      for (const row of rows) if (row.charged) orgs.add(row.org_id);
      count = rows.length;
    } catch (error) {
      if (isDatabaseUnavailable(error)) throw error;
      const due = await queryAll(on, DUE, [windowMs, batch, only ?? null]);
      const before = parked.length;
      let charged = 0;
      for (const { function_id: id } of due) {
        try {
          const row = await queryOne(on, CHARGE_ONE, [windowMs, [id], null, 1, null]);
          if (row?.charged === true) orgs.add(row.org_id);
          charged += 1;
        } catch (failure) {
          if (isDatabaseUnavailable(failure)) throw failure;
          const reason = failure instanceof Error ? failure.message : String(failure);
          if ((await queryOne(on, PARK, [id, reason.slice(0, 500)])) !== undefined)
            parked.push({ functionId: id, reason });
        }
      }
      // The database is at fault, not a meter.
      if (charged + parked.length === before) throw error;
      count = due.length;
    }
    if (count < batch) return { orgs: [...orgs], parked };
  }
}

/** Charges what a deleted project has used so far. Its meters go with its functions. */
export async function chargeProjectFunctions(on: Queryable, projectId: string): Promise<void> {
  while ((await queryAll(on, CHARGE, [0, null, projectId, BATCH, null])).length === BATCH);
}
