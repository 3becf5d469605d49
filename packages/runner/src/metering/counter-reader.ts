/**
 * Reads the counters of micro-VMs: CPU and memory of the control group, bytes that the VMM moved to and from storage
 * (/proc/PID/io), those of the network interface, and the size of the disks. A host has hundreds of micro-VMs and reads all
 * of them several times a minute, so the files, which the kernel makes in memory, are read synchronously: a read costs
 * microseconds, and a tenth of one through the thread pool.
 */
import { readdirSync, readFileSync, statSync } from 'node:fs';
import { join } from 'node:path';
import { readKernelFile } from '../cgroup/kernel-file.ts';
import type { CgroupTree } from '../cgroup/cgroup-tree.ts';
import { isWritableDiskInJail } from '../disk/vm-disks.ts';
import { ageMicros, isAlive, type ProcessIdentity } from '../vmm/process-identity.ts';
import type { Reading } from './counters.ts';
import type { CpuCounter } from './usage-reporter.ts';

/** Where the counters of one micro-VM are. */
export interface CounterSource {
  cgroup: string;
  process: ProcessIdentity;
  /** Absolute path of the folder with its disks. */
  jail: string;
  /** Network interface in the host's namespace, whose other end is the sandbox's. */
  networkInterface: string;
}

/** Bytes that an interface of the host has received and sent: by name. */
export type InterfaceCounters = ReadonlyMap<string, { rx: number; tx: number }>;

export interface ReadOptions {
  interfaces: InterfaceCounters;
  /** The reading before. */
  last: Reading | undefined;
  /** Whether the VMM is known to run; otherwise it is checked, because its pid may be another's. */
  isLive: boolean;
  /** Whether to measure the disks: it costs as much as everything else together. */
  withDisks: boolean;
}

const BLOCK_BYTES = 512;

export class CounterReader {
  readonly #cgroups: Pick<CgroupTree, 'usage' | 'cpuMicros'>;

  constructor(cgroups: Pick<CgroupTree, 'usage' | 'cpuMicros'>) {
    this.#cgroups = cgroups;
  }

  /** Undefined when the control group is gone. What else cannot be read, because the VMM has ended, is as in `last`. */
  read(source: CounterSource, { interfaces, last, isLive, withDisks }: ReadOptions): Reading | undefined {
    const used = this.#cgroups.usage(source.cgroup);
    if (used === undefined) return undefined;
    const life = lifeOf(source.process);
    const known = last?.life === life ? last : undefined;
    const measured = known === undefined || withDisks ? diskBytes(source.jail) : undefined;
    const io = isLive || isAlive(source.process) ? readIo(source.process.pid) : undefined;
    const network = interfaces.get(source.networkInterface);
    return {
      life,
      atMs: Date.now(),
      uptimeMs: Math.floor(Number(process.hrtime.bigint() / 1_000_000n)),
      cpuMicros: used.cpuMicros,
      memoryKib: Math.round(used.memoryBytes / 1024),
      diskBytes: measured ?? known?.diskBytes ?? 0,
      diskReadBytes: io?.read ?? known?.diskReadBytes ?? 0,
      diskWriteBytes: io?.write ?? known?.diskWriteBytes ?? 0,
      // What the host receives the sandbox has sent.
      netRxBytes: network?.tx ?? known?.netRxBytes ?? 0,
      netTxBytes: network?.rx ?? known?.netTxBytes ?? 0,
    };
  }

  cpu({ cgroup, process }: CounterSource): CpuCounter | undefined {
    const cpuMicros = this.#cgroups.cpuMicros(cgroup);
    if (cpuMicros === undefined) return undefined;
    return { incarnation: lifeOf(process), cpuMicros, ageMicros: ageMicros(process) };
  }
}

function lifeOf({ bootId, pid, startTicks }: ProcessIdentity): string {
  return `${bootId}.${pid}.${startTicks}`;
}

/** All interfaces of this network namespace, from one file. @param text of /proc/net/dev, for tests */
export function readInterfaces(text = readFileSync('/proc/net/dev', 'latin1')): InterfaceCounters {
  const counters = new Map<string, { rx: number; tx: number }>();
  for (const line of text.split('\n')) {
    const colon = line.indexOf(':');
    if (colon < 0) continue;
    const fields = line
      .slice(colon + 1)
      .trim()
      .split(/ +/);
    const [rx, tx] = [Number(fields[0]), Number(fields[8])];
    if (Number.isSafeInteger(rx) && Number.isSafeInteger(tx))
      counters.set(line.slice(0, colon).trim(), { rx, tx });
  }
  return counters;
}

/** Bytes that a process caused to be moved from and to storage (proc_pid_io(5)); undefined when it has ended. */
function readIo(pid: number): { read: number; write: number } | undefined {
  const text = readKernelFile(`/proc/${pid}/io`);
  const read = /^read_bytes: (\d+)$/m.exec(text ?? '')?.[1];
  const write = /^write_bytes: (\d+)$/m.exec(text ?? '')?.[1];
  return read === undefined || write === undefined ? undefined : { read: Number(read), write: Number(write) };
}

/** Space that the disks of a VM take, without the images below them; undefined when they are gone. */
function diskBytes(jail: string): number | undefined {
  try {
    let bytes = 0;
    for (const name of readdirSync(jail)) {
      if (isWritableDiskInJail(name)) bytes += statSync(join(jail, name)).blocks * BLOCK_BYTES;
    }
    return bytes;
  } catch {
    return undefined;
  }
}
