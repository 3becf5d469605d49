import { readFile } from 'node:fs/promises';

/** What must stay free on the host: for its kernel, the service and what other guests write next. */
const RESERVE_BYTES = 256 * 1024 * 1024;
const KIB = 1024;

/** The host has not the memory for what was asked of it. */
export class InsufficientMemoryError extends Error {
  constructor(message: string) {
    super(message);
    this.name = 'InsufficientMemoryError';
  }
}

/**
 * Before memory is taken that no limit of a tenant bounds: a copy of a guest that others begin with.
 * @param bytes what it may take
 * @param available what the kernel believes can be had without swapping (MemAvailable)
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

/** Whether caches should give memory back before anything asks for it. */
export function isScarce(available: number): boolean {
  return available < 2 * RESERVE_BYTES;
}

/** MemAvailable of /proc/meminfo, in bytes. */
export async function availableMemory(): Promise<number> {
  const text = await readFile('/proc/meminfo', 'utf8');
  return Number(/^MemAvailable:\s+(\d+) kB$/m.exec(text)?.[1] ?? 0) * KIB;
}

/** Memory that a process has written to and shares with no file (RssAnon), in bytes: what a copy of it takes. */
export async function writtenMemory(pid: number): Promise<number> {
  const text = await readFile(`/proc/${pid}/status`, 'utf8');
  return Number(/^RssAnon:\s+(\d+) kB$/m.exec(text)?.[1] ?? 0) * KIB;
}

/** Memory of a process, pages that it shares with others divided among them (PSS), in bytes. */
export async function proportionalMemory(pid: number): Promise<number> {
  const text = await readFile(`/proc/${pid}/smaps_rollup`, 'utf8');
  return Number(/^Pss:\s+(\d+) kB$/m.exec(text)?.[1] ?? 0) * KIB;
}
