/** Which host a sandbox is placed on. Pure: numbers in, a choice or a reason out. */
import type { RunnerFacts } from '@releap/contract';
import type { Overcommit } from '../limits.ts';

export interface Host {
  id: string;
  region: string;
  /** Connected and ready: may be given something now. */
  ready: boolean;
  /** It is being emptied, and takes nothing new. */
  draining: boolean;
  facts: RunnerFacts;
  /** What is allocated already, as `allocation` counts it. */
  used: Resources;
}

export interface Resources {
  cpu: number;
  mem_mib: number;
  disk_mib: number;
  gpus: number;
}

export interface Need extends Resources {
  region: string;
  /** Null: any. */
  arch: string | null;
  /** The one host that has its source. */
  requiredRunnerId: string | null;
  /** Its guarantees may be overcommitted: see `isOvercommitted`. */
  overcommitted: boolean;
}

/** Sizes of a sandbox, and whether they are overcommitted. */
export type Demand = Pick<Need, keyof Resources | 'overcommitted'>;

/** What hosts hold free for requests that have waited for long, by host id. See plan.ts. */
export type Reservations = ReadonlyMap<string, Resources>;
const NO_RESERVATIONS: Reservations = new Map();

export type Choice = { host: Host } | { reason: string; unsatisfiable: boolean };

/** Dedicated sandboxes never are; spot always; other burstable ones where the operator says so. */
export function isOvercommitted(
  sandbox: { mode: 'burstable' | 'dedicated'; spot: boolean },
  overcommit: Pick<Overcommit, 'tier'>,
): boolean {
  return sandbox.mode !== 'dedicated' && (sandbox.spot || overcommit.tier === 'burstable');
}

/** What can be allocated of a host: all of it, once. */
export function allocatable(facts: RunnerFacts): Resources {
  return { cpu: facts.cores, mem_mib: facts.mem_mib, disk_mib: facts.disk_mib, gpus: facts.gpus };
}

/**
 * What a sandbox takes of a host: its guarantees, or their share under overcommitment. The sum over a host is at most
 * the host, so whatever else is there, guarantees that are not overcommitted are covered by real cores and memory.
 */
export function allocation(demand: Demand, overcommit: Overcommit): Resources {
  const { cpu, mem_mib, disk_mib, gpus, overcommitted } = demand;
  if (!overcommitted) return { cpu, mem_mib, disk_mib, gpus };
  return {
    cpu: cpu / overcommit.cpu,
    mem_mib: mem_mib / overcommit.mem,
    disk_mib: disk_mib / overcommit.disk,
    gpus,
  };
}

export function plus(resources: Resources, other: Resources, times = 1): Resources {
  return {
    cpu: resources.cpu + times * other.cpu,
    mem_mib: resources.mem_mib + times * other.mem_mib,
    disk_mib: resources.disk_mib + times * other.disk_mib,
    gpus: resources.gpus + times * other.gpus,
  };
}

export function free(host: Host): Resources {
  return plus(allocatable(host.facts), host.used, -1);
}

/** Sums of eighths are exact in floating point; this is for other fractions. */
const EPSILON = 1e-6;

export function fits(asked: Resources, available: Resources): boolean {
  return (
    asked.cpu <= available.cpu + EPSILON &&
    asked.mem_mib <= available.mem_mib + EPSILON &&
    asked.disk_mib <= available.disk_mib + EPSILON &&
    // A host that has lost a GPU still takes those that want none.
    (asked.gpus === 0 || asked.gpus <= available.gpus)
  );
}

/** Whether `asked` fits and takes nothing that a reservation needs. */
function fitsBeside(asked: Resources, available: Resources, reserved: Resources | undefined): boolean {
  if (!fits(asked, available)) return false;
  if (reserved === undefined) return true;
  const left = plus(available, asked, -1);
  return RESOURCES.every((what) => asked[what] === 0 || left[what] + EPSILON >= reserved[what]);
}

