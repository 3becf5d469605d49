/**
 * A snapshot as parts: `snapshot.json`, `disk.json`, the layers under their names, `root.squashfs`, and `base.tar` with the
 * empty disk at the bottom, a sparse file that is mostly holes. Layers and root images that snapshots share are stored once. A full
 * snapshot has those of its memory, too (`memory-parts.ts`).
 */
import { chmod, link, mkdir, readFile, rm, stat, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { ARTIFACT_PARTS_MAX, type ArtifactPart } from '@releap/contract';
import { checkChain, LAYER_FILE, protectLayer, readChain } from '../disk/disk-chain.ts';
import { fileSha256InBackground } from '../disk/file-sha256.ts';
import { knownDigest, rememberDigest } from '../disk/known-digests.ts';
import { BASE_FILE, MANIFEST_FILE, readManifest } from '../disk/manifest.ts';
import { FACTS_FILE, parseFacts, ROOT_IMAGE_FILE, type SnapshotFolders } from '../machine/index.ts';
import { checkMemoryParts, MEMORY_PART, memoryFiles, unpackMemory } from './memory-parts.ts';
import { packSparse, sizeOfFile, unpackSparse } from './sparse-file.ts';
import type { LocalPart } from './store-client.ts';

const BASE_PART = 'base.tar';
/** Compaction may replace layers while they are linked. */
const ATTEMPTS = 5;

/**
 * The parts of a snapshot that is here. They stay as they are in `staging`, whatever becomes of the snapshot meanwhile.
 * @param staging on the same file system; removed by the caller
 * @throws when the snapshot is not here
 */
export async function snapshotParts(
  snapshots: SnapshotFolders,
  id: string,
  staging: string,
  signal: AbortSignal,
): Promise<LocalPart[]> {
  const { names, sparse } = await stage(snapshots, id, staging);
  for (const [part, file] of sparse) {
    await packSparse(staging, part, file, signal);
    await rm(join(staging, file));
  }
  const manifest = await readManifest(staging);
  const idOf = new Map(manifest?.layers.map(({ file, id: layerId }) => [file, layerId]));
  const parts: LocalPart[] = [];
  for (const name of [...names, ...sparse.keys()]) {
    const path = join(staging, name);
    const { size } = await stat(path);
    const layer = idOf.get(name);
    const known = layer === undefined ? undefined : knownDigest(layer);
    const sha256 = known?.sha256 ?? (await fileSha256InBackground(path, signal));
    if (layer !== undefined) rememberDigest(layer, { bytes: size, sha256 });
    parts.push({ name, path, bytes: size, digest: `sha256:${sha256}` });
  }
  return parts;
}

/**
 * Links the files of one state of the snapshot.
 * @returns the names of those that are parts, and those that are mostly holes under the names of their parts
 */
async function stage(
  snapshots: SnapshotFolders,
  id: string,
  staging: string,
): Promise<{ names: string[]; sparse: Map<string, string> }> {
  for (let left = ATTEMPTS - 1; ; left -= 1) {
    await rm(staging, { recursive: true, force: true });
    const { folder, facts } = await snapshots.open(id);
    const manifest = await readManifest(folder);
    if (manifest === undefined) throw new Error(`snapshot ${id} has no disk`);
    await mkdir(staging, { mode: 0o700 });
    const layers = manifest.layers.map(({ file }) => file);
    const memory = facts.memory === undefined ? undefined : await memoryFiles(folder);
    const sparse = new Map([[BASE_PART, BASE_FILE]]);
    if (memory !== undefined) sparse.set(MEMORY_PART, memory.sparse);
    const whole = [...layers, ...(memory?.whole ?? []), ROOT_IMAGE_FILE, FACTS_FILE];
    try {
      for (const name of [...whole, ...sparse.values()]) await link(join(folder, name), join(staging, name));
    } catch (error) {
      if ((error as NodeJS.ErrnoException).code === 'ENOENT' && left > 0) continue;
      throw error;
    }
    await writeFile(join(staging, MANIFEST_FILE), JSON.stringify(manifest), { mode: 0o600 });
    return { names: [...whole, MANIFEST_FILE], sparse };
  }
}

/**
 * Makes a snapshot of its parts. Another host has uploaded them: names and contents are checked.
 * @param download writes the content of a part to a file, verified
 */
export async function placeSnapshot(
  snapshots: SnapshotFolders,
  id: string,
  parts: readonly ArtifactPart[],
  download: (part: ArtifactPart, path: string) => Promise<void>,
  signal: AbortSignal,
): Promise<void> {
  const fixed = [FACTS_FILE, MANIFEST_FILE, BASE_PART, ROOT_IMAGE_FILE];
  const names = parts.map(({ name }) => name);
  const others = names.filter((name) => !fixed.includes(name) && !LAYER_FILE.test(name));
  const strange = checkMemoryParts(others);
  const lacking = fixed.find((name) => !names.includes(name));
  if (strange !== undefined || lacking !== undefined || names.length > ARTIFACT_PARTS_MAX)
    throw new Error(`the stored snapshot ${id} is damaged: ${strange ?? lacking ?? 'it has too many parts'}`);
  const folder = await snapshots.begin(id);
  try {
    for (const part of parts) await download(part, join(folder, part.name));
    await unpackSparse(folder, BASE_PART, BASE_FILE, signal);
    const manifest = await readManifest(folder);
    const chain = await readChain(folder);
    const isWhole = (await sizeOfFile(join(folder, BASE_FILE))) === manifest?.base.bytes;
    if (chain === undefined || !isWhole || chain.layers.some((layer) => !names.includes(layer)))
      throw new Error(`the stored snapshot ${id} is damaged: its disk is not complete`);
    await checkChain(chain);
    for (const name of [...chain.layers, BASE_FILE]) await protectLayer(join(folder, name));
    await chmod(join(folder, ROOT_IMAGE_FILE), 0o444);
    const facts = parseFacts(id, await readFile(join(folder, FACTS_FILE), 'utf8'));
    if ((facts.memory !== undefined) !== others.length > 0)
      throw new Error(`the stored snapshot ${id} is damaged: its memory is not complete`);
    if (facts.memory !== undefined) await unpackMemory(folder, parts, signal);
    signal.throwIfAborted();
    await snapshots.complete(id, facts);
  } catch (error) {
    await snapshots.abandon(id);
    throw error;
  }
}
