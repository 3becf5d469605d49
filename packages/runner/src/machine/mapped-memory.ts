import { open, rm, stat } from 'node:fs/promises';
import { join } from 'node:path';
import { linkOrCopy } from '../disk/disk-chain.ts';
import { failpoint } from '../failpoint.ts';
import { guestMemoryFile } from '../memory/guest-memory.ts';
import type { LoadingMemory, SealedCache } from '../memory/sealed-cache.ts';
import { mapsReadOnly } from '../vmm/command-line.ts';
import type { Vmm } from '../vmm/vmm-store.ts';

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
 * A descriptor of a saved memory file for a VMM that maps it privately.
 * @param file in `keep/` of the VM
 * @param folder of the VM, which has no VMM yet
 * @param sealed for a QEMU before 8.2, which opens the file for writing, when other VMs may be restored from the same file
 * @param project of the sandbox
 */
export async function openMemory(
  file: string,
  folder: string,
  vmm: Vmm,
  sealed: SealedCache,
  project: string | undefined,
): Promise<LoadingMemory> {
  const isReadOnly = mapsReadOnly(vmm.version);
  if (!isReadOnly && (await stat(file)).nlink > 1) return await sealed.take(file, project);
  const path = mappedMemoryPath(folder);
  await rm(path, { force: true });
  // On a file system without hard links this is a copy.
  await linkOrCopy(file, path);
  failpoint('resume:held');
  const opened = await open(path, isReadOnly ? 'r' : 'r+');
  return { fd: opened.fd, ready: Promise.resolve(), [Symbol.asyncDispose]: () => opened.close() };
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