export const RESOURCES = ['cpu', 'mem_mib', 'disk_mib', 'gpus'] as const;

/**
 * What is missing on a host for this sandbox, with the sandbox counted in already; undefined when nothing is. The end
 * of a sentence.
 */
export function shortfall(demand: Demand, host: Host, overcommit: Overcommit): string | undefined {
  const left = free(host);
  const over = RESOURCES.filter((what) => demand[what] > 0 && left[what] < -EPSILON);
  if (over.length === 0) return undefined;
  const scale = scales(demand.overcommitted, overcommit);
  const unit = { cpu: 'cores', mem_mib: 'MiB of memory', disk_mib: 'MiB of disk', gpus: 'GPUs' };
  const shown = (value: number): number => Math.max(0, Math.round(value * 1000) / 1000);
  return over
    .map((what) => {
      const available = left[what] * scale[what] + demand[what];
      return `it needs ${shown(demand[what])} ${unit[what]}, and ${shown(available)} are free`;
    })
    .join('; ');
}

/** How many times what is free a request of this tier may ask for. */
function scales(overcommitted: boolean, overcommit: Overcommit): Resources {
  if (!overcommitted) return { cpu: 1, mem_mib: 1, disk_mib: 1, gpus: 1 };
  return { cpu: overcommit.cpu, mem_mib: overcommit.mem, disk_mib: overcommit.disk, gpus: 1 };
}

/** Whether the machine itself is large enough: no overcommitment makes eight cores of four. */
function fitsEmptyHost(need: Resources, facts: RunnerFacts): boolean {
  return fits(need, allocatable(facts));
}

/** Share of the scarcest thing that would be left: the larger, the better spread. */
function score(asked: Resources, host: Host): number {
  const all = allocatable(host.facts);
  const left = plus(free(host), asked, -1);
  return Math.min(left.cpu / all.cpu, left.mem_mib / all.mem_mib, left.disk_mib / all.disk_mib);
}

/**
 * The ready host of the region with the most capacity left, or why there is none. `unsatisfiable`: there is a ready
 * host, and no known one of the region, however empty, present or absent for a while, could take it.
 */
export function choose(
  need: Need,
  hosts: readonly Host[],
  overcommit: Overcommit,
  reservations: Reservations = NO_RESERVATIONS,
): Choice {
  const here = hosts.filter(
    (host) => host.region === need.region && (need.requiredRunnerId ?? host.id) === host.id,
  );
  const asked = allocation(need, overcommit);
  let best: Host | undefined;
  let most = -Infinity;
  for (const host of here) {
    if (!isEligible(need, host) || !fitsBeside(asked, free(host), reservations.get(host.id))) continue;
    const left = score(asked, host);
    if (left > most) {
      best = host;
      most = left;
    }
  }
  return best === undefined ? explain(need, here, overcommit) : { host: best };
}

/** Whether it would be taken there if the host were empty. */
export function isEligible(need: Need, host: Host): boolean {
  return host.ready && !host.draining && couldTake(need, host);
}

/** Whether it would be taken there if the host were empty and connected. */
function couldTake(need: Need, host: Host): boolean {
  return (
    host.region === need.region &&
    (need.requiredRunnerId ?? host.id) === host.id &&
    (need.arch ?? host.facts.arch) === host.facts.arch &&
    fitsEmptyHost(need, host.facts)
  );
}

/**
 * The region where this is placed best: one with a host that has the capacity now (the most of it), else one with a
 * host that will have it, else one whose absent host could take it. The first of `regions` when none ever can.
 */
