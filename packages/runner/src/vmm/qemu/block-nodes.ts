/** The block nodes of a sandbox's disks, and their names. */
import type { DiskName, DiskSet, PlacedLayer, VmDisks } from '../../disk/vm-disks.ts';
import { LAYER_FILE } from '../../disk/disk-chain.ts';
import { nodeName } from './command-line.ts';
import type { BlockNode } from './command-line.ts';

/**
 * L2 cache of each layer: 1 MiB covers 8 GiB of disk. QEMU's default is 32 MiB per layer, which for many layers would
 * exceed the memory limit of the VMM.
 */
const L2_CACHE_BYTES = { top: 8 * 1024 * 1024, below: 512 * 1024 };

/** Name of a disk's top node. Those of the two sets differ, because both exist while one replaces the other. */
export function topNodeName(disk: DiskName, set: DiskSet): string {
  return `${nodeName(disk)}${set === 'own' ? '-real' : ''}`;
}

/** Name of the protocol node of a layer's file; it contains the layer's name. */
function fileNodeName(layer: string, set: DiskSet = 'own'): string {
  return `${set === 'own' ? 'real' : 'file'}-${layer}`;
}

/** Name of the node of a layer that is added to a running VM. */
export function addedNodeName(layer: string): string {
  return `scratch-${layer}`;
}

/**
 * File name of the layer of a protocol node. Node names that a VMM reports are not trusted: the result is always a valid
 * file name of a layer, which cannot leave its folder.
 */
export function layerOfNode(fileNode: string | undefined): string | undefined {
  const name = /^(?:file|real)-(.+)$/.exec(fileNode ?? '')?.[1];
  return name !== undefined && LAYER_FILE.test(name) ? name : undefined;
}

/** The graph of each disk. */
export function diskNodes(disks: VmDisks): Record<DiskName, BlockNode> {
  const { root, docker, persistent } = disks;
  const top = (disk: DiskName): string => topNodeName(disk, disks.set);
  const { base, layers } = disks.scratch;
  const scratch = layers.reduce(
    (below: BlockNode, { layer, path }, at): BlockNode => {
      const isTop = at === layers.length - 1;
      const file = { driver: 'file', 'node-name': fileNodeName(layer, disks.set), filename: path };
      return {
        'node-name': isTop ? top('scratch') : `${top('scratch')}-${at}`,
        ...(isTop ? topLayer(file, persistent) : layerBelow(file)),
        backing: below,
      };
    },
    rawNode(`${top('scratch')}-base`, base),
  );
  return {
    root: { ...rawNode(top('root'), root.path), ...(root.isStacked && { driver: 'vmdk' }) },
    scratch,
    docker:
      docker.base === undefined
        ? writtenNode(top('docker'), docker.path)
        : {
            'node-name': top('docker'),
            ...topLayer({ driver: 'file', filename: docker.path }, false),
            backing: rawNode(`${top('docker')}-base`, docker.base),
          },
  };
}

/** A layer that is added to a running VM: a new top, whose backing node is not chosen yet, or a merged one. */
export function addedLayer(
  { layer, path }: PlacedLayer,
  place: { persistent: boolean; backing: null } | { backing: string },
): BlockNode {
  const file = { driver: 'file', 'node-name': fileNodeName(layer), filename: path };
  const node = place.backing === null ? topLayer(file, place.persistent) : layerBelow(file);
  return { 'node-name': addedNodeName(layer), ...node, backing: place.backing };
}

/** Options of a layer that is open already, for `blockdev-reopen`, which takes all of them again. */
export function layerOptions(isTop: boolean, persistent: boolean): BlockNode {
  return isTop ? topOptions(persistent) : BELOW_OPTIONS;
}

const BELOW_OPTIONS: BlockNode = {
  driver: 'qcow2',
  'l2-cache-size': L2_CACHE_BYTES.below,
  'read-only': true,
};

function topOptions(persistent: boolean): BlockNode {
  return {
    driver: 'qcow2',
    'l2-cache-size': L2_CACHE_BYTES.top,
    discard: 'unmap',
    // An ephemeral disk does not survive a crash of the host, so flushes need not be durable.
    ...(!persistent && { cache: { 'no-flush': true } }),
  };
}

function topLayer(file: BlockNode, persistent: boolean): BlockNode {
  return { ...topOptions(persistent), file: { ...file, discard: 'unmap' } };
}

/** Without locks, as many VMs read it. */
function layerBelow(file: BlockNode): BlockNode {
  return { ...BELOW_OPTIONS, file: { ...file, 'read-only': true, locking: 'off' } };
}

/** A raw file that one VM writes. The format is fixed, so no content can name another file. */
function writtenNode(name: string, filename: string): BlockNode {
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
