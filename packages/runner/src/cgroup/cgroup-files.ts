import { readFile } from 'node:fs/promises';

/** Where the controllers that we use are mounted. */
export type CgroupLayout =
  | { version: 2; root: string }
  /** Mount points by controller; several may share one. `memory`, `cpu` and the rest may each be missing. */
  | { version: 1; roots: Partial<Record<Controller, string>> };

export type Controller = 'cpu' | 'cpuacct' | 'memory' | 'pids' | 'io';
/** Those of version 1. Its limits of disks do not hold for what is written through the page cache. */
export const CONTROLLERS: readonly Controller[] = ['cpu', 'cpuacct', 'memory', 'pids'];

/** What a micro-VM may use. */
export interface CgroupLimits {
  /** Guaranteed cores: its share when cores are scarce. */
  cpu: number;
  /** Cores it may use at most. */
  cpuMax: number;
  /** Memory of the VMM and all it caches, MiB. */
  memoryMib: number;
  pids: number;
  /** Lines of `io.max`, with version 2. Unlimited by default. */
  ioMax?: readonly string[];
}

/** Counted by the kernel. */
export interface CgroupUsage {
  /** Since the cgroup was made, microseconds of one core. */
  cpuMicros: number;
  memoryBytes: number;
}

/**
 * Finds the hierarchies in the text of /proc/self/mounts. Version 2 counts only when it has the controllers: beside
 * version 1 it is often mounted empty.
 */
export async function detectLayout(mounts?: string): Promise<CgroupLayout> {
  const text = mounts ?? (await readFile('/proc/self/mounts', 'utf8'));
  const roots: Partial<Record<Controller, string>> = {};
  let unified: string | undefined;
  for (const line of text.split('\n')) {
    const [, target, type, options] = line.split(' ');
    if (target === undefined || options === undefined) continue;
    if (type === 'cgroup2') unified ??= unescape(target);
    if (type !== 'cgroup') continue;
    for (const option of options.split(',')) {
      if (CONTROLLERS.includes(option as Controller)) roots[option as Controller] ??= unescape(target);
    }
  }
  if (roots.memory !== undefined || roots.cpu !== undefined) return { version: 1, roots };
  if (unified !== undefined) return { version: 2, root: unified };
  throw new Error('no cgroup hierarchy with the cpu and memory controllers is mounted (see cgroups(7))');
}

/** /proc/self/mounts writes spaces and the like as octal escapes. */
function unescape(text: string): string {
  return text.replaceAll(/\\([0-7]{3})/g, (_all, octal: string) =>
    String.fromCharCode(Number.parseInt(octal, 8)),
  );
}

/**
 * A VMM that has used up its quota waits for the next period, however many processors are idle: that long its guest stalls at most.
 * With the kernel's default of 100 ms a guest's timers and watchdogs notice. A shorter one costs more interrupts.
 */
const CPU_PERIOD_MICROS = 20_000;
const CPU_QUOTA_MIN_MICROS = 1_000;

/** A file of a cgroup and what is to be written to it. */
export interface ControlFile {
  controller: Controller;
  file: string;
  value: string;
}

/** Contents of the control files for `limits`, in the order in which they are to be written. A kernel may lack `OPTIONAL_FILES`. */
export function limitFiles(version: 1 | 2, limits: CgroupLimits): ControlFile[] {
  return [
    ...cpuLimit(version, limits).map((one) => ({ controller: 'cpu' as const, ...one })),
    ...unswappable(version, limits.memoryMib),
    // Of what runs in it, nothing stays alone.
    ...(version === 2 ? [{ controller: 'memory' as const, file: 'memory.oom.group', value: '1' }] : []),
    { controller: 'pids', file: 'pids.max', value: String(limits.pids) },
    // The kernel takes a line at a time.
    ...(limits.ioMax ?? []).map((line) => ({ controller: 'io' as const, file: 'io.max', value: line })),
  ];
}

/** What all cgroups of a tree have together. */
export interface TreeLimits {
  /** Their share of a busy machine beside the service and other trees, as `cpuShare` takes it. */
  cores: number;
  /** Unlimited by default: then the limits of each are bound enough. */
  memoryMib?: number;
  /** With version 2, their share of a busy disk, from 1 to 10,000. Default: 100, as that of any other group. */
  ioWeight?: number;
  /** Lines of `io.max` of each cgroup, not of the tree. */
  ioMax?: readonly string[];
}

/** As `limitFiles`, for the parent of the cgroups. */
export function treeFiles(version: 1 | 2, { cores, memoryMib, ioWeight }: TreeLimits): ControlFile[] {
  return [
    { controller: 'cpu', ...cpuShare(version, cores) },
    ...(memoryMib === undefined ? [] : unswappable(version, memoryMib)),
    ...(version === 2 && ioWeight !== undefined
      ? [{ controller: 'io' as const, file: 'io.weight', value: String(ioWeight) }]
      : []),
  ];
}

