/**
 * One placement round: which of the waiting sandboxes goes to which host. Pure.
 *
 * Requests are looked at in the order of the queue and placed wherever they fit. That alone would let a large request
 * wait for ever beside a stream of small ones, each of which takes what has become free. So the first request of a
 * region that has waited for `reserveAfterMs` gets a reservation on one host, for as long as it waits: others are
 * placed there (backfilled) only where they take nothing that the reservation needs. The host stays the same between
 * rounds, so it drains; one reservation a region leaves the other hosts to everybody else.
 */
import type { Overcommit } from '../limits.ts';
import {
  allocation,
  choose,
  free,
  isEligible,
  plus,
  RESOURCES,
  type Host,
  type Need,
  type Resources,
} from './placement.ts';

export interface PendingRequest {
  id: string;
  need: Need;
  spot: boolean;
  /** Since it was created, in milliseconds. */
  waitedMs: number;
  /** The host that an earlier round has reserved for it. */
  reservedRunnerId: string | null;
}

export interface Reservation {
  region: string;
  id: string;
  runnerId: string;
}

export interface Plan {
  place: { id: string; runnerId: string }[];
  /** What no host can ever take, and why. */
  reject: { id: string; reason: string }[];
  /** What found no capacity and may preempt spot sandboxes, in the order of the queue. */
  waiting: Need[];
  /** At most one a region. */
  reservations: Reservation[];
}

/**
 * @param pending in the order of the queue
 * @param hosts their `used` grows by what is placed
 */
export function planRound(
  pending: readonly PendingRequest[],
  hosts: readonly Host[],
  options: { overcommit: Overcommit; reserveAfterMs: number },
): Plan {
  const { overcommit, reserveAfterMs } = options;
  const plan: Plan = { place: [], reject: [], waiting: [], reservations: [] };
  const reserved = new Map<string, Resources>();
  for (const { id, need, spot, waitedMs, reservedRunnerId } of pending) {
    const choice = choose(need, hosts, overcommit, reserved);
    const asked = allocation(need, overcommit);
    if ('host' in choice) {
      choice.host.used = plus(choice.host.used, asked);
      plan.place.push({ id, runnerId: choice.host.id });
      continue;
    }
    if (choice.unsatisfiable) {
      plan.reject.push({ id, reason: choice.reason });
      continue;
    }
    if (!spot) plan.waiting.push(need);
    if (waitedMs < reserveAfterMs || plan.reservations.some((one) => one.region === need.region)) continue;
    const host = hostToReserve(need, asked, hosts, reservedRunnerId);
    if (host === undefined) continue;
    reserved.set(host.id, asked);
    plan.reservations.push({ region: need.region, id, runnerId: host.id });
  }
  return plan;
}

/** The one that an earlier round has reserved, else the one that lacks least. */
function hostToReserve(
  need: Need,
  asked: Resources,
  hosts: readonly Host[],
  before: string | null,
): Host | undefined {
  let best: Host | undefined;
  let least = Infinity;
  for (const host of hosts) {
    if (!isEligible(need, host)) continue;
    if (host.id === before) return host;
    const missing = lacking(asked, free(host));
    if (missing < least) {
      best = host;
      least = missing;
    }
  }
  return best;
}

/** How much is missing, as a sum of shares of what is asked for. */
export function lacking(asked: Resources, available: Resources): number {
  return RESOURCES.reduce(
    (sum, key) => sum + (asked[key] > 0 ? Math.max(0, asked[key] - available[key]) / asked[key] : 0),
    0,
  );
}
