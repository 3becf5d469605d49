import { readFile, stat } from 'node:fs/promises';
import { MEMORY_DESCRIPTOR } from '../vmm/driver.ts';

/** A guest's memory in the address space of a process: its VMM, or a clone of it. */
export interface GuestMemory {
  pid: number;
  address: number;
  bytes: number;
}

/**
 * Finds the guest's memory in a VMM: the private mapping of the memory file that the VMM inherited.
 * @throws when there is no such mapping of that size
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

/** The memory file that a VMM inherited, whatever its path on the host. */
export function guestMemoryFile(pid: number): string {
  return `/proc/${pid}/fd/${MEMORY_DESCRIPTOR}`;
}

/** The file that the initial content of a guest's memory was copied from. Valid as long as the inode is the same. */
export interface MemoryOrigin {
  path: string;
  ino: number;
}

/**
 * The file to copy the initial content of a guest's memory from: its origin if that still exists, because a file that VMMs
 * have mapped has a page for each one that any of them has read.
 */
export async function memorySource(pid: number, origin: MemoryOrigin | undefined): Promise<string> {
  const found = origin && (await stat(origin.path).catch(() => undefined));
  return found?.ino === origin?.ino && origin !== undefined ? origin.path : guestMemoryFile(pid);
}