/** The properties of a unit of systemd that set these files. */
const PROPERTIES: Readonly<Record<string, string>> = {
  'cpu.weight': 'CPUWeight',
  'memory.max': 'MemoryMax',
  'memory.swap.max': 'MemorySwapMax',
  'io.weight': 'IOWeight',
};

/** `treeFiles` of version 2 as properties, `Name=value`. */
export function treeProperties(limits: TreeLimits): string[] {
  return treeFiles(2, limits).map(({ file, value }) => `${PROPERTIES[file]}=${value}`);
}

/** Memory of guests is not written to the host's disk. */
function unswappable(version: 1 | 2, mib: number): ControlFile[] {
  return [
    { controller: 'memory', ...memoryLimit(version, mib) },
    ...(version === 2 ? [{ controller: 'memory' as const, file: 'memory.swap.max', value: '0' }] : []),
  ];
}

/** Kernels without swap accounting, before 4.19, before 5.14, and without the I/O controller or weights of it. */
export const OPTIONAL_FILES: ReadonlySet<string> = new Set([
  'memory.swap.max',
  'memory.oom.group',
  'cpu.max.burst',
  'cpu.cfs_burst_us',
  'io.weight',
]);

function cpuLimit(version: 1 | 2, { cpu, cpuMax }: CgroupLimits): { file: string; value: string }[] {
  const quota = Math.max(CPU_QUOTA_MIN_MICROS, Math.round(cpuMax * CPU_PERIOD_MICROS));
  const burst = version === 2 ? 'cpu.max.burst' : 'cpu.cfs_burst_us';
  return [
    cpuShare(version, cpu),
    // The kernel refuses a quota below it.
    { file: burst, value: '0' },
    ...(version === 2
      ? [{ file: 'cpu.max', value: `${quota} ${CPU_PERIOD_MICROS}` }]
      : [
          { file: 'cpu.cfs_period_us', value: String(CPU_PERIOD_MICROS) },
          { file: 'cpu.cfs_quota_us', value: String(quota) },
        ]),
    // What one period has left may be used in later ones: a short burst, as of VMM and guest at once, does not stall the guest.
    { file: burst, value: String(quota) },
  ];
}

/**
 * The control file that says how much of a scarce processor a group gets beside its siblings, and what is to be written
 * to it: the weight of an ordinary process or group is one core.
 */
export function cpuShare(version: 1 | 2, cores: number): { file: string; value: string } {
  const clamp = (least: number, value: number, most: number): string =>
    String(Math.min(most, Math.max(least, Math.round(value))));
  return version === 2
    ? { file: 'cpu.weight', value: clamp(1, cores * 100, 10_000) }
    : { file: 'cpu.shares', value: clamp(2, cores * 1024, 262_144) };
}

/** The service's own processes get so much of a busy machine, and one core at least. */
const SERVICE_SHARE = 1 / 8;

/**
 * What all micro-VMs together weigh beside the service, whose processes lie in an ordinary group that weighs 1: so much
 * that the service gets its share while it wants it, and they get the rest.
 * @returns as `cpuShare` takes it
 */
export function weightOfAll(cores: number): number {
  const reserved = Math.max(1, cores * SERVICE_SHARE);
  return Math.max(1, cores / reserved - 1);
}

/** Memory that micro-VMs cannot have: of the service, its database and the kernel. */
const SERVICE_MEMORY_MIB = 1024;
/** Of a small machine at most this part. */
const SERVICE_MEMORY_SHARE = 1 / 4;

/**
 * Memory that all micro-VMs together may have. Their own limits do not bound that: they add up to more than the machine, as VMMs take
 * some besides their guests' and guests may be overcommitted. The kernel then ends one of theirs, and nothing of the service.
 * No more is left than the warm pool leaves available (`PRESSURE_BYTES`), so that waiting VMs are removed first.
 */
export function memoryOfAll(machineMib: number): number {
  return Math.floor(machineMib - Math.min(SERVICE_MEMORY_MIB, machineMib * SERVICE_MEMORY_SHARE));
}

/** The control file that bounds memory, and what is to be written to it. */
export function memoryLimit(version: 1 | 2, mib: number): { file: string; value: string } {
  return {
    file: version === 2 ? 'memory.max' : 'memory.limit_in_bytes',
    value: String(mib * 1024 * 1024),
  };
}

/** Processes that the kernel has killed for memory (the OOM killer), counted since a cgroup was made. */
export interface OomEvents {
  /** Processes in it that were killed, whichever limit was reached: its own, one of a parent, or the memory of the machine. */
  kills: number;
  /** How often its own limit was the reason to kill one. Undefined with version 1, which does not count that. */
  ownLimit: number | undefined;
}

/** @param text of `memory.events`, or of `memory.oom_control` with version 1 */
export function parseOomEvents(text: string): OomEvents {
  const value = (key: string): number | undefined => {
    const digits = new RegExp(`^${key} (\\d+)$`, 'm').exec(text)?.[1];
    return digits === undefined ? undefined : Number(digits);
  };
  // Kernels before 4.13 count no kills.
  return { kills: value('oom_kill') ?? 0, ownLimit: value('oom') };
}
