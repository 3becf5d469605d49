/** Which host a sandbox is placed on. Pure: numbers in, a choice or a reason out. */
import { DOCKER_CAPABILITY, DOCKERFILE_CAPABILITY, type RunnerFacts } from '@releap/contract';
import { OBJECT_STORES_CAPABILITY, VOLUMES_CAPABILITY } from '@releap/contract/runner';
import type { ClassesOfHost } from '../../fleet/classes/host-classes.ts';
import type { WantedClasses } from '../../fleet/classes/hardware-classes.ts';
import { cpuTiersAbove, hasClasses, lackingClasses } from './classes.ts';
import type { Overcommit } from './overcommit.ts';

/** Of a host that cannot mount object stores. */
export const MADE_AFTER_START =
  'set-up makes what mounts need after the first start of a host (`rlp doctor` there says whether it is made); try again in some minutes';

export interface Host {
  id: string;
  region: string;
  /** Connected and ready: may be assigned sandboxes now. */
  ready: boolean;
  /** It is being drained and accepts nothing new. */
  draining: boolean;
  facts: RunnerFacts;
  /** What its runner can do; absent or null when that is not known. */
  capabilities?: readonly string[] | null;
  /** Classes of its hardware. */
  classes?: ClassesOfHost;
  /** Allocated resources, as `allocation` counts them. */
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
  /** Classes of hardware that it asks for: it gets these or higher ones. */
  classes?: WantedClasses;
  /** The one host that has its source, which cannot be moved. */
  requiredRunnerId: string | null;
  /** The host builds its image. */
  isBuilt?: boolean;
  /** What is built is prepared for Docker. */
  isDocker?: boolean;
  /** Hosts that have the image or snapshot that it is made from. Others must fetch it. */
  holders?: readonly string[];
  /** It mounts object stores when it boots. */
  mountsStores?: boolean;
  /** The volumes that it mounts. */
  volumes?: readonly string[];
  /** Hosts that have a copy of one of them. */
  copyHolders?: readonly string[];
  /** Hosts where one of them is mounted, or has changes that are not committed: there they are seen at once, and not merged. */
  mountedOn?: readonly string[];
  /** Its guarantees may be overcommitted: see `isOvercommitted`. */
  overcommitted: boolean;
}

/** The sizes of a sandbox, and whether they are overcommitted. */
export type Demand = Pick<Need, keyof Resources | 'overcommitted'>;

/** Reservations for requests that have waited for long, by host id. See plan.ts. */
export type Reservations = ReadonlyMap<string, Resources>;
const NO_RESERVATIONS: Reservations = new Map();

export type Choice = { host: Host } | { reason: string; unsatisfiable: boolean };

/** Spot sandboxes always are; other burstable ones, and dedicated ones, if so configured. */
export function isOvercommitted(
  sandbox: { mode: 'burstable' | 'dedicated'; spot: boolean },
  overcommit: Pick<Overcommit, 'tier'>,
): boolean {
  if (sandbox.mode === 'dedicated') return overcommit.tier === 'all';
  return sandbox.spot || overcommit.tier !== 'spot';
}

/** The allocatable resources of a host. */
export function allocatable(facts: RunnerFacts): Resources {
  return { cpu: facts.cores, mem_mib: facts.mem_mib, disk_mib: facts.disk_mib, gpus: facts.gpus };
}

/**
 * What is allocated to a sandbox: its guarantees, divided by the factor if it is overcommitted. The sum over a host is at
 * most the host, so guarantees that are not overcommitted are always backed by real cores and memory.
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
export const EPSILON = 1e-6;

export function fits(asked: Resources, available: Resources): boolean {
  return (
    asked.cpu <= available.cpu + EPSILON &&
    asked.mem_mib <= available.mem_mib + EPSILON &&
    asked.disk_mib <= available.disk_mib + EPSILON &&
    // A host that has lost a GPU still accepts sandboxes without GPUs.
    (asked.gpus === 0 || asked.gpus <= available.gpus)
  );
}

/** Whether `asked` fits without using reserved capacity. */
function fitsBeside(asked: Resources, available: Resources, reserved: Resources | undefined): boolean {
  if (!fits(asked, available)) return false;
  if (reserved === undefined) return true;
  const left = plus(available, asked, -1);
  return RESOURCES.every((what) => asked[what] === 0 || left[what] + EPSILON >= reserved[what]);
}

export const RESOURCES = ['cpu', 'mem_mib', 'disk_mib', 'gpus'] as const;

/**
 * What a host lacks for this sandbox, which is allocated already; undefined when nothing. The end
 * of a sentence.
 */
