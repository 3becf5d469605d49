import { readFile, stat } from 'node:fs/promises';

/** A guest's memory as it lies in a process: its VMM, or a copy of that. */
export interface GuestMemory {
  pid: number;
  address: number;
  bytes: number;
}

/**
 * Where a VMM has its guest's memory: the private mapping of the file that it got as descriptor 3.
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
  return `/proc/${pid}/fd/3`;
}
