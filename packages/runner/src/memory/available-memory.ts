import { readFile } from 'node:fs/promises';

/** Must stay available on the host: for its kernel, the service and further writes of running guests. */
const RESERVE_BYTES = 256 * 1024 * 1024;
const KIB = 1024;

/** The host has not enough available memory for the operation. */
export class InsufficientMemoryError extends Error {
  constructor(message: string) {
    super(message);
    this.name = 'InsufficientMemoryError';
  }
}

/**
 * Checks an allocation that no cgroup limit of a tenant bounds, such as a copy of a guest's memory that others start from.
 * @param bytes upper bound of the allocation
 * @param available memory that can be allocated without swapping (MemAvailable)
 * @throws InsufficientMemoryError
 */
export function checkAvailable(what: string, bytes: number, available: number): void {
  if (available - bytes >= RESERVE_BYTES) return;
  const mib = (value: number): number => Math.ceil(value / 2 ** 20);
  throw new InsufficientMemoryError(
    `the host has not enough memory for ${what}: ${mib(available)} MiB are available, ` +
      `${mib(bytes + RESERVE_BYTES)} MiB would have to be`,
  );
}

/** Whether caches should release memory before an allocation is refused. */
export function isScarce(available: number): boolean {
  return available < 2 * RESERVE_BYTES;
}

/** MemAvailable of /proc/meminfo, in bytes. */
export async function availableMemory(): Promise<number> {
  const text = await readFile('/proc/meminfo', 'utf8');
  return Number(/^MemAvailable:\s+(\d+) kB$/m.exec(text)?.[1] ?? 0) * KIB;
}

/**
 * Resident anonymous memory of a process (RssAnon), in bytes: the size of a copy of it.
 * @param withShared also the memory that it shares (RssShmem), as that of a guest with shared folders
 */
export async function writtenMemory(pid: number, withShared = false): Promise<number> {
  const text = await readFile(`/proc/${pid}/status`, 'utf8');
  const kib = (name: string): number =>
    Number(new RegExp(`^${name}:\\s+(\\d+) kB$`, 'm').exec(text)?.[1] ?? 0);
  return (kib('RssAnon') + (withShared ? kib('RssShmem') : 0)) * KIB;
}

/** Proportional set size (PSS) of a process, in bytes. */
export async function proportionalMemory(pid: number): Promise<number> {
  const text = await readFile(`/proc/${pid}/smaps_rollup`, 'utf8');
  return Number(/^Pss:\s+(\d+) kB$/m.exec(text)?.[1] ?? 0) * KIB;
}
