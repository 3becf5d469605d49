import { copyFile } from 'node:fs/promises';
import { join } from 'node:path';
import { linkOrCopy } from '../disk/disk-chain.ts';
import { DURABLE_FILE, SuspendImage, SUSPENSION_FILE } from './suspend-image.ts';
import { heldImagePath, holdSystemDisk } from './vm-folder.ts';

/** Links memory, device state and root image of a suspend image into another folder. */
export async function shareSuspendImage(from: string, to: string): Promise<void> {
  const [source, target] = [new SuspendImage(from), new SuspendImage(to)];
  await linkOrCopy(source.memory, target.memory);
  await linkOrCopy(source.state, target.state);
  await linkOrCopy(heldImagePath(from), heldImagePath(to)).catch(() => undefined);
  const suspension = await source.read();
  if (suspension !== undefined) await holdSystemDisk(source.hardware(suspension), to);
  for (const name of [DURABLE_FILE, SUSPENSION_FILE]) {
    await copyFile(join(from, name), join(to, name)).catch((error: NodeJS.ErrnoException) => {
      // The image is not durable yet.
      if (name !== DURABLE_FILE || error.code !== 'ENOENT') throw error;
    });
  }
}
