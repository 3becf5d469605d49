/** Chooses the spot sandboxes to evict for a non-spot one. Pure: numbers in, a choice out. */
import type { Overcommit } from './overcommit.ts';
import { lacking } from './plan.ts';
import {
  allocation,
  fits,
  free,
  isEligible,
  plus,
  type Host,
  type Need,
  type Resources,
} from './placement.ts';

/** A spot sandbox that could be evicted. */
export interface Evictable {
  id: string;
  runner_id: string;
  created_at: Date;
  /** What its eviction releases. A paused sandbox keeps its disk and needs disk space for its memory. */
  frees: Resources;
}

export interface Eviction {
  host: Host;
  evict: Evictable[];
}

/**
 * The host with the fewest evictions, and its victims; the newest of equals. Undefined when evictions would not help.
 * @param hosts with capacity that is being released already subtracted from `used`
 */
export function chooseEviction(
  need: Need,
  hosts: readonly Host[],
  spot: readonly Evictable[],
  overcommit: Overcommit,
): Eviction | undefined {
  const asked = allocation(need, overcommit);
  let best: Eviction | undefined;
  for (const host of hosts) {
    if (!isEligible(need, host)) continue;
    const evict = fewest(
      asked,
      free(host),
      spot.filter((one) => one.runner_id === host.id),
    );
    if (evict === undefined || evict.length === 0) continue;
    if (best === undefined || evict.length < best.evict.length) best = { host, evict };
  }
  return best;
}

/** Whether it fits without an eviction. */
export function hostWithCapacity(
  need: Need,
  hosts: readonly Host[],
  overcommit: Overcommit,
): Host | undefined {
  const asked = allocation(need, overcommit);
  return hosts.find((host) => isEligible(need, host) && fits(asked, free(host)));
}

function fewest(asked: Resources, available: Resources, spot: readonly Evictable[]): Evictable[] | undefined {
  const waiting = [...spot].sort((a, b) => b.created_at.getTime() - a.created_at.getTime());
  const chosen: Evictable[] = [];
  let left = available;
  while (!fits(asked, left)) {
    // The newest one that suffices, else the one that releases most.
    const next =
      waiting.find((one) => fits(asked, plus(left, one.frees))) ?? mostHelpful(asked, left, waiting);
    if (next === undefined) return undefined;
    waiting.splice(waiting.indexOf(next), 1);
    chosen.push(next);
    left = plus(left, next.frees);
  }
  // Later choices may make earlier ones unnecessary; keep the oldest of those.
  for (const one of [...chosen].sort((a, b) => a.created_at.getTime() - b.created_at.getTime())) {
    const without = plus(left, one.frees, -1);
    if (!fits(asked, without)) continue;
    left = without;
    chosen.splice(chosen.indexOf(one), 1);
  }
  return chosen;
}

function mostHelpful(
  asked: Resources,
  available: Resources,
  spot: readonly Evictable[],
): Evictable | undefined {
  let best: Evictable | undefined;
  let least = lacking(asked, available);
  for (const one of spot) {
    const then = lacking(asked, plus(available, one.frees));
    if (then >= least) continue;
    best = one;
    least = then;
  }
  return best;
}
