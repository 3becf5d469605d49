import { readdir, readFile } from 'node:fs/promises';
import { basename, join } from 'node:path';
import { SUSPENSION_FILE } from './suspend-image.ts';
import { FACTS_FILE } from './snapshot-folder.ts';

/** Counts the suspend images and full snapshots in folders of VMs and snapshots that were captured under KVM. */
export async function countKvmImages(folders: readonly string[]): Promise<number> {
  let count = 0;
  for (const folder of folders) {
    const names = await readdir(folder, { recursive: true }).catch((error: NodeJS.ErrnoException) => {
      if (error.code === 'ENOENT') return [];
      throw error;
    });
    for (const name of names) {
      if (![SUSPENSION_FILE, FACTS_FILE].includes(basename(name))) continue;
      // A truncated file is of no image that could be resumed.
      const text = await readFile(join(folder, name), 'utf8').catch(() => '');
      if (/"accelerator":\s*"kvm"/.test(text)) count += 1;
    }
  }
  return count;
}
