import { createHash, randomUUID } from 'node:crypto';
import { open, readFile, rename, stat, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { Type } from 'typebox';
import type { Static } from 'typebox';
import { Compile } from 'typebox/compile';
import { EMPTY_DISK_VERSION } from './empty-ext4.ts';
import { exclusive } from './exclusive.ts';
import { knownDigest } from './known-digests.ts';

/** The manifest of the disk in a folder. */
export const MANIFEST_FILE = 'disk.json';
const MANIFEST_VERSION = 2;
/** The formatted empty disk at the bottom of every disk. */
export const BASE_FILE = 'base.ext4';
/** Where an ext4 file system has its superblock, with its magic number and the flag of its journal (ext4(5)). */
const EXT4 = { at: 1024, bytes: 1024, magicAt: 0x38, magic: 0xef53, compatAt: 0x5c, hasJournal: 0x4 };

/** What tells a layer from all others, wherever its file lies and whatever it is called there. */
const Identity = {
  /** Drawn when the layer is made. */
  id: Type.String({ pattern: '^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$' }),
  /** Of a layer that was merged: id of the highest of those it was made of, and so of the same content. */
  through: Type.Optional(Type.String()),
};

const Digest = {
  /** Length and digest of the file; null while the layer may still change, or was not read yet. */
  bytes: Type.Union([Type.Integer(), Type.Null()]),
  sha256: Type.Union([Type.String({ pattern: '^[0-9a-f]{64}$' }), Type.Null()]),
};

const Manifest = Type.Object({
  version: Type.Literal(MANIFEST_VERSION),
  /** Size that the guest sees. */
  bytes: Type.Integer(),
  base: Type.Object({
    kind: Type.Enum(['overlay', 'journal', 'plain', 'zeros']),
    version: Type.Integer(),
    bytes: Type.Integer(),
    file: Type.Literal(BASE_FILE),
  }),
  /** Lowest first. */
  layers: Type.Array(
    Type.Object({
      ...Identity,
      file: Type.String({ pattern: '^(?:layer|flat)-\\d{1,9}\\.qcow2$' }),
      ...Digest,
    }),
  ),
});

export type DiskManifest = Static<typeof Manifest>;

const Format = Compile(Manifest);

/** Before version 2: layers had no identity but their names. */
const Former = Compile(
  Type.Object({
    layers: Type.Array(Type.String({ pattern: '^(?:layer|flat)-\\d{1,9}\\.qcow2$' })),
    bytes: Type.Integer(),
    base: Type.Optional(Type.Literal(BASE_FILE)),
  }),
);

/** The list of a disk's layers is none: of a disk that was new when its host lost its power, say. */
export class DamagedListError extends Error {
  constructor(folder: string, cause?: unknown) {
    super(`the list of the disk in ${folder} is damaged`, { cause });
    this.name = 'DamagedListError';
  }
}

/**
 * The manifest of the disk in a folder, which is upgraded there when an earlier version has written it. Undefined when
 * there is none: it is written last.
 * @throws DamagedListError
 */
export async function readManifest(folder: string): Promise<DiskManifest | undefined> {
  const text = await readFile(join(folder, MANIFEST_FILE), 'utf8').catch((error: NodeJS.ErrnoException) => {
    if (error.code === 'ENOENT') return undefined;
    throw error;
  });
  if (text === undefined) return undefined;
  let content: unknown;
  try {
    content = JSON.parse(text);
  } catch (error) {
    throw new DamagedListError(folder, error);
  }
  if (Format.Check(content)) return content;
  const version = (content as { version?: unknown } | null)?.version;
  if (typeof version === 'number' && version > MANIFEST_VERSION) {
    throw new Error(
      `the disk in ${folder} was written by a later version of Releap (manifest ${version}, here ${MANIFEST_VERSION})`,
    );
  }
  if (!Former.Check(content)) throw new DamagedListError(folder);
  return await exclusive(folder, async () => await upgrade(folder));
}

/** Replaces the manifest. @param durable it outlives a power failure */
export async function writeManifest(folder: string, manifest: DiskManifest, durable: boolean): Promise<void> {
  await exclusive(folder, async () => await replace(folder, manifest, durable));
}

/** Puts digests that have become known since into a manifest. Nothing else of it changes. */
export async function recordDigests(folder: string): Promise<void> {
  await exclusive(folder, async () => {
    const manifest = await readFile(join(folder, MANIFEST_FILE), 'utf8').then(
      (text) => JSON.parse(text) as unknown,
      () => undefined,
    );
    if (Format.Check(manifest)) await replace(folder, manifest, true);
  });
}

async function replace(folder: string, manifest: DiskManifest, durable: boolean): Promise<void> {
  const layers = manifest.layers.map((layer) => ({ ...layer, ...knownDigest(layer.id) }));
  const path = join(folder, MANIFEST_FILE);
  await writeFile(`${path}.next`, JSON.stringify({ ...manifest, layers }), { mode: 0o600, flush: durable });
  await rename(`${path}.next`, path);
}

/**
 * Gives a disk of an earlier version what it lacks. Layers get the same identity in each folder that has them, also where
 * this is repeated after a crash: it follows from the file, which has a name in each.
 */
async function upgrade(folder: string): Promise<DiskManifest> {
  const content = JSON.parse(await readFile(join(folder, MANIFEST_FILE), 'utf8')) as unknown;
  // Another reader was first.
  if (Format.Check(content)) return content;
  if (!Former.Check(content)) throw new DamagedListError(folder);
  const { bytes, layers, base } = content;
  const basePath = join(folder, BASE_FILE);
  // Of the oldest version: the lowest layer was made of all that were there, and has no backing file.
  if (base === undefined) await makeZeros(basePath, bytes);
  const manifest: DiskManifest = {
    version: MANIFEST_VERSION,
    bytes,
    base: { kind: await baseKind(basePath), version: EMPTY_DISK_VERSION, bytes, file: BASE_FILE },
    layers: await Promise.all(
      layers.map(async (file) => ({
        id: await idOfFile(join(folder, file)),
        file,
        bytes: null,
        sha256: null,
      })),
    ),
  };
  await replace(folder, manifest, true);
  return manifest;
}

async function makeZeros(path: string, bytes: number): Promise<void> {
  const zeros = await open(path, 'a', 0o444);
  try {
    await zeros.truncate(bytes);
  } finally {
    await zeros.close();
  }
}

async function baseKind(path: string): Promise<DiskManifest['base']['kind']> {
  const superblock = Buffer.alloc(EXT4.bytes);
  const file = await open(path, 'r').catch(() => undefined);
  try {
    await file?.read(superblock, 0, EXT4.bytes, EXT4.at);
  } finally {
    await file?.close();
  }
  if (superblock.readUInt16LE(EXT4.magicAt) !== EXT4.magic) return 'zeros';
  return (superblock.readUInt32LE(EXT4.compatAt) & EXT4.hasJournal) === 0 ? 'overlay' : 'journal';
}

/** An identity for a file that has had none: names of the same file have the same. */
export async function idOfFile(path: string): Promise<string> {
  const file = await stat(path, { bigint: true }).catch(() => undefined);
  if (file === undefined) return randomUUID();
  const hex = createHash('sha256').update(`${file.ino}:${file.birthtimeNs}`).digest('hex');
  // Version 8 of RFC 9562: the application's own.
  return [
    hex.slice(0, 8),
    hex.slice(8, 12),
    `8${hex.slice(13, 16)}`,
    `a${hex.slice(17, 20)}`,
    hex.slice(20, 32),
  ].join('-');
}
