import { link, mkdir, readdir, readFile, rename, rm, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { linkOrCopy } from '../disk/disk-chain.ts';
import type { MemoryOrigin } from '../memory/guest-memory.ts';
import type { GuestSize } from '../template/machine-size.ts';
import type { Hardware, NamedCpu } from '../vmm/hardware.ts';
import type { ProcessIdentity } from '../vmm/process-identity.ts';
import type { RunningShare } from './boot-options.ts';

/** Its system disk is known by its digest. */
export interface RecordedHardware {
  deviceModel: number;
  system: string;
  cpu?: NamedCpu;
}

/** What is needed to adopt a VM, or to remove all of it. Stored outside of its jail. */
export interface VmRecord {
  cgroup: string;
  uid: number;
  shape: GuestSize;
  /** Its device model, the digest of its system disk (`heldSystemPath`) and its processor. Absent until its memory was found. */
  hardware?: RecordedHardware;
  /** Version of its VMM, with which saved memory must be resumed. Absent until it was started. */
  vmm?: string;
  /** Sizes of the disks in the guest. Absent until they are attached. */
  diskBytes?: { scratch: number; docker: number };
  /** The file of its initial memory, if it has a path. */
  memoryOrigin?: MemoryOrigin;
  /**
   * Holes of the file of its initial memory that it maps from the file, in MiB: their pages may be charged twice. Absent where it
   * maps all of them so, as VMs of releases before did.
   */
  fileHolesMib?: number;
  /** Servers of the folders of the host that its guest can mount; each has a cgroup (`shareCgroup`). */
  shares?: RunningShare[];
  /** Absent until the VMM was started. */
  process?: ProcessIdentity;
  /** Folder that it was started in, which its command line names also after the folder was renamed. */
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

/** Safe as a file name: no separators, no leading dot. */
const VM_ID = /^[A-Za-z0-9][A-Za-z0-9_-]{0,63}$/;

/**
 * The folders of the VMs of one service. Each has `vm.json` and the VMM's sockets and output, and is accessible to root only.
 * `jail/` in it is the root of the VMM, which cannot create files there. `keep/` has the disk and the suspend image of a
 * persistent sandbox, and outlives the VM.
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

  /** Folder of a disk that is removed with its VM. */
  disk(vmId: string): string {
    return join(this.path(vmId), 'disk');
  }

  /** Folder of the files that outlive the VM. */
  keep(vmId: string): string {
    return join(this.path(vmId), 'keep');
  }

  /** Whether there are files that outlive the VM. */
  async hasPersistentFiles(vmId: string): Promise<boolean> {
    const names = await readdir(this.keep(vmId)).catch(() => [] as string[]);
    return names.length > 0;
  }

  /** Creates a VM's folder with its record; `keep/` may exist already. @throws when there is a VM already */
  async create(vmId: string, record: VmRecord): Promise<void> {
    await mkdir(this.#root, { recursive: true, mode: 0o700 });
    const existing = await readdir(this.keep(vmId)).catch(() => undefined);
    if (existing === undefined) await mkdir(this.path(vmId), { mode: 0o700 });
    await writeFile(join(this.path(vmId), RECORD), JSON.stringify(record), { mode: 0o600, flag: 'wx' });
    await mkdir(this.jail(vmId), { mode: 0o755 });
  }

  async save(vmId: string, record: VmRecord): Promise<void> {
    const path = join(this.path(vmId), RECORD);
    await writeFile(`${path}.next`, JSON.stringify(record), { mode: 0o600 });
    await rename(`${path}.next`, path);
  }

  /** Undefined when there is no folder, or a crash has left one without a valid record. */
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
   * Renames the VM `from` to `to`, whose folder may exist with `keep/` but without a VM. The record is moved last: until then
   * a restarted runner finds the VM under its former name.
   * @throws when `to` has a VM already
   */
  async takeOver(from: string, to: string): Promise<void> {
    const [source, target] = [this.path(from), this.path(to)];
    try {
      // rename(2) replaces an empty folder; that of a VM always has a record.
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

  /** Removes everything but `keep/`. */
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

/** Path of the link to the system disk that a VM was booted with, or that the suspend image in `folder` was saved with. */
export function heldSystemPath(folder: string): string {
  return join(folder, 'system.squashfs');
}

/** The devices that a VM's record names. @param folder of the VM */
export function hardwareOf({ cgroup, hardware }: VmRecord, folder: string): Hardware {
  if (hardware === undefined) throw new Error(`the record of ${cgroup} names no devices`);
  return hardwareIn(folder, hardware);
}

/** @param folder with a link to the system disk */
export function hardwareIn(folder: string, { deviceModel, system, cpu }: RecordedHardware): Hardware {
  return { deviceModel, system: { path: heldSystemPath(folder), sha256: system }, ...(cpu && { cpu }) };
}

/** Links the system disk of a VM or a suspend image into a folder. */
export async function holdSystemDisk({ system }: Hardware, folder: string): Promise<void> {
  const target = heldSystemPath(folder);
  await rm(target, { force: true });
  await linkOrCopy(system.path, target);
}

/** Name of the link to the root image in the folder of a disk. */
export const ROOT_IMAGE_FILE = 'root.squashfs';

/** Path of the link to the root image below a disk in `folder`. The image cache does not evict an image with a link. */
export function heldImagePath(folder: string): string {
  return join(folder, ROOT_IMAGE_FILE);
}

/**
 * Links the root image of a disk into the disk's folder: the image cache does not evict an image with more than one link. Where
 * no link is possible, an evicted image is pulled again.
 */
export async function holdImage(image: string, keep: string): Promise<void> {
  await link(image, heldImagePath(keep)).catch((error: NodeJS.ErrnoException) => {
    if (
      error.code !== 'EEXIST' &&
      error.code !== 'EXDEV' &&
      error.code !== 'EPERM' &&
      error.code !== 'EMLINK'
    )
      throw error;
  });
}
