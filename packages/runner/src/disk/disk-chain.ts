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
/** File names of layers. */
export const LAYER_FILE = /^(?:layer|flat)-\d{1,9}\.qcow2$/;
/** File names of a disk, partial files included. */
export const DISK_FILE = /^(base\.ext4|(layer|flat)-\d+\.qcow2(\.partial)?)$/;

/**
 * A writable disk in one folder: a formatted empty disk and a chain of qcow2 layers above it. All layers but the last are
 * immutable, so disks share them as hard links, and the file system counts the references.
 */
export interface DiskChain {
  folder: string;
  /** The empty disk at the bottom: its file, kind and format version. */
  base: { file: string; kind: DiskManifest['base']['kind']; version: number };
  /** Files, lowest first. The last one is written to. */
  layers: readonly string[];
  /** Identities of the layers, by file name. */
  identities: Readonly<Record<string, LayerIdentity>>;
  /** Size that the guest sees. */
  bytes: number;
}

/** Identity of a layer, independent of its file name, which differs between the folders that share it. */
export interface LayerIdentity {
  id: string;
  /** Of a merged layer: id of the highest layer that was merged into it. */
  through?: string;
  /** Digest of an immutable layer's file, once it has been read. */
  digest?: Digest;
}

/** Longer chains are compacted in the background. */
export const LAYERS_KEPT = 8;
/** Most layers of a VM's disk: each takes a file descriptor of the VMM. */
export const LAYERS_MAX = 96;

/** Size in MiB that the guest sees; persistent disks need space for a journal. */
export function diskMib(mib: number, persistent: boolean): number {
  return Math.max(mib, persistent ? JOURNALLED_MIN_MIB : EXT4_MIN_MIB);
}

/** Path of one of the chain's files. */
export function chainPath(chain: DiskChain, name: string): string {
  return join(chain.folder, name);
}

/**
 * Reads the disk of a folder. Undefined when the folder has none: the manifest is written last.
 * @throws DamagedManifestError
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

/** Writes the manifest. @param durable with fsync, so that it survives a power failure */
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

/** Identity of a layer. @throws when the chain does not have it */
export function identityOf({ identities }: Pick<DiskChain, 'identities'>, file: string): LayerIdentity {
  const identity = identities[file];
  if (identity === undefined) throw new Error(`the layer ${file} has no identity`);
  return identity;
}

/** The chain with a new layer on top, which no other disk has. Does not create its file. */
export function withNewLayer(chain: DiskChain): DiskChain {
  const file = nextLayer(chain);
  return {
    ...chain,
    layers: [...chain.layers, file],
    identities: { ...chain.identities, [file]: { id: randomUUID() } },
  };
}

/** Creates an empty disk. It links its base: the cache may evict it, and mkfs may write other bytes next time. */
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
 * Creates another disk with the same content: it shares all layers, which must be immutable from now on, and gets an
 * empty layer of its own.
 */
export async function forkChain(from: DiskChain, folder: string, durable = false): Promise<DiskChain> {
  return await growChain(await shareChain(from, folder), durable);
}

/** Adds an empty layer to a disk that no VMM has open. The layers below must be immutable from now on. */
export async function growChain(chain: DiskChain, durable = false): Promise<DiskChain> {
  const grown = withNewLayer(chain);
  await replaceLayer(grown, grown.layers.at(-1) as string, durable);
  await saveChain(grown, durable);
  return grown;
}

/** Links the files of a disk into another folder, without a manifest. Its layers must be immutable from now on. */
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

/** Makes a layer below the top readable for the VMMs that have it in their jails and writable for none of them. */
export async function protectLayer(path: string): Promise<void> {
  await chown(path, 0, 0);
  await chmod(path, 0o444);
}

/** File name for a new layer of the chain. */
function nextLayer({ layers }: DiskChain): string {
  return `layer-${Math.max(-1, ...layers.map(layerNumber)) + 1}.qcow2`;
}

/** File name of the merged layer. At least 2 layers are merged, so the name is new. */
export function mergedLayer(layers: readonly string[]): string {
  return `flat-${Math.max(0, ...layers.map(layerNumber))}.qcow2`;
}

/** Whether a file is a write layer that is newer than all layers of the chain. */
export function isNewer({ layers }: DiskChain, name: string): boolean {
  return name.startsWith('layer-') && layerNumber(name) > Math.max(-1, ...layers.map(layerNumber));
}

function layerNumber(name: string): number {
  return Number(/^(?:layer|flat)-(\d+)\./.exec(name)?.[1] ?? 0);
}

/** Creates an empty layer; replaces an existing file. */
export async function replaceLayer(chain: DiskChain, name: string, durable = false): Promise<void> {
  const path = chainPath(chain, name);
  await rm(path, { force: true });
  await createEmptyQcow2(path, chain.bytes, durable);
}

/** @throws when a file is missing or a layer's header is not one that we wrote */
export async function checkChain(chain: DiskChain): Promise<void> {
  await Promise.all(chain.layers.map((name) => checkQcow2(chainPath(chain, name), chain.bytes)));
  await stat(chainPath(chain, chain.base.file));
}

/**
 * Whether the last layer is empty. The answer is reliable only while the VM is paused: a guest's write extends the file
 * when the VMM flushes it.
 */
export async function isTopEmpty(chain: DiskChain): Promise<boolean> {
  const { size } = await stat(chainPath(chain, chain.layers.at(-1) ?? ''));
  return size === emptyQcow2Bytes(chain.bytes);
}

/** Bytes that the last layer has allocated. */
export async function topBytes(chain: DiskChain): Promise<number> {
  const top = chain.layers.at(-1);
  return top === undefined ? 0 : (await stat(chainPath(chain, top))).blocks * 512;
}

/** The chain without its last layer, which must be empty. */
export function belowTop(chain: DiskChain): DiskChain {
  return { ...chain, layers: chain.layers.slice(0, -1) };
}

/** Fsyncs the last layer. */
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

/** Links the file, or copies it to another file system. */
export async function linkOrCopy(
  source: string,
  target: string,
  deadlineMs = COPY_DEADLINE_MS,
): Promise<void> {
  try {
    await link(source, target);
  } catch {
    // On another file system.
    const partial = `${target}.partial`;
    await run('cp', ['--sparse=always', '--reflink=auto', '--', source, partial], {
      deadlineMs,
    });
    await rename(partial, target);
  }
}
