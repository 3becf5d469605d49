import { link, mkdir, rename, rm, stat } from 'node:fs/promises';
import { join } from 'node:path';
import { run } from '../network/command.ts';
import { EXT4_MIN_MIB } from './empty-ext4.ts';
import type { EmptyExt4Store } from './empty-ext4.ts';
import { checkQcow2, createEmptyQcow2 } from './qcow2.ts';

/** A journal needs room besides the files. */
const KEPT_MIN_MIB = 2 * EXT4_MIN_MIB;
const COPY_DEADLINE_MS = 30_000;

/** The write layer of a persistent sandbox, and the formatted empty disk below it. Both lie outside of any jail. */
export interface KeptDisk {
  layer: string;
  base: string;
}

/** Size that the guest sees of a disk of `mib`. */
export function keptDiskMib(mib: number): number {
  return Math.max(mib, KEPT_MIN_MIB);
}

/**
 * The disk in `folder`, made when it is not there. It stays usable whatever becomes of the cache: the empty disk
 * below the layer is held, too, for no other one has the same bytes for sure.
 * @param mib as `keptDiskMib` has it
 * @throws when what is there is not what was made there
 */
export async function openKeptDisk(store: EmptyExt4Store, folder: string, mib: number): Promise<KeptDisk> {
  const disk = keptDiskPaths(folder);
  const bytes = mib * 1024 * 1024;
  if (await exists(disk.layer)) {
    await checkQcow2(disk.layer, bytes);
    return disk;
  }
  await mkdir(folder, { recursive: true, mode: 0o700 });
  await rm(disk.base, { force: true });
  await linkOrCopy(await store.ensure(mib, 'journal'), disk.base);
  const partial = `${disk.layer}.partial`;
  await rm(partial, { force: true });
  await createEmptyQcow2(partial, bytes);
  await rename(partial, disk.layer);
  return disk;
}

export function keptDiskPaths(folder: string): KeptDisk {
  return { layer: join(folder, 'scratch.qcow2'), base: join(folder, 'base.ext4') };
}

export async function exists(path: string): Promise<boolean> {
  return (await stat(path).catch(() => undefined)) !== undefined;
}

/** @throws only when neither can be done */
async function linkOrCopy(source: string, target: string): Promise<void> {
  try {
    await link(source, target);
  } catch {
    // Another file system.
    const partial = `${target}.partial`;
    await run('cp', ['--sparse=always', '--reflink=auto', '--', source, partial], {
      deadlineMs: COPY_DEADLINE_MS,
    });
    await rename(partial, target);
  }
}
