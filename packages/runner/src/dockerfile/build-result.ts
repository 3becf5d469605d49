/** The result of a build, out of its micro-VM: an OCI layout of which nothing is believed but what its digests prove. */
import { createHash } from 'node:crypto';
import { open, stat } from 'node:fs/promises';
import { join } from 'node:path';
import type { Readable } from 'node:stream';
import type { BuiltImage } from '../image/dockerfile-images.ts';
import { ImageError } from '../image/image-error.ts';
import type { ImageLimits } from '../image/image-limits.ts';
import { checkConfig, checkManifest, parseManifest } from '../image/manifest.ts';
import type { Descriptor } from '../image/manifest.ts';
import type { LayerSource } from '../image/unpack-layer.ts';
import { RESULT_FOLDER } from './build-commands.ts';
import type { BuildVm } from './build-vm.ts';

const NAME = 'the result of the build';

export interface ResultOptions {
  vm: BuildVm;
  /** For layers; the caller removes it. */
  workDir: string;
  limits: Pick<ImageLimits, 'layers' | 'compressedBytes' | 'manifestBytes'>;
  /** A layer of that content that is on the host. */
  known: (diffId: string) => LayerSource | undefined;
  signal: AbortSignal;
}

/** Reads the layout; layers that the host has are not read again. @throws ImageError */
export async function readResult(options: ResultOptions): Promise<Required<Omit<BuiltImage, 'imageId'>>> {
  const { limits, known } = options;
  const index = parseManifest(await readSmall(options, 'index.json'), NAME);
  const entry = index.kind === 'index' ? index.manifests[0] : undefined;
  if (entry === undefined) throw new ImageError('failed', `${NAME} has no manifest`);
  const manifest = parseManifest(await readBlob(options, entry), NAME);
  if (manifest.kind !== 'image') throw new ImageError('failed', `${NAME} is an index`);
  checkManifest(manifest, NAME, limits);
  const { run, diffIds } = checkConfig(await readBlob(options, manifest.config), NAME);
  if (diffIds.length !== manifest.layers.length) {
    throw new ImageError(
      'invalid-image',
      `${NAME} has ${manifest.layers.length} layers and ${diffIds.length} diff_ids`,
    );
  }
  const layers: LayerSource[] = [];
  for (const [at, layer] of manifest.layers.entries()) {
    const diffId = diffIds[at] ?? '';
    const here = known(diffId);
    const isHere = here !== undefined && (await stat(here.path).catch(() => undefined)) !== undefined;
    layers.push(isHere ? here : { ...(await copyLayer(options, layer, at)), diffId });
  }
  return { digest: entry.digest, content: { layers, run } };
}

async function readSmall({ vm, limits, signal }: ResultOptions, name: string): Promise<Buffer> {
  const chunks: Buffer[] = [];
  let bytes = 0;
  for await (const chunk of vm.guest.files.read(`${RESULT_FOLDER}/${name}`, { signal })) {
    bytes += (chunk as Buffer).length;
    if (bytes > limits.manifestBytes) {
      throw new ImageError('too-large', `${NAME} has a ${name} of more than ${limits.manifestBytes} bytes`);
    }
    chunks.push(chunk as Buffer);
  }
  return Buffer.concat(chunks);
}

async function readBlob(options: ResultOptions, { digest }: Descriptor): Promise<Buffer> {
  const data = await readSmall(options, blobName(digest));
  checkDigest(createHash('sha256').update(data).digest('hex'), digest);
  return data;
}

/** Copies a layer into the work folder, under a name of ours. */
async function copyLayer(
  { vm, workDir, signal }: ResultOptions,
  { digest, size }: Descriptor,
  at: number,
): Promise<{ path: string; digest: string }> {
  const path = join(workDir, `built-${at}`);
  const hash = createHash('sha256');
  await using file = await open(path, 'wx', 0o600);
  let bytes = 0;
  const source: Readable = vm.guest.files.read(`${RESULT_FOLDER}/${blobName(digest)}`, { signal });
  for await (const chunk of source) {
    bytes += (chunk as Buffer).length;
    if (bytes > size) break;
    hash.update(chunk as Buffer);
    await file.write(chunk as Buffer);
  }
  if (bytes !== size) throw new ImageError('failed', `${NAME} has a layer that is not of its size`);
  checkDigest(hash.digest('hex'), digest);
  return { path, digest };
}

function blobName(digest: string): string {
  return `blobs/${digest.replace(':', '/')}`;
}

function checkDigest(hex: string, digest: string): void {
  if (`sha256:${hex}` !== digest)
    throw new ImageError('failed', `${NAME} is not what its digest ${digest} says`);
}
