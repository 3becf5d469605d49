/**
 * Charges of functions. Each invocation costs its duration times the vCPUs and the memory of its version. The statement that
 * records invocations adds their cost to the meter of their function (invocations/store.ts); this writes the meters to the
 * ledger, at most once a minute each.
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

/** Cost in those units, in SQL, over an invocation `t` and its version `v`. $1 and $2 prices of a vCPU and of a GiB for a second */
export const FUNCTION_PARTS = `round((t.duration_ms * 1000)::numeric)
           * (v.vcpus::numeric * ${MIB_IN_GIB} * $1::numeric + v.mem_mib::numeric * $2::numeric)`;

/** How long an invocation may be uncharged, in milliseconds. */
const WINDOW_MS = 60_000;
const BATCH = 1_000;
/** How long a meter that cannot be charged is parked, in seconds. */
const PARKED_SECONDS = 3_600;

/** $1 window in milliseconds, $2 functions or null, $3 project or null, $4 batch. After a clock step, `since` may be ahead. */
const charge = (
  name: string,
  lock: string,
): Statement<{ function_id: string; org_id: string; charged: boolean }> =>
  statement(
    name,
    `with due as (
  select m.function_id, m.since, m.parts, m.invocations, p.org_id, f.name, f.region
    from function_meters m join projects p on p.id = m.project_id left join functions f on f.id = m.function_id
   where m.since is not null and (m.since <= now() - $1 * interval '1 millisecond' or m.since > now() + interval '1 minute')
     and (m.parked_until is null or m.parked_until <= now() or $2::uuid[] is not null)
     and ($2::uuid[] is null or m.function_id = any($2::uuid[])) and ($3::uuid is null or m.project_id = $3::uuid)
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
         format('function %s: %s invocation%s', coalesce(name, function_id::text), invocations, case when invocations = 1 then '' else 's' end)
    from due where parts >= ${FUNCTION_SCALE} order by since
  returning function_id
)
select function_id, org_id, function_id in (select function_id from charged) as charged from due`,
  );
const CHARGE = charge('charge-functions', 'skip locked');
/** Waits: the batch that has just failed may still hold its locks, because its error is sent before it is rolled back. */
const CHARGE_ONE = charge('charge-function', '');

/** The same as in the statement above. $1 window, $2 batch */
const DUE = statement<{ function_id: string }>(
  'charge-functions-due',
  `select m.function_id from function_meters m
    where m.since is not null and (m.since <= now() - $1 * interval '1 millisecond' or m.since > now() + interval '1 minute')
      and (m.parked_until is null or m.parked_until <= now())
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
 * @param options.windowMs how long an invocation may be uncharged; for tests
 */
export async function chargeFunctions(
  on: Queryable,
  { windowMs = WINDOW_MS, batch = BATCH }: { windowMs?: number; batch?: number } = {},
): Promise<ChargedFunctions> {
  const orgs = new Set<string>();
  const parked: ChargedFunctions['parked'] = [];
  for (;;) {
    let count: number;
    try {
      const rows = await queryAll(on, CHARGE, [windowMs, null, null, batch]);
      for (const row of rows) if (row.charged) orgs.add(row.org_id);
      count = rows.length;
    } catch (error) {
      if (isDatabaseUnavailable(error)) throw error;
      const due = await queryAll(on, DUE, [windowMs, batch]);
      const before = parked.length;
      let charged = 0;
      for (const { function_id: id } of due) {
        try {
          const row = await queryOne(on, CHARGE_ONE, [windowMs, [id], null, 1]);
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

/** Charges all of a project that is deleted, and forgets its meters. */
export async function endFunctionMeters(on: Queryable, projectId: string): Promise<void> {
  while ((await queryAll(on, CHARGE, [0, null, projectId, BATCH])).length === BATCH);
  await queryAll(on, FORGET, [projectId]);
}
const FORGET = statement(
  'function-meters-forget',
  'delete from function_meters where project_id = $1 and since is null',
);
