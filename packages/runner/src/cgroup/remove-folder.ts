import { rmdir } from 'node:fs/promises';

/**
 * Most pauses between looks at processes that were killed. Not by the clock: after a time in which the machine stalled they have
 * not ended either. One that writes to the disk ends when that has answered, which takes seconds under load.
 */
export const REMOVE_WAIT_MS = 30_000;
const BUSY_PAUSE_MS = 10;

/** Removes a cgroup once the kernel is done with what was in it. Repeatable. */
export async function removeFolder(folder: string): Promise<void> {
  for (let waitedMs = 0; ; waitedMs += BUSY_PAUSE_MS) {
    try {
      await rmdir(folder);
      return;
    } catch (error) {
      const { code } = error as NodeJS.ErrnoException;
      if (code === 'ENOENT') return;
      // EBUSY: a process in it is ending, or the kernel is not done with one that has.
      if (code !== 'EBUSY' || waitedMs >= REMOVE_WAIT_MS) throw error;
      await new Promise((resolve) => setTimeout(resolve, BUSY_PAUSE_MS));
    }
  }
}
