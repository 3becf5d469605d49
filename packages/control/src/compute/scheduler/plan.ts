/**
 * One placement round: assigns waiting sandboxes to hosts. Pure.
 *
 * Requests are considered in queue order and placed wherever they fit. That alone would let a large request
 * starve beside a stream of small ones, each of which takes capacity as it is released. So the first request of a
 * region that has waited for `reserveAfterMs` gets a reservation on one host while it waits: others are
 * placed there (backfilled) only where they take nothing that the reservation needs. The host stays the same between
 * rounds, so it empties; one reservation a region leaves the other hosts to all other requests.
 */
import type { Overcommit } from './overcommit.ts';
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
  /** Time since its creation, in milliseconds. */
  waitedMs: number;
  /** The host that an earlier round reserved for it. */
  reservedRunnerId: string | null;
}

export interface Reservation {
  region: string;
  id: string;
  runnerId: string;
}

export type WaitingRequest = Pick<PendingRequest, 'id' | 'need'>;

export interface Plan {
  place: { id: string; runnerId: string }[];
  /** Requests that no host can ever run, with the reason. */
  reject: { id: string; reason: string }[];
  /** Requests without capacity that may preempt spot sandboxes, in queue order. */
  waiting: WaitingRequest[];
  /** At most one a region. */
  reservations: Reservation[];
}

/**
 * @param pending in the order of the queue
 * @param hosts their `used` grows by the placed sandboxes
 */
export function planRound(
  pending: readonly PendingRequest[],
  hosts: readonly Host[],
  options: { overcommit: Overcommit; reserveAfterMs: number },
): Plan {
  const { overcommit, reserveAfterMs } = options;
  const plan: Plan = { place: [], reject: [], waiting: [], reservations: [] };
  const reserved = new Map<string, Resources>();
  const mounted = new Map<string, string[]>();
  for (const { id, need: asks, spot, waitedMs, reservedRunnerId } of pending) {
    const { volumes = [], mountedOn = [] } = asks;
    // Sandboxes of one round with a volume in common are together too.
    const need = {
      ...asks,
      mountedOn: [...mountedOn, ...volumes.flatMap((volume) => mounted.get(volume) ?? [])],
    };
    const choice = choose(need, hosts, overcommit, reserved);
    const asked = allocation(need, overcommit);
    if ('host' in choice) {
      choice.host.used = plus(choice.host.used, asked);
      plan.place.push({ id, runnerId: choice.host.id });
      for (const volume of volumes) mounted.set(volume, [...(mounted.get(volume) ?? []), choice.host.id]);
      continue;
    }
    if (choice.unsatisfiable) {
      plan.reject.push({ id, reason: choice.reason });
      continue;
    }
    if (!spot) plan.waiting.push({ id, need });
    if (waitedMs < reserveAfterMs || plan.reservations.some((one) => one.region === need.region)) continue;
    const host = hostToReserve(need, asked, hosts, reservedRunnerId);
    if (host === undefined) continue;
    reserved.set(host.id, asked);
    plan.reservations.push({ region: need.region, id, runnerId: host.id });
  }
  return plan;
}

/** The host that an earlier round reserved, else the one with the smallest shortfall. */
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

/** The shortfall, as a sum of shares of the request. */
export function lacking(asked: Resources, available: Resources): number {
  return RESOURCES.reduce(
    (sum, key) => sum + (asked[key] > 0 ? Math.max(0, asked[key] - available[key]) / asked[key] : 0),
    0,
  );
}
