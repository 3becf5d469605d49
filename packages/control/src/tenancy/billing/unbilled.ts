/**
 * Use without a ledger entry yet. Meters are charged hourly, so that a sandbox that runs for a year does not write half a
 * million entries, but credits are enforced by the minute: each minute the uncharged use is summed, and an organization
 * whose balance it would take to zero or beyond the overdraft limit is charged at once.
 */
import { queryAll, statement, type Queryable } from '@releap/database';
import { chargedMicros, meterPrices, METER_RATE, METER_SCALE } from './charge-meters.ts';
import { FUNCTION_SCALE } from './function-charges.ts';
import type { Prices } from './prices.ts';

/** $1..$5 prices as in charge-meters.ts; $6 default overdraft limit */
const CROSSING = statement<{ org_id: string }>(
  'credits-crossing',
  `with unbilled as (select org_id, sum(nanos) as nanos from (
     select m.org_id, floor(sum(${chargedMicros('coalesce(m.closed_at, least(now(), r.last_seen_at))')} * ${METER_RATE} + m.carry)
                      / ${METER_SCALE}) as nanos
       from sandbox_meters m left join host_states r on r.id = m.runner_id
      group by m.org_id
     union all
     select p.org_id, floor(sum(m.parts) / ${FUNCTION_SCALE})
       from function_meters m join projects p on p.id = m.project_id
      where m.since is not null and (m.parked_until is null or m.parked_until <= now()) group by p.org_id) each group by org_id
   )
   select org_id from (
     select u.org_id, coalesce(a.balance, 0) as balance, coalesce(a.balance, 0) - u.nanos as after,
            coalesce(a.overdraft_limit, $6::bigint) as overdraft
       from unbilled u left join credit_accounts a on a.org_id = u.org_id) t
    where (balance > 0 and after <= 0) or after < -overdraft`,
);

/** Organizations whose uncharged use takes their balance over a limit, or that are beyond it and use more. */
export async function organizationsCrossing(
  on: Queryable,
  prices: Prices,
  overdraftLimit: bigint,
): Promise<string[]> {
  const rows = await queryAll(on, CROSSING, [...meterPrices(prices), String(overdraftLimit)]);
  return rows.map((row) => row.org_id);
}
