/** Which host takes a sandbox. Pure: numbers in, a choice or a reason out. */
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
  /** What is promised already. */
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
  arch: string;
  /** The one host that has what it begins with. */
  requiredRunnerId: string | null;
}

export type Choice = { host: Host } | { reason: string; unsatisfiable: boolean };

/** What a host may promise in all. */
export function allocatable(facts: RunnerFacts, overcommit: Overcommit): Resources {
  return {
    cpu: facts.cores * overcommit.cpu,
    mem_mib: facts.mem_mib * overcommit.mem,
    disk_mib: facts.disk_mib * overcommit.disk,
    gpus: facts.gpus,
  };
}

export function free(host: Host, overcommit: Overcommit): Resources {
  const all = allocatable(host.facts, overcommit);
  return {
    cpu: all.cpu - host.used.cpu,
    mem_mib: all.mem_mib - host.used.mem_mib,
    disk_mib: all.disk_mib - host.used.disk_mib,
    gpus: all.gpus - host.used.gpus,
  };
}

/** Sums of eighths are exact in floating point; this is for other fractions. */
const EPSILON = 1e-9;

export function fits(need: Resources, room: Resources): boolean {
  return (
    need.cpu <= room.cpu + EPSILON &&
    need.mem_mib <= room.mem_mib &&
    need.disk_mib <= room.disk_mib &&
    // A host that has lost a GPU still takes those that want none.
    (need.gpus === 0 || need.gpus <= room.gpus)
  );
}

/**
 * How far a host has promised too much of what this sandbox isEligible, with the sandbox counted in already; undefined
 * when it has not.
 */
export function shortfall(need: Resources, host: Host, overcommit: Overcommit): string | undefined {
  const left = free(host, overcommit);
  const over = (['cpu', 'mem_mib', 'disk_mib', 'gpus'] as const).filter(
    (what) => need[what] > 0 && left[what] < -EPSILON,
  );
  if (over.length === 0) return undefined;
  const unit = { cpu: 'cores', mem_mib: 'MiB of memory', disk_mib: 'MiB of disk', gpus: 'GPUs' };
  const shown = (value: number): number => Math.max(0, Math.round(value * 1000) / 1000);
  return over
    .map(
      (what) => `it needs ${shown(need[what])} ${unit[what]}, and ${shown(left[what] + need[what])} are free`,
    )
    .join('; ');
}

/** Whether the machine itself is large enough: no overcommitment makes eight cores of four. */
function fitsEmptyHost(need: Resources, facts: RunnerFacts): boolean {
  return fits(need, { cpu: facts.cores, mem_mib: facts.mem_mib, disk_mib: facts.disk_mib, gpus: facts.gpus });
}

/** Share of the scarcest thing that would be left: the larger, the better spread. */
function score(need: Need, host: Host, overcommit: Overcommit): number {
  const all = allocatable(host.facts, overcommit);
  const left = free(host, overcommit);
  return Math.min(
    (left.cpu - need.cpu) / all.cpu,
    (left.mem_mib - need.mem_mib) / all.mem_mib,
    (left.disk_mib - need.disk_mib) / all.disk_mib,
  );
}

/**
 * The ready host of the region with the most room left, or why there is none. `never`: there is a ready host,
 * and no known one of the region, however empty, could take it.
 */
export function choose(need: Need, hosts: readonly Host[], overcommit: Overcommit): Choice {
  const here = hosts.filter(
    (host) => host.region === need.region && (need.requiredRunnerId ?? host.id) === host.id,
  );
  let best: Host | undefined;
  let most = -Infinity;
  for (const host of here) {
    if (!isEligible(need, host) || !fits(need, free(host, overcommit))) continue;
    const left = score(need, host, overcommit);
    if (left > most) {
      best = host;
      most = left;
    }
  }
  return best === undefined ? explain(need, here, overcommit) : { host: best };
}

/** Whether it would be taken there if the host were empty. */
export function isEligible(need: Need, host: Host): boolean {
  return (
    host.ready &&
    !host.draining &&
    host.region === need.region &&
    (need.requiredRunnerId ?? host.id) === host.id &&
    host.facts.arch === need.arch &&
    fitsEmptyHost(need, host.facts)
  );
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
  const sameArch = here.filter((host) => host.facts.arch === need.arch);
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
  if (!sameArch.some((host) => fitsEmptyHost(need, host.facts))) {
    const largest = sameArch.map((host) => host.facts);
    return {
      reason:
        `no host of ${region} is large enough for ${words(need)}: the largest have ` +
        `${Math.max(...largest.map((facts) => facts.cores))} cores, ${Math.max(...largest.map((facts) => facts.mem_mib))} MiB of memory ` +
        `and ${Math.max(...largest.map((facts) => facts.disk_mib))} MiB of disk`,
      unsatisfiable: true,
    };
  }
  const rooms = ready.filter((host) => host.facts.arch === need.arch).map((host) => free(host, overcommit));
  const most = (pick: (room: Resources) => number): number => Math.max(0, ...rooms.map(pick));
  return {
    reason:
      `no host of ${region} has room for ${words(need)}: the most that is free is ` +
      `${Math.round(most((room) => room.cpu) * 1000) / 1000} cores, ${Math.floor(most((room) => room.mem_mib))} MiB of memory, ` +
      `${Math.floor(most((room) => room.disk_mib))} MiB of disk and ${most((room) => room.gpus)} GPUs`,
    unsatisfiable: false,
  };
}

function words(need: Need): string {
  const gpus = need.gpus > 0 ? ` and ${need.gpus} GPU${need.gpus === 1 ? '' : 's'}` : '';
  return `${need.cpu} cores, ${need.mem_mib} MiB of memory, ${need.disk_mib} MiB of disk${gpus}`;
}