export function shortfall(demand: Demand, host: Host, overcommit: Overcommit): string | undefined {
  const left = free(host);
  const over = RESOURCES.filter((what) => demand[what] > 0 && left[what] < -EPSILON);
  if (over.length === 0) return undefined;
  const scale = scales(demand.overcommitted, overcommit);
  const shown = (value: number): number => Math.max(0, Math.round(value * 1000) / 1000);
  return over
    .map((what) => {
      const available = left[what] * scale[what] + demand[what];
      return `it needs ${quantity(what, shown(demand[what]))} (${shown(available)} free)`;
    })
    .join('; ');
}

/** The overcommitment factor of this request. */
function scales(overcommitted: boolean, overcommit: Overcommit): Resources {
  if (!overcommitted) return { cpu: 1, mem_mib: 1, disk_mib: 1, gpus: 1 };
  return { cpu: overcommit.cpu, mem_mib: overcommit.mem, disk_mib: overcommit.disk, gpus: 1 };
}

/** Whether the machine itself is large enough: overcommitment does not turn four cores into eight. */
function fitsEmptyHost(need: Resources, facts: RunnerFacts): boolean {
  return fits(need, allocatable(facts));
}

/** A host that has what the sandbox is made from is chosen unless another one has so much more of its capacity left. */
const HOLDER_BONUS = 0.5;

/** The same for a copy of a volume, and for a volume that is in use there. */
const COPY_BONUS = 0.25;
const MOUNTED_BONUS = 1;

/** The remaining share of the scarcest resource: the larger, the better spread. And whether nothing must be fetched or merged. */
function score(asked: Resources, host: Host, need: Partial<Need> = {}): number {
  const { holders = [], copyHolders = [], mountedOn = [] } = need;
  const all = allocatable(host.facts);
  const left = plus(free(host), asked, -1);
  const share = Math.min(left.cpu / all.cpu, left.mem_mib / all.mem_mib, left.disk_mib / all.disk_mib);
  return (
    share +
    (holders.includes(host.id) ? HOLDER_BONUS : 0) +
    (copyHolders.includes(host.id) ? COPY_BONUS : 0) +
    (mountedOn.includes(host.id) ? MOUNTED_BONUS : 0)
  );
}

/** How good a host is: an exact CPU tier comes before a higher one, then the score counts. */
interface Rating {
  above: number;
  score: number;
}

function rate(asked: Resources, host: Host, { classes = {}, ...need }: Partial<Need>): Rating {
  return { above: cpuTiersAbove(classes, host.classes ?? {}), score: score(asked, host, need) };
}

const isBetter = (one: Rating, other: Rating): boolean =>
  one.above < other.above || (one.above === other.above && one.score > other.score);

const WORST: Rating = { above: Infinity, score: -Infinity };

/**
 * The ready host of the region with the exact CPU tier, else the nearest higher one, and of these the one with the most capacity left;
 * or why there is none. `unsatisfiable`: there is a ready host, and no known one of the region, however empty, present or absent for a
 * while, could take it.
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
  let most = WORST;
  for (const host of here) {
    if (!isEligible(need, host) || !fitsBeside(asked, free(host), reservations.get(host.id))) continue;
    const rating = rate(asked, host, need);
    if (isBetter(rating, most)) {
      best = host;
      most = rating;
    }
  }
  return best === undefined ? explain(need, here, overcommit) : { host: best };
}

/** Whether it would be eligible if the host were empty. */
export function isEligible(need: Need, host: Host): boolean {
  return host.ready && !host.draining && couldTake(need, host);
}

/** Whether it would be eligible if the host were empty and connected. */
function couldTake(need: Need, host: Host): boolean {
  return (
    host.region === need.region &&
    (need.requiredRunnerId ?? host.id) === host.id &&
    (need.arch ?? host.facts.arch) === host.facts.arch &&
    hasClasses(need.classes ?? {}, host.classes ?? {}) &&
    lackingCapability(need, host) === undefined &&
    fitsEmptyHost(need, host.facts)
  );
}

/** The end of a sentence. */
const LACKS = {
  builds: 'builds Dockerfiles (RELEAP_BUILDS is 0)',
  stores: `can mount object stores yet: ${MADE_AFTER_START}`,
  volumes: 'can mount volumes (`rlp doctor` on the host says why)',
};

/** What the host cannot do that the sandbox needs. */
function lackingCapability(
  {
    isBuilt = false,
    isDocker = false,
    mountsStores = false,
    volumes = [],
  }: Pick<Need, 'isBuilt' | 'isDocker' | 'mountsStores' | 'volumes'>,
  { capabilities }: Host,
): 'builds' | 'stores' | 'volumes' | undefined {
  const needed = isBuilt ? [DOCKERFILE_CAPABILITY, ...(isDocker ? [DOCKER_CAPABILITY] : [])] : [];
  const known = capabilities ?? [DOCKERFILE_CAPABILITY];
  if (!needed.every((capability) => known.includes(capability))) return 'builds';
  if (mountsStores && !known.includes(OBJECT_STORES_CAPABILITY)) return 'stores';
  return volumes.length > 0 && !known.includes(VOLUMES_CAPABILITY) ? 'volumes' : undefined;
}

