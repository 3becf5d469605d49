import { HOSTD } from '../host/hostd.ts';
import { run } from '../process/index.ts';
import { DEADLINES_MS } from '../vmm/tuning.ts';
import { guestMemoryFile } from './guest-memory.ts';
import type { GuestMemory } from './guest-memory.ts';

/**
 * Replaces the holes of the file that a VMM maps as the memory of its guest, which has not run yet, by anonymous memory. A page
 * of a hole that is written to would be allocated in the file, too.
 * @returns bytes of holes that are still mapped from the file, because they are small
 * @throws when the VMM cannot be traced. Its guest can be run all the same
 */
export async function mapHoles({ pid, address, bytes }: GuestMemory): Promise<number> {
  const place = [pid, address, bytes].map(String);
  const output = await run(HOSTD, ['holes', ...place, guestMemoryFile(pid)], {
    deadlineMs: DEADLINES_MS.mapHoles,
  });
  const rest = Number(output);
  if (!Number.isSafeInteger(rest)) throw new Error(`hostd printed ${JSON.stringify(output)}`);
  return rest;
}
