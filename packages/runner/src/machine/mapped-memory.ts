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
 * that they only read. If anybody wrote to that file, all of them would see it. Therefore a VMM maps a file only under this
 * name, which exists before the VMM is started and until it has ended: as long as a VMM maps a file, the file has a name
 * that belongs to that VM, whatever became of the names in `keep/` and of the runner.
 */
function mappedMemoryPath(folder: string): string {
  return join(folder, 'mapped-memory');
}

/**
 * A descriptor of a saved memory file for a VMM that maps it privately.
 * @param file named by `keep/` of the VM
 * @param folder of the VM, which has no VMM yet
 * @param sealed for a VMM that opens the file for writing, which a QEMU before 8.2 does, where it is not the only one that
 *   continues from it
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
  // Where there are no links, it is a file of this VM alone.
  await linkOrCopy(file, path);
  failpoint('resume:held');
  const opened = await open(path, isReadOnly ? 'r' : 'r+');
  return { fd: opened.fd, ready: Promise.resolve(), [Symbol.asyncDispose]: () => opened.close() };
}

/**
 * Whether a pause may write what is missing into the memory file `kept`: the VM maps that very file, and every name of the
 * file is the VM's own, so no other VMM maps it and nothing else can be started from it. Then the pages that the VM has
 * written are all that is missing, and writing them changes nothing for the VM, which has its own copies of them.
 * @param pid of the VM's VMM
 * @param folder of the VM
 */
export async function isOwnMemory(pid: number, kept: string, folder: string): Promise<boolean> {
  const missing = (): undefined => undefined;
  const [mapped, ...own] = await Promise.all([
    stat(guestMemoryFile(pid)),
    stat(kept).catch(missing),
    stat(mappedMemoryPath(folder)).catch(missing),
  ]);
  const isMapped = (file: (typeof own)[number]): boolean =>
    file?.ino === mapped.ino && file.dev === mapped.dev;
  return isMapped(own[0]) && own.filter(isMapped).length === mapped.nlink;
}
