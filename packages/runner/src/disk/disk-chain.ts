import { randomUUID } from 'node:crypto';
import { chmod, chown, link, mkdir, open, rename, rm, stat } from 'node:fs/promises';
import { join } from 'node:path';
import { run } from '../process/index.ts';
import type { EmptyDiskKind, EmptyExt4Store } from './empty-ext4.ts';
import { EMPTY_DISK_VERSION, EXT4_MIN_MIB } from './empty-ext4.ts';
import { BASE_FILE, readManifest, writeManifest } from './manifest.ts';
import type { DiskManifest } from './manifest.ts';
import type { Digest } from './known-digests.ts';
import { checkQcow2, createEmptyQcow2, emptyQcow2Bytes } from './qcow2.ts';

const COPY_DEADLINE_MS = 30_000;
/** A journal needs space besides the files. */
const JOURNALLED_MIN_MIB = 2 * EXT4_MIN_MIB;
/** Names of its layers. */
export const LAYER_FILE = /^(?:layer|flat)-\d{1,9}\.qcow2$/;
/** Names that a disk's files have, finished or not. */
export const DISK_FILE = /^(base\.ext4|(layer|flat)-\d+\.qcow2(\.partial)?)$/;

/**
 * A writable disk as files of one folder: a formatted empty disk, and layers of what was written on top of it. All but
 * the last layer never change again, so disks that have them in common hold the same files, each under its own name:
 * the file system counts who needs them.
 */
export interface DiskChain {
  folder: string;
  /** The empty disk: its file, and what it was made as. */
  base: { file: string; kind: DiskManifest['base']['kind']; version: number };
  /** Files, lowest first. The last one is written to. */
  layers: readonly string[];
  /** What each layer is, by its file. */
  identities: Readonly<Record<string, LayerIdentity>>;
  /** Size that the guest sees. */
  bytes: number;
}

/** What tells a layer from all others; its file has names of its own in each folder that shares it. */
export interface LayerIdentity {
  id: string;
  /** Of a layer that was merged: id of the highest of those it was made of. */
  through?: string;
  /** Of its file, once it never changes again and was read. */
  digest?: Digest;
}

/** More layers are made fewer, in the background. */
export const LAYERS_KEPT = 8;
/** A VM has so many layers at most: each takes a descriptor of its VMM. */
export const LAYERS_MAX = 96;

/** Size that the guest sees of a disk of `mib`, which is to outlive its VM or not. */
export function diskMib(mib: number, persistent: boolean): number {
  return Math.max(mib, persistent ? JOURNALLED_MIN_MIB : EXT4_MIN_MIB);
}

/** Path of one of its files. */
export function chainPath(chain: DiskChain, name: string): string {
  return join(chain.folder, name);
}

/**
 * The disk in a folder. Undefined when there is none: its list is written last.
 * @throws DamagedListError
 */
export async function readChain(folder: string): Promise<DiskChain | undefined> {
  const manifest = await readManifest(folder);
  if (manifest === undefined) return undefined;
  const { base, layers, bytes } = manifest;
  return {
    folder,
    base: { file: base.file, kind: base.kind, version: base.version },
    layers: layers.map(({ file }) => file),
    identities: Object.fromEntries(
      layers.map(({ file, id, through, ...digest }) => [
        file,
        {
          id,
          ...(through !== undefined && { through }),
          ...(digest.bytes !== null &&
            digest.sha256 !== null && { digest: { bytes: digest.bytes, sha256: digest.sha256 } }),
        },
      ]),
    ),
    bytes,
  };
}

/** Replaces the list. @param durable it outlives a power failure */
export async function saveChain(chain: DiskChain, durable = false): Promise<void> {
  const { folder, base, layers, identities, bytes } = chain;
  const manifest: DiskManifest = {
    version: 2,
    bytes,
    base: { kind: base.kind, version: base.version, bytes, file: BASE_FILE },
    layers: layers.map((file) => {
      const { id, through, digest } = identityOf({ identities }, file);
      return {
        id,
        ...(through !== undefined && { through }),
        file,
        bytes: digest?.bytes ?? null,
        sha256: digest?.sha256 ?? null,
      };
    }),
  };
  await writeManifest(folder, manifest, durable);
}

/** What a layer is. @throws when the disk does not have it */
export function identityOf({ identities }: Pick<DiskChain, 'identities'>, file: string): LayerIdentity {
  const identity = identities[file];
  if (identity === undefined) throw new Error(`the layer ${file} has no identity`);
  return identity;
}

/** The disk with one layer more on top, which is none of any other disk. Its file is not made. */
export function withNewLayer(chain: DiskChain): DiskChain {
  const file = nextLayer(chain);
  return {
    ...chain,
    layers: [...chain.layers, file],
    identities: { ...chain.identities, [file]: { id: randomUUID() } },
  };
}

