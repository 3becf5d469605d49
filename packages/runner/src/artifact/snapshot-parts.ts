/**
 * A disk snapshot as parts: `snapshot.json`, `disk.json`, the layers under their names, `root.squashfs`, and `base.tar` with
 * the empty disk at the bottom, a sparse file that is mostly holes. Layers and root images that snapshots share are stored
 * once.
 */
import { chmod, link, lstat, mkdir, readFile, rm, stat, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { ARTIFACT_PARTS_MAX, type ArtifactPart } from '@releap/contract';
import { checkChain, LAYER_FILE, protectLayer, readChain } from '../disk/disk-chain.ts';
import { fileSha256InBackground } from '../disk/file-sha256.ts';
import { knownDigest, rememberDigest } from '../disk/known-digests.ts';
import { BASE_FILE, MANIFEST_FILE, readManifest } from '../disk/manifest.ts';
import { FACTS_FILE, parseFacts, ROOT_IMAGE_FILE, type SnapshotFolders } from '../machine/index.ts';
import { run } from '../process/index.ts';
import type { LocalPart } from './store-client.ts';

const BASE_PART = 'base.tar';
const TAR_DEADLINE_MS = 10 * 60_000;
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
  const names = await stage(snapshots, id, staging);
  await run(
    'tar',
    [
      '--create',
      '--sparse',
      '--format=gnu',
      // The same base gives the same bytes, and is stored once.
      '--mtime=@0',
      '--owner=0',
      '--group=0',
      '--numeric-owner',
      '--mode=0444',
      `--file=${join(staging, BASE_PART)}`,
      `--directory=${staging}`,
      BASE_FILE,
    ],
    { deadlineMs: TAR_DEADLINE_MS, signal },
  );
  const manifest = await readManifest(staging);
  const idOf = new Map(manifest?.layers.map(({ file, id: layerId }) => [file, layerId]));
  const parts: LocalPart[] = [];
  for (const name of [...names.filter((one) => one !== BASE_FILE), BASE_PART]) {
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

/** Links the files of one state of the snapshot. @returns their names */
async function stage(snapshots: SnapshotFolders, id: string, staging: string): Promise<string[]> {
  for (let left = ATTEMPTS - 1; ; left -= 1) {
    await rm(staging, { recursive: true, force: true });
    const { folder, facts } = await snapshots.open(id);
    if (facts.kind !== 'disk') throw new Error(`snapshot ${id} has a memory and cannot be moved`);
    const manifest = await readManifest(folder);
    if (manifest === undefined) throw new Error(`snapshot ${id} has no disk`);
    await mkdir(staging, { mode: 0o700 });
    const layers = manifest.layers.map(({ file }) => file);
    try {
      for (const name of [...layers, BASE_FILE, ROOT_IMAGE_FILE, FACTS_FILE])
        await link(join(folder, name), join(staging, name));
    } catch (error) {
      if ((error as NodeJS.ErrnoException).code === 'ENOENT' && left > 0) continue;
      throw error;
    }
    await writeFile(join(staging, MANIFEST_FILE), JSON.stringify(manifest), { mode: 0o600 });
    return [...layers, BASE_FILE, ROOT_IMAGE_FILE, FACTS_FILE, MANIFEST_FILE];
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
  const strange = names.find((name) => !fixed.includes(name) && !LAYER_FILE.test(name));
  const lacking = fixed.find((name) => !names.includes(name));
  if (strange !== undefined || lacking !== undefined || names.length > ARTIFACT_PARTS_MAX)
    throw new Error(`the stored snapshot ${id} is damaged: ${strange ?? lacking ?? 'it has too many parts'}`);
  const folder = await snapshots.begin(id);
  try {
    for (const part of parts) await download(part, join(folder, part.name));
    await run(
      'tar',
      [
        '--extract',
        '--no-same-owner',
        `--file=${join(folder, BASE_PART)}`,
        `--directory=${folder}`,
        BASE_FILE,
      ],
      { deadlineMs: TAR_DEADLINE_MS, signal },
    );
    await rm(join(folder, BASE_PART));
    const manifest = await readManifest(folder);
    const chain = await readChain(folder);
    // Neither a link to another file, nor a second name of one.
    const base = await lstat(join(folder, BASE_FILE));
    const isWhole = base.isFile() && base.nlink === 1 && base.size === manifest?.base.bytes;
    if (chain === undefined || !isWhole || chain.layers.some((layer) => !names.includes(layer)))
      throw new Error(`the stored snapshot ${id} is damaged: its disk is not complete`);
    await checkChain(chain);
    for (const name of [...chain.layers, BASE_FILE]) await protectLayer(join(folder, name));
    await chmod(join(folder, ROOT_IMAGE_FILE), 0o444);
    const facts = parseFacts(id, await readFile(join(folder, FACTS_FILE), 'utf8'));
    if (facts.kind !== 'disk') throw new Error(`the stored snapshot ${id} is damaged: it has a memory`);
    signal.throwIfAborted();
    await snapshots.complete(id, facts);
  } catch (error) {
    await snapshots.abandon(id);
    throw error;
  }
}
