import { chown, rm } from 'node:fs/promises';
import { join } from 'node:path';
import { stackFileInJail, stackFiles } from '../image/image-stack.ts';
import { nodeName } from '../vmm/qemu/command-line.ts';
import type { BlockNode } from '../vmm/qemu/command-line.ts';
import type { DiskName } from '../vmm/qemu/device-model.ts';
import type { Vm } from '../vmm/qemu/vm.ts';
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

/**
 * L2 cache of each layer: 1 MiB covers 8 GiB of disk. QEMU's default is 32 MiB per layer, which for many layers would
 * exceed the memory limit of the VMM.
 */
export const L2_CACHE_BYTES = { top: 8 * 1024 * 1024, below: 512 * 1024 };

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

/** Disks of a VM, ready to be attached. */
export interface VmDisks {
  nodes: Record<DiskName, BlockNode>;
  /** Size in bytes that the guest sees, for `block_resize`. */
  bytes: { scratch: number; docker: number };
}

/**
 * `own`: the disks of the sandbox; the other: those of a VM that is warming up. Their nodes have different names because
 * both exist while one replaces the other.
 */
export type DiskSet = 'own' | 'warm-up';

/**
 * Creates the disks of a VM and links them into its jail, where the unprivileged VMM opens them. The VMM gets the block
 * graph node by node, and no file names another file, so a guest that has taken over its VMM finds no path to follow.
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
    const node = (name: DiskName): string => topNode(name, set);
    const { dockerDisk } = options;
    const [docker] = await Promise.all([
      dockerDisk === undefined
        ? emptyDockerDisk(store, folder, owner, dockerMib, node('docker'))
        : chown(dockerDisk, owner.uid, owner.gid)
            .then(() => place(dockerDisk, DOCKER_DISK))
            .then((filename) => writableNode(node('docker'), filename)),
      chown(writable, owner.uid, owner.gid),
    ]);
    const base = await place(chainPath(scratch, scratch.base.file), 'scratch.base');
    await Promise.all(scratch.layers.slice(0, -1).map((name) => protectLayer(chainPath(scratch, name))));
    const layers = await Promise.all(
      scratch.layers.map(async (name) => ({
        filename: await place(chainPath(scratch, name), inJail(name)),
        node: fileNode(name, set),
      })),
    );
    const nodes: Record<DiskName, BlockNode> = {
      root: await placeRoot(folder, node('root'), rootImagePath, rootParts),
      scratch: chainNode(node('scratch'), layers, base, persistent),
      docker,
    };
    return { nodes, bytes: { scratch: scratch.bytes, docker: dockerMib * 1024 * 1024 } };
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === 'ENOSPC') {
      throw new DiskFullError(
        `the host's disk below ${folder} is full: no space for the sandbox's write layer`,
      );
    }
    throw error;
  }
}

/**
 * A guest that is blocked on ENOSPC does not respond, so it must not get a request.
 * @throws DiskFullError when the guest is blocked
 */
export async function checkGuestHasSpace(vm: Vm): Promise<void> {
  if (await vm.isBlockedOnSpace()) throw isBlockedOnSpace();
}

export function isBlockedOnSpace(): DiskFullError {
  return new DiskFullError("the host's disk is full: the sandbox is paused until there is space");
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

/** Name of a disk's top node, for `block_resize`. */
export function topNode(disk: DiskName, set: DiskSet): string {
  return `${nodeName(disk)}${set === 'own' ? '-real' : ''}`;
}

/** Name of the protocol node of a layer's file; it contains the layer's name. */
export function fileNode(layer: string, set: DiskSet = 'own'): string {
  return `${set === 'own' ? 'real' : 'file'}-${layer}`;
}

/**
 * File name of the layer of a protocol node. Node names that a VMM reports are not trusted: the result is always a valid
 * file name of a layer, which cannot leave its folder.
 */
export function layerOfNode(fileNode: string | undefined): string | undefined {
  const name = /^(?:file|real)-(.+)$/.exec(fileNode ?? '')?.[1];
  return name !== undefined && LAYER_FILE.test(name) ? name : undefined;
}

/** The nodes of a disk's layers, each with the one before as backing; only the last one is writable. */
function chainNode(
  name: string,
  layers: readonly { filename: string; node: string }[],
  base: string,
  persistent: boolean,
): BlockNode {
  let below = rawNode(`${name}-base`, base);
  layers.forEach(({ filename, node }, at) => {
    const isTop = at === layers.length - 1;
    const file = { driver: 'file', 'node-name': node, filename };
    below = {
      driver: 'qcow2',
      'node-name': isTop ? name : `${name}-${at}`,
      'l2-cache-size': isTop ? L2_CACHE_BYTES.top : L2_CACHE_BYTES.below,
      // An ephemeral disk does not survive a crash of the host, so flushes need not be durable.
      ...(persistent || !isTop ? {} : { cache: { 'no-flush': true } }),
      ...(isTop ? { discard: 'unmap' } : { 'read-only': true }),
      file: isTop ? { ...file, discard: 'unmap' } : { ...file, 'read-only': true, locking: 'off' },
      backing: below,
    };
  });
  return below;
}

/** The root disk: a file, or several that QEMU joins. The descriptor names them, and no guest can write to any of them. */
async function placeRoot(
  jail: string,
  node: string,
  path: string,
  parts: readonly string[] | undefined,
): Promise<BlockNode> {
  const filename = await placeInJail(jail, path, 'root.image');
  if (parts === undefined) return rawNode(node, filename);
  const names = stackFiles(parts.length - 1);
  await Promise.all(parts.map((part, index) => placeInJail(jail, part, stackFileInJail(names[index] ?? ''))));
  return { ...rawNode(node, filename), driver: 'vmdk' };
}

/** An ephemeral docker disk: an empty disk with a layer above it. */
async function emptyDockerDisk(
  store: EmptyExt4Store,
  folder: string,
  owner: { uid: number; gid: number },
  mib: number,
  node: string,
): Promise<BlockNode> {
  const layer = join(folder, DOCKER_LAYER);
  const [base] = await Promise.all([
    store.ensure(mib, 'plain'),
    rm(layer, { force: true })
      .then(() => createEmptyQcow2(layer, mib * 1024 * 1024))
      .then(() => chown(layer, owner.uid, owner.gid)),
  ]);
  return {
    driver: 'qcow2',
    'node-name': node,
    'l2-cache-size': L2_CACHE_BYTES.top,
    discard: 'unmap',
    cache: { 'no-flush': true },
    file: { driver: 'file', filename: `/${DOCKER_LAYER}`, discard: 'unmap' },
    backing: rawNode(`${node}-base`, await placeInJail(folder, base, 'docker.base')),
  };
}

/** A raw file that one VM writes. The format is fixed, so no content can name another file. */
function writableNode(name: string, filename: string): BlockNode {
  return {
    driver: 'raw',
    'node-name': name,
    discard: 'unmap',
    file: { driver: 'file', filename, discard: 'unmap' },
  };
}

/** An immutable file that many VMs read: without locks. */
function rawNode(name: string, filename: string): BlockNode {
  return {
    driver: 'raw',
    'node-name': name,
    'read-only': true,
    file: { driver: 'file', filename, 'read-only': true, locking: 'off' },
  };
}
