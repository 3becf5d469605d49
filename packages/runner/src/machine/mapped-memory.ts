import { open, rm, stat, type FileHandle } from 'node:fs/promises';
import { join } from 'node:path';
import { linkOrCopy } from '../disk/disk-chain.ts';
import { failpoint } from '../failpoint.ts';
import { guestMemoryFile } from '../memory/guest-memory.ts';

/**
 * The name of the memory file that a VMM maps, in the folder of its VM.
 *
 * A VMM maps a saved memory file privately, straight from the page cache, so VMs that continue from one file share the pages
 * that they only read, and a write to that file would change the memory of all of them. Therefore a VMM maps a file only under
 * this name, which exists from before the VMM is started until it has ended: while a VMM maps a file, the file has a link
 * that belongs to that VM, whatever happens to the links in `keep/` and to the runner.
 */
function mappedMemoryPath(folder: string): string {
  return join(folder, 'mapped-memory');
}

/**
 * Opens a saved memory file for a VMM that maps it privately.
 * @param file in `keep/` of the VM
 * @param folder of the VM, which has no VMM yet
 */
export async function openMemory(file: string, folder: string): Promise<FileHandle> {
  const path = mappedMemoryPath(folder);
  await rm(path, { force: true });
  // On a file system without hard links this is a copy.
  await linkOrCopy(file, path);
  failpoint('resume:held');
  return await open(path, 'r');
}

/**
 * Whether a pause may update the memory file `saved` in place: the VM maps exactly this file, and every link to the file is the
 * VM's own, so that no other VMM maps it and nothing else can be restored from it. Then only the pages that the VM has
 * written have to be updated, and the VM does not see these writes, as it has private copies of the pages.
 * @param pid of the VM's VMM
 * @param folder of the VM
 */
export async function isOwnMemory(pid: number, saved: string, folder: string): Promise<boolean> {
  const missing = (): undefined => undefined;
  const [mapped, ...own] = await Promise.all([
    stat(guestMemoryFile(pid)),
    stat(saved).catch(missing),
    stat(mappedMemoryPath(folder)).catch(missing),
  ]);
  const isMapped = (file: (typeof own)[number]): boolean =>
    file?.ino === mapped.ino && file.dev === mapped.dev;
  return isMapped(own[0]) && own.filter(isMapped).length === mapped.nlink;
}
