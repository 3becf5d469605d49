import { chown, rm } from 'node:fs/promises';
import { join } from 'node:path';
import { stackFileInJail, stackFiles } from '../image/image-stack.ts';
import type { EmptyExt4Store } from './empty-ext4.ts';
import { EXT4_MIN_MIB } from './empty-ext4.ts';
import { checkSpace, DiskFullError } from './check-space.ts';
import { checkedJoin } from './checked-join.ts';
import { chainPath, LAYER_FILE, linkOrCopy, protectLayer } from './disk-chain.ts';
import type { DiskChain } from './disk-chain.ts';
import { createEmptyQcow2 } from './qcow2.ts';

/** Files of `vdc` in the jail: a layer over an empty disk, or a disk that survives the VM. */
const DOCKER_LAYER = 'docker.qcow2';
const DOCKER_DISK = 'docker.disk';

/** Size in MiB of `vdc` in a sandbox without a docker disk. */
const UNUSED_DOCKER_MIB = EXT4_MIN_MIB;

export interface DiskOptions {
  /** Absolute path of the read-only root image, or of the descriptor of a stacked one (`image/image-stack.ts`). */
  rootImagePath: string;
  /** Absolute paths of the files that the descriptor names. */
  rootParts?: readonly string[] | undefined;
  scratch: DiskChain;
  /** It must survive a crash of the host, so flushes of the guest are durable. */
  persistent: boolean;
  /** Absent for none; the guest still has a tiny `vdc`. */
  dockerDataMib?: number | undefined;
  /** Absolute path of a raw file of that size that is attached instead of an empty disk and survives the VM. */
  dockerDisk?: string | undefined;
}

/** Disks of a sandbox, which are attached after the state was loaded; vda, vdb and vdc in the guest. */
export const DISKS = ['root', 'scratch', 'docker'] as const;
export type DiskName = (typeof DISKS)[number];

/** Disks of a VM, ready to be attached: paths in its jail. No file names another one. */
export interface VmDisks {
  set: DiskSet;
  /** The read-only root image. Of a stacked one: the descriptor (VMDK), whose files are in the same folder. */
  root: { path: string; isStacked: boolean };
  /** An immutable raw file, and qcow2 layers above it. The last one is written to. */
  scratch: { base: string; layers: readonly PlacedLayer[] };
  /** An immutable raw file with a qcow2 layer above it, or a raw file that is written to. */
  docker: { base?: string; path: string };
  /** Flushes of the guest to the scratch disk must be durable. */
  persistent: boolean;
  /** Sizes that the guest sees. */
  bytes: { scratch: number; docker: number };
}

/** A layer of the scratch disk in a jail. */
export interface PlacedLayer {
  /** Name of its file in the folder of the disk. */
  layer: string;
  /** In the jail. */
  path: string;
}

/** `own`: the disks of the sandbox; the other: those of a VM that is warming up. Both exist while one replaces the other. */
export type DiskSet = 'own' | 'warm-up';

/**
 * Creates the disks of a VM and links them into its jail, where the unprivileged VMM opens them. The VMM is told of each file,
 * and no file names another one, so a guest that has taken over its VMM finds no path to follow.
 * @param folder the jail; must exist
 * @throws DiskFullError when the host's disk is full
 */
export async function makeDisks(
  store: EmptyExt4Store,
  folder: string,
  owner: { uid: number; gid: number },
  options: DiskOptions,
  set: DiskSet = 'own',
): Promise<VmDisks> {
  const { rootImagePath, rootParts, scratch, persistent } = options;
  const dockerMib = Math.max(options.dockerDataMib ?? UNUSED_DOCKER_MIB, EXT4_MIN_MIB);
  const writable = chainPath(scratch, scratch.layers.at(-1) ?? '');
  try {
    await checkSpace(folder);
    const place = async (path: string, name: string): Promise<string> =>
      await placeInJail(folder, path, name);
    const { dockerDisk } = options;
    const [docker] = await Promise.all([
      dockerDisk === undefined
        ? emptyDockerDisk(store, folder, owner, dockerMib)
        : chown(dockerDisk, owner.uid, owner.gid).then(async () => ({
            path: await place(dockerDisk, DOCKER_DISK),
          })),
      chown(writable, owner.uid, owner.gid),
    ]);
    const base = await place(chainPath(scratch, scratch.base.file), 'scratch.base');
    await Promise.all(scratch.layers.slice(0, -1).map((name) => protectLayer(chainPath(scratch, name))));
    const layers = await Promise.all(
      scratch.layers.map(async (layer) => ({
        layer,
        path: await place(chainPath(scratch, layer), inJail(layer)),
      })),
    );
    return {
      set,
      root: await placeRoot(folder, rootImagePath, rootParts),
      scratch: { base, layers },
      docker,
      persistent,
      bytes: { scratch: scratch.bytes, docker: dockerMib * 1024 * 1024 },
    };
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === 'ENOSPC') {
      throw new DiskFullError(
        `the host's disk below ${folder} is full: no space for the sandbox's write layer`,
      );
    }
    throw error;
  }
}

/** Links a file into a VMM's jail. @returns its path inside the jail */
export async function placeInJail(jail: string, path: string, name: string): Promise<string> {
  const target = checkedJoin(jail, name);
  await rm(target, { force: true });
  await linkOrCopy(path, target);
  return `/${name}`;
}

/** File name of a scratch disk's layer in the jail. */
export function inJail(layer: string): string {
  return `scratch-${layer}`;
}

/** Whether a file in a jail is a layer of the scratch disk. */
export function isLayerInJail(name: string): boolean {
  return name.startsWith('scratch-') && LAYER_FILE.test(name.slice('scratch-'.length));
}

/** Whether a file in a jail takes space for the sandbox: layers and disks of its own, not the images below them. */
export function isWritableDiskInJail(name: string): boolean {
  return isLayerInJail(name) || name === DOCKER_LAYER || name === DOCKER_DISK;
}

/** The root disk: a file, or several that the VMM joins. The descriptor names them, and no guest can write to any of them. */
async function placeRoot(
  jail: string,
  image: string,
  parts: readonly string[] | undefined,
): Promise<VmDisks['root']> {
  const path = await placeInJail(jail, image, 'root.image');
  const names = parts === undefined ? [] : stackFiles(parts.length - 1);
  await Promise.all(
    (parts ?? []).map((part, index) => placeInJail(jail, part, stackFileInJail(names[index] ?? ''))),
  );
  return { path, isStacked: parts !== undefined };
}

/** An ephemeral docker disk: an empty disk with a layer above it. */
async function emptyDockerDisk(
  store: EmptyExt4Store,
  folder: string,
  owner: { uid: number; gid: number },
  mib: number,
): Promise<VmDisks['docker']> {
  const layer = join(folder, DOCKER_LAYER);
  const [base] = await Promise.all([
    store.ensure(mib, 'plain'),
    rm(layer, { force: true })
      .then(() => createEmptyQcow2(layer, mib * 1024 * 1024))
      .then(() => chown(layer, owner.uid, owner.gid)),
  ]);
  return { base: await placeInJail(folder, base, 'docker.base'), path: `/${DOCKER_LAYER}` };
}