export function chooseRegion(
  need: Omit<Need, 'region'>,
  regions: readonly string[],
  hosts: readonly Host[],
  overcommit: Overcommit,
): string | undefined {
  let best: { region: string; rank: number; score: number } | undefined;
  for (const region of regions) {
    const there = { ...need, region };
    const choice = choose(there, hosts, overcommit);
    const asked = allocation(there, overcommit);
    const scores = hosts.filter((host) => isEligible(there, host)).map((host) => score(asked, host));
    const absent = hosts.some((host) => couldTake(there, host));
    const rank = 'host' in choice ? 3 : scores.length > 0 ? 2 : absent ? 1 : 0;
    const one = { region, rank, score: 'host' in choice ? score(asked, choice.host) : Math.max(...scores) };
    if (best === undefined || rank > best.rank || (rank === best.rank && one.score > best.score)) best = one;
  }
  return best?.region;
}

function explain(need: Need, here: readonly Host[], overcommit: Overcommit): Choice {
  const region = `region "${need.region}"`;
  const connected = here.filter((host) => host.ready);
  const ready = connected.filter((host) => !host.draining);
  if (ready.length === 0 && need.requiredRunnerId !== null) {
    const why = connected.length === 0 ? 'is not connected and ready' : 'is being drained';
    return {
      reason: `the host ${need.requiredRunnerId}, which has the snapshot that it begins with, ${why}`,
      unsatisfiable: false,
    };
  }
  if (ready.length === 0) {
    const why =
      connected.length === 0
        ? 'is connected and ready'
        : 'takes sandboxes: all that are ready are being drained';
    return { reason: `no host of ${region} ${why}`, unsatisfiable: false };
  }
  const sameArch = here.filter((host) => (need.arch ?? host.facts.arch) === host.facts.arch);
  if (sameArch.length === 0) {
    const archs = [...new Set(here.map((host) => host.facts.arch))].join(', ');
    return {
      reason: `no host of ${region} has the architecture ${need.arch} (there is: ${archs})`,
      unsatisfiable: true,
    };
  }
  if (need.gpus > 0 && !sameArch.some((host) => host.facts.gpus >= need.gpus)) {
    const most = Math.max(...sameArch.map((host) => host.facts.gpus));
    return {
      reason: `no host of ${region} has ${need.gpus} GPU${need.gpus === 1 ? '' : 's'} (the most that any has is ${most})`,
      unsatisfiable: true,
    };
  }
  const large = sameArch.filter((host) => fitsEmptyHost(need, host.facts));
  if (large.length === 0) {
    const largest = sameArch.map((host) => host.facts);
    return {
      reason:
        `no host of ${region} is large enough for ${words(need)}: the largest have ` +
        `${Math.max(...largest.map((facts) => facts.cores))} cores, ${Math.max(...largest.map((facts) => facts.mem_mib))} MiB of memory ` +
        `and ${Math.max(...largest.map((facts) => facts.disk_mib))} MiB of disk`,
      unsatisfiable: true,
    };
  }
  if (!large.some((host) => ready.includes(host))) {
    const ids = large.map((host) => host.id).sort();
    return {
      reason:
        `the only hosts of ${region} that are large enough for ${words(need)} are not connected or are being ` +
        `drained: ${ids.slice(0, 3).join(', ')}${ids.length > 3 ? ` and ${ids.length - 3} more` : ''}`,
      unsatisfiable: false,
    };
  }
  const scale = scales(need.overcommitted, overcommit);
  const available = ready.filter((host) => sameArch.includes(host)).map(free);
  const most = (what: keyof Resources): number =>
    Math.max(0, ...available.map((resources) => resources[what] * scale[what]));
  return {
    reason:
      `no host of ${region} has room for ${words(need)}: the most that is free is ` +
      `${Math.round(most('cpu') * 1000) / 1000} cores, ${Math.floor(most('mem_mib'))} MiB of memory, ` +
      `${Math.floor(most('disk_mib'))} MiB of disk and ${most('gpus')} GPUs`,
    unsatisfiable: false,
  };
}

function words(need: Need): string {
  const gpus = need.gpus > 0 ? ` and ${need.gpus} GPU${need.gpus === 1 ? '' : 's'}` : '';
  return `${need.cpu} cores, ${need.mem_mib} MiB of memory, ${need.disk_mib} MiB of disk${gpus}`;
}
