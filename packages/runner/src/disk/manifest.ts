import { createHash, randomUUID } from 'node:crypto';
import { readFile, rename, stat, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { Type } from 'typebox';
import type { Static } from 'typebox';
import { Compile } from 'typebox/compile';
import { exclusive } from './exclusive.ts';
import { knownDigest } from './known-digests.ts';
import { syncPath } from './sync-path.ts';

/** The manifest of the disk in a folder. */
export const MANIFEST_FILE = 'disk.json';
const MANIFEST_VERSION = 2;
/** The formatted empty disk at the bottom of every disk. */
export const BASE_FILE = 'base.ext4';

/** Identity of a layer, independent of its folder and file name. */
const Identity = {
  /** Random, from the creation of the layer. */
  id: Type.String({ pattern: '^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$' }),
  /** Of a merged layer: id of the highest layer that was merged into it, which has the same content. */
  through: Type.Optional(Type.String()),
};

const Digest = {
  /** Length and digest of the file; null while the layer may change or has not been read. */
  bytes: Type.Union([Type.Integer(), Type.Null()]),
  sha256: Type.Union([Type.String({ pattern: '^[0-9a-f]{64}$' }), Type.Null()]),
};

const Manifest = Type.Object({
  version: Type.Literal(MANIFEST_VERSION),
  /** Size that the guest sees. */
  bytes: Type.Integer(),
  base: Type.Object({
    kind: Type.Enum(['overlay', 'journal', 'plain']),
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

/** The manifest cannot be parsed: for example, the host lost power while the disk was new. */
export class DamagedManifestError extends Error {
  constructor(folder: string, cause?: unknown) {
    super(`the manifest of the disk in ${folder} is damaged`, { cause });
    this.name = 'DamagedManifestError';
  }
}

/**
 * Reads the manifest of a folder. Undefined when there is none: it is written last.
 * @throws DamagedManifestError
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
    throw new DamagedManifestError(folder, error);
  }
  if (Format.Check(content)) return content;
  const version = (content as { version?: unknown } | null)?.version;
  if (typeof version === 'number' && version > MANIFEST_VERSION) {
    throw new Error(
      `the disk in ${folder} was written by a later version of Releap (manifest ${version}, here ${MANIFEST_VERSION})`,
    );
  }
  throw new DamagedManifestError(folder);
}

/** Writes the manifest. @param durable with fsync, so that it survives a power failure */
export async function writeManifest(folder: string, manifest: DiskManifest, durable: boolean): Promise<void> {
  await exclusive(folder, async () => await replace(folder, manifest, durable));
}

/** Adds digests to a manifest. */
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
  // btrfs does not persist a rename with a later fsync of another file in the folder.
  if (durable) await syncPath(folder);
}

/** Derives an identity from a file: all hard links of the file have the same. */
export async function idOfFile(path: string): Promise<string> {
  const file = await stat(path, { bigint: true }).catch(() => undefined);
  if (file === undefined) return randomUUID();
  const hex = createHash('sha256').update(`${file.ino}:${file.birthtimeNs}`).digest('hex');
  // UUID version 8 (RFC 9562): application-defined.
  return [
    hex.slice(0, 8),
    hex.slice(8, 12),
    `8${hex.slice(13, 16)}`,
    `a${hex.slice(17, 20)}`,
    hex.slice(20, 32),
  ].join('-');
}
