import { readFile, stat } from 'node:fs/promises';
import { MEMORY_DESCRIPTOR } from '../vmm/driver.ts';

/** A guest's memory in the address space of a process: its VMM, or a clone of it. */
export interface GuestMemory {
  pid: number;
  address: number;
  bytes: number;
}

interface Mapping {
  from: number;
  to: number;
  offset: number;
  /** 0 for anonymous memory. */
  ino: number;
}

/**
 * Finds the guest's memory in a VMM: private mappings of the memory file that the VMM inherited, each at the place of its offset,
 * and anonymous memory in place of the file's holes (`mapHoles`).
 * @throws when there is no such memory of that size
 */
export async function findGuestMemory(pid: number, bytes: number): Promise<GuestMemory> {
  const { ino } = await stat(guestMemoryFile(pid));
  const mappings = parseMappings(await readFile(`/proc/${pid}/maps`, 'latin1'));
  const first = mappings.find((one) => one.ino === ino);
  const address = first === undefined ? 0 : first.from - first.offset;
  let end = address;
  for (const { from, to, offset, ino: file } of mappings) {
    const isPart = file === 0 || (file === ino && from - offset === address);
    if (isPart && from <= end && to > end) end = to;
  }
  if (first !== undefined && end - address >= bytes) return { pid, address, bytes };
  throw new Error(`process ${pid} has no guest memory of ${bytes} bytes`);
}

/** Private writable mappings, in the order of their addresses. */
function parseMappings(maps: string): Mapping[] {
  return [...maps.matchAll(/^([0-9a-f]+)-([0-9a-f]+) rw-p ([0-9a-f]+) \S+ (\d+)/gm)].map(
    ([, from = '', to = '', offset = '', ino]) => ({
      from: Number.parseInt(from, 16),
      to: Number.parseInt(to, 16),
      offset: Number.parseInt(offset, 16),
      ino: Number(ino),
    }),
  );
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
