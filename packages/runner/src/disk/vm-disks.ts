import { chown, rm } from 'node:fs/promises';
import { join } from 'node:path';
import { nodeName } from '../vmm/command-line.ts';
import type { BlockNode } from '../vmm/command-line.ts';
import type { DiskName } from '../vmm/device-model.ts';
import type { Vm } from '../vmm/vm.ts';
import type { EmptyExt4Store } from './empty-ext4.ts';
import { EXT4_MIN_MIB } from './empty-ext4.ts';
import { checkSpace, DiskFullError } from './check-space.ts';
import { checkedJoin } from './checked-join.ts';
import { chainPath, LAYER_FILE, linkOrCopy, protectLayer } from './disk-chain.ts';
import type { DiskChain } from './disk-chain.ts';
import { createEmptyQcow2 } from './qcow2.ts';

/** Size of the docker disk of a sandbox that has none. */
const UNUSED_DOCKER_MIB = EXT4_MIN_MIB;

/**
 * What QEMU may keep in memory of the tables of a layer: 1 MiB covers 8 GiB of disk. Its own default is 32 MiB a
 * layer, which a disk of many layers would take out of the memory of its VM.
 */
export const L2_CACHE_BYTES = { top: 8 * 1024 * 1024, below: 512 * 1024 };

export interface DiskOptions {
  /** Absolute path of the read-only root image. */
  rootImagePath: string;
  scratch: DiskChain;
  /** What is on it outlives a crash of the host, so its flushes must be durable. */
  persistent: boolean;
  /** Absent for none; the guest still has a tiny vdc. */
  dockerDataMib?: number | undefined;
  /** Absolute path of a raw file of that size that is used instead of an empty disk, and outlives the VM. */
  dockerDisk?: string | undefined;
}

/** Disks of one VM, ready to be attached. */
export interface VmDisks {
  nodes: Record<DiskName, BlockNode>;
  /** What the guest must see, for `block_resize`. */
  bytes: { scratch: number; docker: number };
}

/**
 * Which disks of a VM: `own` of its sandbox, or those that a warming-up VM has before. Both are never there at once but
 * for the moment in which one takes the other's place, and their nodes have different names.
 */
export type DiskSet = 'own' | 'warm-up';

/**
 * Makes the disks of one VM and puts them into its jail, where the VMM opens them by itself, without privileges. The graph
 * of each disk is given to the VMM node by node and nothing in a file names another file, so a guest that takes over its
 * VMM finds no path to follow.
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
  const { rootImagePath, scratch, persistent } = options;
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
            .then(() => place(dockerDisk, 'docker.disk'))
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
      root: rawNode(node('root'), await place(rootImagePath, 'root.image')),
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
 * A guest that is blocked on ENOSPC does not respond, so it gets no request.
 * @throws DiskFullError when it does
 */
export async function checkGuestHasSpace(vm: Vm): Promise<void> {
  if (await vm.isBlockedOnSpace()) throw isBlockedOnSpace();
}

export function isBlockedOnSpace(): DiskFullError {
  return new DiskFullError("the host's disk is full: the sandbox is paused until there is space");
}

/** Lets a VMM in its jail have a file of ours. @returns its path as the VMM sees it */
export async function placeInJail(jail: string, path: string, name: string): Promise<string> {
  const target = checkedJoin(jail, name);
  await rm(target, { force: true });
  await linkOrCopy(path, target);
  return `/${name}`;
}

/** Name of a scratch disk's layer in the jail. */
export function inJail(layer: string): string {
  return `scratch-${layer}`;
}

/** Whether a file of a jail is such a layer. */
export function isLayerInJail(name: string): boolean {
  return name.startsWith('scratch-') && LAYER_FILE.test(name.slice('scratch-'.length));
}

/** Name of a disk's top node; what `block_resize` takes. */
export function topNode(disk: DiskName, set: DiskSet): string {
  return `${nodeName(disk)}${set === 'own' ? '-real' : ''}`;
}

/** Name of the node that reads and writes a layer's file: tells which node of a VMM is which layer. */
export function fileNode(layer: string, set: DiskSet = 'own'): string {
  return `${set === 'own' ? 'real' : 'file'}-${layer}`;
}

/**
 * The layer that such a node is. Node names are what a VMM says, and one that was taken over says anything: only names
 * that our own layers can have come out of this, and none that leads out of a folder.
 */
export function layerOfNode(fileNode: string | undefined): string | undefined {
  const name = /^(?:file|real)-(.+)$/.exec(fileNode ?? '')?.[1];
  return name !== undefined && LAYER_FILE.test(name) ? name : undefined;
}

/** The layers of a disk, each on the one before, and only the last one written to. */
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
      // What ends with the sandbox does not outlive a crash of the host, so its flushes need not be durable.
      ...(persistent || !isTop ? {} : { cache: { 'no-flush': true } }),
      ...(isTop ? { discard: 'unmap' } : { 'read-only': true }),
      file: isTop ? { ...file, discard: 'unmap' } : { ...file, 'read-only': true, locking: 'off' },
      backing: below,
    };
  });
  return below;
}

/** A docker disk that ends with the VM: an empty one with a layer above it for what is written. */
async function emptyDockerDisk(
  store: EmptyExt4Store,
  folder: string,
  owner: { uid: number; gid: number },
  mib: number,
  node: string,
): Promise<BlockNode> {
  const layer = join(folder, 'docker.qcow2');
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
    file: { driver: 'file', filename: '/docker.qcow2', discard: 'unmap' },
    backing: rawNode(`${node}-base`, await placeInJail(folder, base, 'docker.base')),
  };
}

/** A raw file that one VM writes. Its format is fixed: nothing in it can name another file. */
function writableNode(name: string, filename: string): BlockNode {
  return {
    driver: 'raw',
    'node-name': name,
    discard: 'unmap',
    file: { driver: 'file', filename, discard: 'unmap' },
  };
}

/** A file that many VMs read at once: no locks to hold, and never written. */
function rawNode(name: string, filename: string): BlockNode {
  return {
    driver: 'raw',
    'node-name': name,
    'read-only': true,
    file: { driver: 'file', filename, 'read-only': true, locking: 'off' },
  };
}
