import { checkChain, createChain, diskMib, forkChain } from '../disk/disk-chain.ts';
import type { EmptyExt4Store } from '../disk/empty-ext4.ts';
import type { LocalCopies } from '../disk/local-copies.ts';
import { makeDisks } from '../disk/vm-disks.ts';
import type { DiskSet, VmDisks } from '../disk/vm-disks.ts';
import type { SandboxDisks } from './boot-options.ts';
import type { VmFolders } from './vm-folder.ts';

export interface EphemeralDisksOptions {
  folders: VmFolders;
  emptyDisks: EmptyExt4Store;
  localCopies: LocalCopies;
}

/** Disks that end with their VM. */
export class EphemeralDisks {
  readonly #folders: VmFolders;
  readonly #emptyDisks: EmptyExt4Store;
  readonly #localCopies: LocalCopies;

  constructor(options: EphemeralDisksOptions) {
    this.#folders = options.folders;
    this.#emptyDisks = options.emptyDisks;
    this.#localCopies = options.localCopies;
  }

  /** @param set names the set's nodes and content; those of a sandbox by default */
  async make(
    vmId: string,
    jail: string,
    owner: { uid: number; gid: number },
    disks: SandboxDisks,
    set?: DiskSet,
  ): Promise<VmDisks> {
    const folder = this.#folders.disk(vmId);
    const scratch =
      disks.from === undefined
        ? await createChain(this.#emptyDisks, folder, diskMib(disks.scratchMib, false), 'overlay')
        : await forkChain(disks.from, folder);
    if (disks.from !== undefined) await checkChain(scratch);
    const near = async (path: string): Promise<string> => await this.#localCopies.localPath(path);
    const rootImagePath = await near(disks.rootImagePath);
    const rootParts = disks.rootParts && (await Promise.all(disks.rootParts.map(near)));
    const all = { ...disks, rootImagePath, rootParts, scratch, persistent: false };
    return await makeDisks(this.#emptyDisks, jail, owner, all, set);
  }
}