/**
 * The best region for this need: one with a host that has the capacity now (an exact CPU tier, then the most of it), else one with a
 * host that fits it when empty, else one whose disconnected host fits it. The first of `regions` when none ever can.
 */
export function chooseRegion(
  need: Omit<Need, 'region'>,
  regions: readonly string[],
  hosts: readonly Host[],
  overcommit: Overcommit,
): string | undefined {
  let best: { region: string; rank: number; rating: Rating } | undefined;
  for (const region of regions) {
    const there = { ...need, region };
    const choice = choose(there, hosts, overcommit);
    const asked = allocation(there, overcommit);
    const candidates = 'host' in choice ? [choice.host] : hosts.filter((host) => isEligible(there, host));
    const absent = hosts.some((host) => couldTake(there, host));
    const rank = 'host' in choice ? 3 : candidates.length > 0 ? 2 : absent ? 1 : 0;
    const rating = candidates
      .map((host) => rate(asked, host, { classes: need.classes ?? {} }))
      .reduce((one, other) => (isBetter(other, one) ? other : one), WORST);
    if (best === undefined || rank > best.rank || (rank === best.rank && isBetter(rating, best.rating)))
      best = { region, rank, rating };
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
      reason: `the host ${need.requiredRunnerId}, which has its image or snapshot, ${why}`,
      unsatisfiable: false,
    };
  }
  if (ready.length === 0) {
    const why =
      connected.length === 0
        ? 'is connected and ready'
        : 'accepts sandboxes: all ready ones are being drained';
    return { reason: `no host of ${region} ${why}`, unsatisfiable: false };
  }
  const sameArch = here.filter((host) => (need.arch ?? host.facts.arch) === host.facts.arch);
  if (sameArch.length === 0) {
    const archs = [...new Set(here.map((host) => host.facts.arch))].join(', ');
    return {
      reason: `no host of ${region} has the architecture ${need.arch} (available: ${archs})`,
      unsatisfiable: true,
    };
  }
  const { classes: wanted = {} } = need;
  const inClass = sameArch.filter((host) => hasClasses(wanted, host.classes ?? {}));
  if (inClass.length === 0) {
    const found = lackingClasses(
      wanted,
      sameArch.map((host) => host.classes ?? {}),
    );
    return { reason: `no host of ${region} ${found}`, unsatisfiable: true };
  }
  const capable = inClass.filter((host) => lackingCapability(need, host) === undefined);
  if (capable.length === 0) {
    const lacking = inClass.map((host) => lackingCapability(need, host));
    const what = (['volumes', 'stores'] as const).find((one) => lacking.includes(one)) ?? 'builds';
    // A new host gets what mounts object stores a few minutes after its start.
    return { reason: `no host of ${region} ${LACKS[what]}`, unsatisfiable: what !== 'stores' };
  }
  if (need.gpus > 0 && !capable.some((host) => host.facts.gpus >= need.gpus)) {
    const most = Math.max(...capable.map((host) => host.facts.gpus));
    return {
      reason: `no host of ${region} has ${quantity('gpus', need.gpus)} (the most of any host is ${most})`,
      unsatisfiable: true,
    };
  }
  const large = capable.filter((host) => fitsEmptyHost(need, host.facts));
  if (large.length === 0) {
    const largest = capable.map((host) => host.facts);
    return {
      reason:
        `no host of ${region} is large enough for ${words(need)}: the largest have ` +
        `${quantity('cpu', Math.max(...largest.map((facts) => facts.cores)))}, ${Math.max(...largest.map((facts) => facts.mem_mib))} MiB of memory ` +
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
  const available = ready.filter((host) => capable.includes(host)).map(free);
  const most = (what: keyof Resources): number =>
    Math.max(0, ...available.map((resources) => resources[what] * scale[what]));
  return {
    reason:
      `no host of ${region} has the capacity for ${words(need)}: the most that is free is ` +
      `${quantity('cpu', Math.round(most('cpu') * 1000) / 1000)}, ${Math.floor(most('mem_mib'))} MiB of memory, ` +
      `${Math.floor(most('disk_mib'))} MiB of disk and ${quantity('gpus', most('gpus'))}`,
    unsatisfiable: false,
  };
}

function words(need: Need): string {
  const gpus = need.gpus > 0 ? ` and ${quantity('gpus', need.gpus)}` : '';
  return `${quantity('cpu', need.cpu)}, ${need.mem_mib} MiB of memory, ${need.disk_mib} MiB of disk${gpus}`;
}

/** "1 core", "2 GPUs", "512 MiB of memory". */
function quantity(what: keyof Resources, value: number): string {
  const plural = value === 1 ? '' : 's';
  const units = {
    cpu: `core${plural}`,
    mem_mib: 'MiB of memory',
    disk_mib: 'MiB of disk',
    gpus: `GPU${plural}`,
  };
  return `${value} ${units[what]}`;
}
