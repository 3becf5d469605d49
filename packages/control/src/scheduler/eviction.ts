/** Which spot sandboxes must go so that one that pays in full has room. Pure: numbers in, a choice out. */
import type { Overcommit } from '../limits.ts';
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
  /** What its eviction gives back. Paused it keeps its disk, and needs room for its memory there. */
  frees: Resources;
}

export interface Eviction {
  host: Host;
  evict: Evictable[];
}

/**
 * The host where the fewest have to go, and who goes there; of equals the newest. Undefined when it would not help.
 * @param hosts with what is being given back already taken off `used`
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

/** Whether it fits without anybody going. */
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
    // The newest that is enough, else the one that helps most.
    const next =
      waiting.find((one) => fits(asked, plus(left, one.frees))) ?? mostHelpful(asked, left, waiting);
    if (next === undefined) return undefined;
    waiting.splice(waiting.indexOf(next), 1);
    chosen.push(next);
    left = plus(left, next.frees);
  }
  // What was chosen early may have become needless; the oldest of those stays.
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
