import { chown, open, rm } from 'node:fs/promises';
import { join } from 'node:path';
import type { Vm } from './vm.ts';

const SAVE_DEADLINE_MS = 30_000;
/** The device state of our machine is 0.1 MB. */
const STATE_MAX_BYTES = 64 * 1024 * 1024;
const NAME = 'state';

/**
 * Saves the device state of a guest that stands still into `target`, a file that must not exist. The guest can go on
 * right after it, whatever came of it.
 *
 * QEMU's `xen-save-devices-state` is the one command that writes the devices and never the memory, whatever that
 * lies in; nothing of it is Xen's. A migration with `x-ignore-shared` leaves out only memory that is mapped shared,
 * and takes a thread and some round trips more.
 * @param jail what the VMM is shut into: it writes to a file that we put there and that is copied out, for a VMM that
 *   goes on must not have a way to what is kept
 * @returns bytes written
 */
export async function saveState(
  vm: Vm,
  jail: { root: string; uid: number },
  target: string,
): Promise<number> {
  const inside = join(jail.root, NAME);
  await rm(inside, { force: true });
  const file = await open(inside, 'wx+', 0o600);
  try {
    await chown(inside, jail.uid, jail.uid);
    await vm.qmp.execute(
      'xen-save-devices-state',
      { filename: `/${NAME}`, live: false },
      { deadlineMs: SAVE_DEADLINE_MS },
    );
    const { size } = await file.stat();
    if (size === 0 || size > STATE_MAX_BYTES) throw new Error(`the device state has ${size} bytes`);
    const state = Buffer.alloc(size);
    const { bytesRead } = await file.read(state, 0, size, 0);
    if (bytesRead !== size) throw new Error('the device state changed while it was read');
    const kept = await open(target, 'wx', 0o600);
    try {
      await kept.writeFile(state);
    } finally {
      await kept.close();
    }
    return size;
  } finally {
    await file.close();
    await rm(inside, { force: true });
  }
}
