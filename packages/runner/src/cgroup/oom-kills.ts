/** Why the kernel has killed a VMM for memory (the OOM killer), from what it counts in cgroups. */
import type { CgroupTree } from './cgroup-tree.ts';

/** What was used up. `host`: the memory that all sandboxes have together, or that of the machine. */
export type OomLimit = 'sandbox' | 'host' | 'unknown';

/**
 * For users. Only the first one speaks of what the sandbox itself has used: a neighbour that uses up the memory of the host must not
 * make another sandbox look like the cause.
 */
const REASONS: Readonly<Record<OomLimit, string>> = {
  sandbox:
    'the micro-VM was ended because it used up its memory limit: the memory that it asked for, and what its VMM needs for it',
  host: 'the micro-VM was ended because its host had no memory left for sandboxes; spot sandboxes are ended first',
  unknown:
    'the micro-VM was ended because it used up its memory limit, or because its host had no memory left for sandboxes',
};

/** Tells why the kernel has killed VMMs for memory, and counts these. */
export class OomKills {
  readonly #cgroups: Pick<CgroupTree, 'oomEvents'>;
  readonly #counts: Record<OomLimit, number> = { sandbox: 0, host: 0, unknown: 0 };

  constructor(cgroups: Pick<CgroupTree, 'oomEvents'>) {
    this.#cgroups = cgroups;
  }

  get counts(): Readonly<Record<OomLimit, number>> {
    return this.#counts;
  }

  /**
   * To be called before the VMM of a cgroup is started, or when it is adopted.
   * @returns to be called when that VMM was killed, while there is its cgroup: the reason for users if the OOM killer did it. Idempotent
   */
  watch(cgroup: string): () => string | undefined {
    const { kills = 0, ownLimit = 0 } = this.#cgroups.oomEvents(cgroup) ?? {};
    let reason: string | undefined;
    return () => {
      if (reason !== undefined) return reason;
      const now = this.#cgroups.oomEvents(cgroup);
      if (now === undefined || now.kills <= kills) return undefined;
      const limit = now.ownLimit === undefined ? 'unknown' : now.ownLimit > ownLimit ? 'sandbox' : 'host';
      this.#counts[limit]++;
      return (reason = REASONS[limit]);
    };
  }
}