/** An empty disk. Its empty base is held, too, whatever becomes of the cache: no other one has the same bytes for sure. */
export async function createChain(
  store: EmptyExt4Store,
  folder: string,
  mib: number,
  kind: EmptyDiskKind,
): Promise<DiskChain> {
  await mkdir(folder, { recursive: true, mode: 0o700 });
  const base = { file: BASE_FILE, kind, version: EMPTY_DISK_VERSION };
  const chain = withNewLayer({ folder, base, layers: [], identities: {}, bytes: mib * 1024 * 1024 });
  const durable = kind === 'journal';
  await holdBase(await store.ensure(mib, kind), chainPath(chain, base.file));
  await replaceLayer(chain, 'layer-0.qcow2', durable);
  await saveChain(chain, durable);
  return chain;
}

/**
 * The beginning of another disk with the same content: it shares all layers, which must not be written to any more, and
 * gets an empty one of its own.
 */
export async function forkChain(from: DiskChain, folder: string, durable = false): Promise<DiskChain> {
  return await growChain(await shareChain(from, folder), durable);
}

/** Puts an empty layer on top of a disk that no VMM has open: what is below must not be written to any more. */
export async function growChain(chain: DiskChain, durable = false): Promise<DiskChain> {
  const grown = withNewLayer(chain);
  await replaceLayer(grown, grown.layers.at(-1) as string, durable);
  await saveChain(grown, durable);
  return grown;
}

/** The same disk under another folder's names, without its list. Its layers must not be written to any more. */
export async function shareChain(from: DiskChain, folder: string): Promise<DiskChain> {
  await mkdir(folder, { recursive: true, mode: 0o700 });
  for (const name of [...from.layers, from.base.file]) {
    const target = join(folder, name);
    await rm(target, { force: true });
    await linkOrCopy(chainPath(from, name), target);
    await protectLayer(target);
  }
  return { ...from, folder };
}

/** A layer below the top is read by any VMM that has it in its jail, and written by none: not by the one that made it either. */
export async function protectLayer(path: string): Promise<void> {
  await chown(path, 0, 0);
  await chmod(path, 0o444);
}

/** Name of a layer that it does not have yet. */
function nextLayer({ layers }: DiskChain): string {
  return `layer-${Math.max(-1, ...layers.map(layerNumber)) + 1}.qcow2`;
}

/** Name of the layer that these together become. They are two at least, so that no disk has it already. */
export function mergedLayer(layers: readonly string[]): string {
  return `flat-${Math.max(0, ...layers.map(layerNumber))}.qcow2`;
}

function layerNumber(name: string): number {
  return Number(/^(?:layer|flat)-(\d+)\./.exec(name)?.[1] ?? 0);
}

/** An empty layer of that name, for a disk of that size, in the place of whatever is there. */
export async function replaceLayer(chain: DiskChain, name: string, durable = false): Promise<void> {
  const path = chainPath(chain, name);
  await rm(path, { force: true });
  await createEmptyQcow2(path, chain.bytes, durable);
}

/** @throws when a layer is not what was made there, or a file is missing */
export async function checkChain(chain: DiskChain): Promise<void> {
  await Promise.all(chain.layers.map((name) => checkQcow2(chainPath(chain, name), chain.bytes)));
  await stat(chainPath(chain, chain.base.file));
}

/**
 * Whether nothing was ever written to the last layer. Of a running VM this holds only while its guest is paused: whatever
 * a guest writes makes the file longer, once the VMM has flushed it.
 */
export async function isTopEmpty(chain: DiskChain): Promise<boolean> {
  const { size } = await stat(chainPath(chain, chain.layers.at(-1) ?? ''));
  return size === emptyQcow2Bytes(chain.bytes);
}

/** The disk without its last layer, which must be empty: the same content. */
export function belowTop(chain: DiskChain): DiskChain {
  return { ...chain, layers: chain.layers.slice(0, -1) };
}

/** Makes the last writes durable. */
export async function flushTop(chain: DiskChain): Promise<void> {
  const file = await open(chainPath(chain, chain.layers.at(-1) ?? ''), 'r');
  try {
    await file.datasync();
  } finally {
    await file.close();
  }
}

async function holdBase(source: string, target: string): Promise<void> {
  await rm(target, { force: true });
  await linkOrCopy(source, target);
}

/** @throws only when neither can be done */
export async function linkOrCopy(
  source: string,
  target: string,
  deadlineMs = COPY_DEADLINE_MS,
): Promise<void> {
  try {
    await link(source, target);
  } catch {
    // Another file system.
    const partial = `${target}.partial`;
    await run('cp', ['--sparse=always', '--reflink=auto', '--', source, partial], {
      deadlineMs,
    });
    await rename(partial, target);
  }
}
