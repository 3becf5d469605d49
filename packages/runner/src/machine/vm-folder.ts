import { link, mkdir, readdir, readFile, rename, rm, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { linkOrCopy } from '../disk/disk-chain.ts';
import type { MemoryOrigin } from '../memory/guest-memory.ts';
import type { GuestSize } from '../template/machine-size.ts';
import type { Hardware } from '../vmm/device-model.ts';
import type { ProcessIdentity } from '../vmm/process-identity.ts';

/** Of VMs that were started before records named it. */
const OLDEST_DEVICE_MODEL = 2;

/** What must be known to find a VM again, or to remove all of it. Kept outside of its jail. */
export interface VmRecord {
  cgroup: string;
  uid: number;
  shape: GuestSize;
  /** Its devices, and digest of its system disk (`heldSystemPath`). Absent: device model 2. */
  hardware?: { deviceModel: number; system?: string };
  /** Version of the VMM that it runs in: what is saved of it runs again with that one. Absent until it was started. */
  vmm?: string;
  /** Sizes that the guest sees. Absent while they are made. */
  diskBytes?: { scratch: number; docker: number };
  /** What its memory began as, if that has a name. */
  memoryOrigin?: MemoryOrigin;
  /** Absent until the VMM was started. */
  process?: ProcessIdentity;
  /** Folder that it was started in: its command line says so, also after the folder was renamed. */
  startedIn: string;
  /** Absent for a boot. `resumed`: it continues from a suspend image; `flushing`: only to write that memory's dirty pages to the disk. */
  purpose?: 'resumed' | 'flushing';
}

const RECORD = 'vm.json';
/** @throws when its VMM was not started */
export function vmmVersionOf({ cgroup, vmm }: VmRecord): string {
  if (vmm === undefined) throw new Error(`the record of ${cgroup} names no VMM`);
  return vmm;
}

/** Names that are made of what ids are made of, and never climb. */
const VM_ID = /^[A-Za-z0-9][A-Za-z0-9_-]{0,63}$/;

/**
 * The folders of the VMs of one service, one a VM: `vm.json`, the VMM's sockets and output, closed to every user but
 * root, and in it `jail/`, which is the whole world of that VMM and which it cannot change, and `keep/`, where a
 * persistent sandbox's disk and memory stay while it has no VMM.
 */
export class VmFolders {
  readonly #root: string;

  constructor(root: string) {
    this.#root = root;
  }

  path(vmId: string): string {
    if (!VM_ID.test(vmId)) throw new Error(`not an id of a VM: ${JSON.stringify(vmId)}`);
    return join(this.#root, vmId);
  }

  jail(vmId: string): string {
    return join(this.path(vmId), 'jail');
  }

  /** The files of a disk that ends with its VM. */
  disk(vmId: string): string {
    return join(this.path(vmId), 'disk');
  }

  /** What outlives the VM, if it is there. */
  keep(vmId: string): string {
    return join(this.path(vmId), 'keep');
  }

  /** Whether anything is there that outlives the VM. */
  async hasKept(vmId: string): Promise<boolean> {
    const names = await readdir(this.keep(vmId)).catch(() => [] as string[]);
    return names.length > 0;
  }

  /** Makes a VM's folder, with its record; what is kept may be there already. @throws when there is a VM already */
  async create(vmId: string, record: VmRecord): Promise<void> {
    await mkdir(this.#root, { recursive: true, mode: 0o700 });
    const kept = await readdir(this.keep(vmId)).catch(() => undefined);
    if (kept === undefined) await mkdir(this.path(vmId), { mode: 0o700 });
    await writeFile(join(this.path(vmId), RECORD), JSON.stringify(record), { mode: 0o600, flag: 'wx' });
    await mkdir(this.jail(vmId), { mode: 0o755 });
  }

  async save(vmId: string, record: VmRecord): Promise<void> {
    const path = join(this.path(vmId), RECORD);
    await writeFile(`${path}.next`, JSON.stringify(record), { mode: 0o600 });
    await rename(`${path}.next`, path);
  }

  /** undefined when there is no folder, or one that a crash left before it had a record. */
  async load(vmId: string): Promise<VmRecord | undefined> {
    try {
      return JSON.parse(await readFile(join(this.path(vmId), RECORD), 'utf8')) as VmRecord;
    } catch (error) {
      if ((error as NodeJS.ErrnoException).code === 'ENOENT' || error instanceof SyntaxError)
        return undefined;
      throw error;
    }
  }

  /**
   * Gives the VM `from` the name `to`, which may have a folder with what is kept, and no VM. Its record goes last: until then
   * the VM is `from`'s, and whoever begins anew finds it there.
   * @throws when `to` has a VM: two VMs never become one
   */
  async takeOver(from: string, to: string): Promise<void> {
    const [source, target] = [this.path(from), this.path(to)];
    try {
      // rename(2) replaces an empty folder silently; that of a VM always has a record in it.
      return await rename(source, target);
    } catch (error) {
      const { code } = error as NodeJS.ErrnoException;
      if (code !== 'ENOTEMPTY' && code !== 'EEXIST') throw error;
    }
    if ((await this.load(to)) !== undefined) throw new Error(`there is a VM ${to} already`);
    for (const name of await readdir(source)) {
      if (name !== RECORD) await rename(join(source, name), join(target, name));
    }
    await link(join(source, RECORD), join(target, RECORD));
    await rm(source, { recursive: true });
  }

  async remove(vmId: string): Promise<void> {
    await rm(this.path(vmId), { recursive: true, force: true });
  }

  /** Removes all but what is kept. */
  async clear(vmId: string): Promise<void> {
    const names = await readdir(this.path(vmId)).catch(() => [] as string[]);
    for (const name of names) {
      if (name !== 'keep') await rm(join(this.path(vmId), name), { recursive: true, force: true });
    }
  }

  async list(): Promise<string[]> {
    const names = await readdir(this.#root).catch(() => [] as string[]);
    return names.filter((name) => VM_ID.test(name));
  }
}

/** The second name of the system disk that a VM was booted with, or that a memory in `folder` was saved with. */
export function heldSystemPath(folder: string): string {
  return join(folder, 'system.squashfs');
}

/** What a VM's record says of its devices. @param folder of the VM */
export function hardwareOf({ hardware }: Pick<VmRecord, 'hardware'>, folder: string): Hardware {
  if (hardware === undefined) return { deviceModel: OLDEST_DEVICE_MODEL };
  const { deviceModel, system } = hardware;
  return {
    deviceModel,
    ...(system !== undefined && { system: { path: heldSystemPath(folder), sha256: system } }),
  };
}

/** Gives a folder the system disk that a VM or a saved memory has, under a name of its own. */
export async function holdSystemDisk({ system }: Hardware, folder: string): Promise<void> {
  if (system === undefined) return;
  const target = heldSystemPath(folder);
  await rm(target, { force: true });
  await linkOrCopy(system.path, target);
}

/** The second name of a root image that something in `folder` lies on: an image with one is not tidied away. */
export function heldImagePath(folder: string): string {
  return join(folder, 'root.squashfs');
}
