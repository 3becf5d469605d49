import { readFile, stat } from 'node:fs/promises';
import { DESCRIPTORS } from '../vmm/places.ts';

/** A guest's memory as it lies in a process: its VMM, or a copy of that. */
export interface GuestMemory {
  pid: number;
  address: number;
  bytes: number;
}

/**
 * Where a VMM has its guest's memory: the private mapping of the file that it inherited for that.
 * @throws when it has none of that size
 */
export async function findGuestMemory(pid: number, bytes: number): Promise<GuestMemory> {
  const { ino } = await stat(guestMemoryFile(pid));
  for (const line of (await readFile(`/proc/${pid}/maps`, 'latin1')).split('\n')) {
    const found = /^([0-9a-f]+)-([0-9a-f]+) rw-p 0+ \S+ (\d+) /.exec(line);
    if (found === null || Number(found[3]) !== ino) continue;
    const address = Number.parseInt(found[1] as string, 16);
    if (Number.parseInt(found[2] as string, 16) - address === bytes) return { pid, address, bytes };
  }
  throw new Error(`process ${pid} has no guest memory of ${bytes} bytes`);
}

/** The file that a VMM's guest began with, however it is called elsewhere. */
export function guestMemoryFile(pid: number): string {
  return `/proc/${pid}/fd/${DESCRIPTORS.memory}`;
}

/** A file that is what a guest began with, too, as long as it is the same file. */
export interface MemoryOrigin {
  path: string;
  ino: number;
}

/**
 * A file to copy what a guest began with from: its origin where that is still there, for what VMMs have mapped holds
 * every page that any of them has looked at.
 */
export async function memorySource(pid: number, origin: MemoryOrigin | undefined): Promise<string> {
  const found = origin && (await stat(origin.path).catch(() => undefined));
  return found?.ino === origin?.ino && origin !== undefined ? origin.path : guestMemoryFile(pid);
}
