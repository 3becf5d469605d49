import { mkdir, readdir, rm, stat } from 'node:fs/promises';
import { join } from 'node:path';
import { linkOrCopy } from '../disk/disk-chain.ts';
import { fileSha256 } from '../disk/file-sha256.ts';
import { syncPath } from '../disk/sync-path.ts';
import type { SystemDisk } from '../vmm/hardware.ts';

const NAME = /^[0-9a-f]{64}\.squashfs$/;

/** Removes system disks that neither set-up, a VM nor a suspend image has a link to, except `used`. */
export async function removeUnusedSystemDisks(folder: string, used: SystemDisk): Promise<void> {
  for (const name of await readdir(folder)) {
    const other = join(folder, name);
    if (!NAME.test(name) || other === used.path) continue;
    if ((await stat(other)).nlink === 1) await rm(other, { force: true });
  }
}

/**
 * Links a system disk that set-up has built into a folder of the service, named by its digest: set-up replaces its own files
 * while VMs run, and a guest's memory can only be used with the disk that it was booted with.
 */
export async function placeSystemDisk(source: string, folder: string): Promise<SystemDisk> {
  await mkdir(folder, { recursive: true, mode: 0o755 });
  const sha256 = await fileSha256(source);
  const path = join(folder, `${sha256}.squashfs`);
  // Also replaces a copy that a power loss of the host has truncated.
  if ((await fileSha256(path).catch(() => undefined)) !== sha256) {
    await rm(path, { force: true });
    await linkOrCopy(source, path);
    await syncPath(path);
  }
  return { path, sha256 };
}
