import { chown, link, rm, statfs } from 'node:fs/promises';
import { join } from 'node:path';
import { nodeName } from '../vmm/command-line.ts';
import type { BlockNode, DiskName } from '../vmm/command-line.ts';
import type { EmptyExt4Store } from './empty-ext4.ts';
import { EXT4_MIN_MIB } from './empty-ext4.ts';
import type { KeptDisk } from './kept-disk.ts';
import { createEmptyQcow2 } from './qcow2.ts';

/** A disk is refused when the host would be left with less than this. */
const HOST_RESERVE_BYTES = 256 * 1024 * 1024;
/** Size of the docker disk of a sandbox that has none. */
const UNUSED_DOCKER_MIB = EXT4_MIN_MIB;

/** The host has no room for another sandbox's disks. */
export class DiskFullError extends Error {
  constructor(message: string) {
    super(message);
    this.name = 'DiskFullError';
  }
}

export interface DiskOptions {
  /** Absolute path of the read-only root image. */
  rootImagePath: string;
  scratchMib: number;
  /** Absent for none; the guest still has a tiny vdc. */
  dockerDataMib?: number | undefined;
  /** The scratch disk of a persistent sandbox, instead of an empty one. */
  kept?: KeptDisk;
}

/** Disks of one VM, ready to be attached. */
export interface VmDisks {
  nodes: Record<DiskName, BlockNode>;
  /** What the guest must see, for `block_resize`. */
  bytes: { scratch: number; docker: number };
}

/**
 * Makes the write layers of one VM in its jail. The graph of each disk is told to the VMM node by node and nothing
 * in a file names another file, so a guest that takes over its VMM finds no path to follow.
 * @param folder the jail; must exist
 * @param inside true: the VMM runs already and will open the files by itself from inside the jail, so that they must
 *   all lie there, and their nodes have other names than those that it has
 * @throws DiskFullError when the host's disk is full
 */
export async function makeDisks(
  store: EmptyExt4Store,
  folder: string,
  owner: { uid: number; gid: number },
  options: DiskOptions,
  inside = false,
): Promise<VmDisks> {
  const wanted = [
    { name: 'scratch' as const, mib: Math.max(options.scratchMib, EXT4_MIN_MIB) },
    { name: 'docker' as const, mib: Math.max(options.dockerDataMib ?? UNUSED_DOCKER_MIB, EXT4_MIN_MIB) },
  ];
  try {
    await checkSpace(folder);
    const layers = await Promise.all(
      wanted.map(async ({ name, mib }) => {
        if (name === 'scratch' && options.kept !== undefined) return { name, ...options.kept };
        const layer = join(folder, `${name}.qcow2`);
        const [base] = await Promise.all([
          store.ensure(mib, name === 'scratch' ? 'overlay' : 'plain'),
          rm(layer, { force: true }).then(() => createEmptyQcow2(layer, mib * 1024 * 1024)),
        ]);
        await chown(layer, owner.uid, owner.gid);
        return { name, layer, base };
      }),
    );
    const place = async (path: string, name: string): Promise<string> => {
      if (!inside) return path;
      const target = join(folder, name);
      await rm(target, { force: true });
      await link(path, target);
      return `/${name}`;
    };
    const node = (name: DiskName): string => `${nodeName(name)}${inside ? '-real' : ''}`;
    const nodes = {} as Record<DiskName, BlockNode>;
    nodes.root = rawNode(node('root'), await place(options.rootImagePath, 'root.image'));
    for (const { name, layer, base } of layers) {
      const basePath = await place(base, `${name}.base`);
      nodes[name] = {
        driver: 'qcow2',
        'node-name': node(name),
        discard: 'unmap',
        // What ends with the sandbox does not outlive a crash of the host, so its flushes need not reach any platters.
        ...(name === 'scratch' && options.kept !== undefined ? {} : { cache: { 'no-flush': true } }),
        file: { driver: 'file', filename: inside ? `/${name}.qcow2` : layer, discard: 'unmap' },
        backing: rawNode(`${node(name)}-base`, basePath),
      };
    }
    const [scratch, docker] = wanted.map(({ mib }) => mib * 1024 * 1024) as [number, number];
    return { nodes, bytes: { scratch, docker } };
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === 'ENOSPC') {
      throw new DiskFullError(
        `the host's disk below ${folder} is full: no room for the sandbox's write layer`,
      );
    }
    throw error;
  }
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

async function checkSpace(folder: string): Promise<void> {
  const { bavail, bsize, ffree, files } = await statfs(folder);
  const free = bavail * bsize;
  if (free < HOST_RESERVE_BYTES || (files > 0 && ffree === 0)) {
    throw new DiskFullError(
      `the host's disk below ${folder} is full: ${Math.floor(free / 1024 / 1024)} MiB are free, ` +
        `${HOST_RESERVE_BYTES / 1024 / 1024} MiB are the least that must remain`,
    );
  }
}
