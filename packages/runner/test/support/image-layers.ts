/** Layers and images for tests, made with tools that the code under test does not use. */
import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { createHash } from 'node:crypto';
import { mkdir, mkdtemp, rm, writeFile } from 'node:fs/promises';
import { lstatSync, readFileSync, readdirSync, readlinkSync } from 'node:fs';
import os from 'node:os';
import path from 'node:path';
import { buffer } from 'node:stream/consumers';
import { gzipSync, zstdCompressSync } from 'node:zlib';
import { pack } from 'tar-stream';
import type { Header } from 'tar-stream';
import { DEFAULT_IMAGE_LIMITS } from '../../src/image/image-limits.ts';
import type { ImageLimits } from '../../src/image/image-limits.ts';
import { mergeLayers } from '../../src/image/merge-layers.ts';
import type { LayerSource, MergedImage } from '../../src/image/merge-layers.ts';

export type Item = Partial<Header> & { name: string; content?: string | Buffer };

/** A folder that is gone after the test, whatever happens. */
export async function temporaryFolder(): Promise<AsyncDisposable & { path: string }> {
  const dir = await mkdtemp(path.join(os.tmpdir(), 'releap-image-test-'));
  return { path: dir, [Symbol.asyncDispose]: async () => await rm(dir, { recursive: true, force: true }) };
}

export async function tarOf(items: readonly Item[]): Promise<Buffer> {
  const archive = pack();
  for (const { content, ...header } of items) {
    archive.entry({ mtime: new Date(1_000_000_000_000), uid: 0, gid: 0, ...header }, content ?? '');
  }
  archive.finalize();
  return await buffer(archive);
}

export function sha256(data: Buffer | string): string {
  return `sha256:${createHash('sha256').update(data).digest('hex')}`;
}

/** Writes layers as files and merges them. */
export async function mergeTars(
  dir: string,
  tars: readonly Buffer[],
  limits: Partial<ImageLimits> = {},
): Promise<MergedImage> {
  const layers: LayerSource[] = [];
  for (const [index, tar] of tars.entries()) {
    const file = path.join(dir, `blob-${index}`);
    await writeFile(file, tar);
    layers.push({ path: file, digest: sha256(tar), diffId: sha256(tar) });
  }
  return await mergeLayers(layers, { workDir: dir, limits: { ...DEFAULT_IMAGE_LIMITS, ...limits } });
}

export type Compression = 'gzip' | 'zstd' | 'none';

export interface OciOptions {
  compression?: Compression;
  config?: Record<string, unknown>;
  architecture?: string;
  /** Instead of the true ones. */
  diffIds?: string[];
}

/** An OCI layout with one image under the name `image`. Returns the manifest's digest. */
export async function writeOciLayout(
  dir: string,
  tars: readonly Buffer[],
  options: OciOptions = {},
): Promise<string> {
  const compression = options.compression ?? 'gzip';
  const blobs = path.join(dir, 'blobs', 'sha256');
  await mkdir(blobs, { recursive: true });
  const put = async (data: Buffer): Promise<{ digest: string; size: number }> => {
    const digest = sha256(data);
    await writeFile(path.join(blobs, digest.slice(7)), data);
    return { digest, size: data.length };
  };
  const suffix = compression === 'none' ? '' : `+${compression}`;
  const layers = [];
  for (const tar of tars) {
    const data =
      compression === 'gzip' ? gzipSync(tar) : compression === 'zstd' ? zstdCompressSync(tar) : tar;
    layers.push({ mediaType: `application/vnd.oci.image.layer.v1.tar${suffix}`, ...(await put(data)) });
  }
  const config = await put(
    Buffer.from(
      JSON.stringify({
        architecture: options.architecture ?? 'amd64',
        os: 'linux',
        config: options.config ?? {},
        rootfs: { type: 'layers', diff_ids: options.diffIds ?? tars.map((tar) => sha256(tar)) },
      }),
    ),
  );
  const manifest = await put(
    Buffer.from(
      JSON.stringify({
        schemaVersion: 2,
        mediaType: 'application/vnd.oci.image.manifest.v1+json',
        config: { mediaType: 'application/vnd.oci.image.config.v1+json', ...config },
        layers,
      }),
    ),
  );
  await writeFile(path.join(dir, 'oci-layout'), '{"imageLayoutVersion":"1.0.0"}');
  await writeFile(
    path.join(dir, 'index.json'),
    JSON.stringify({
      schemaVersion: 2,
      manifests: [
        {
          mediaType: 'application/vnd.oci.image.manifest.v1+json',
          ...manifest,
          annotations: { 'org.opencontainers.image.ref.name': 'image' },
        },
      ],
    }),
  );
  return manifest.digest;
}

/** Runs a tool of the test itself; its failure is the test's. */
export function run(tool: string, args: readonly string[]): string {
  const result = spawnSync(tool, args, { encoding: 'utf8', timeout: 120_000, maxBuffer: 64 * 1024 * 1024 });
  assert.equal(result.status, 0, `${tool} ${args.join(' ')}: ${result.error?.message ?? ''}${result.stderr}`);
  return result.stdout;
}

/** What a folder holds, in a form that can be compared: hard links as groups, content as text. */
export function describeFolder(root: string): Record<string, unknown> {
  const result: Record<string, unknown> = {};
  const firstName = new Map<number, string>();
  const visit = (relative: string): void => {
    const full = path.join(root, relative);
    const facts = lstatSync(full);
    const mode = (facts.mode & 0o7777).toString(8);
    const owner = `${facts.uid}:${facts.gid}`;
    const name = relative === '' ? '/' : relative;
    if (facts.isDirectory()) {
      result[name] = `directory ${mode} ${owner}`;
      for (const child of readdirSync(full).sort()) visit(path.join(relative, child));
    } else if (facts.isSymbolicLink()) {
      result[name] = `symlink ${readlinkSync(full)}`;
    } else if (facts.isFile()) {
      const first = firstName.get(facts.ino);
      if (facts.nlink > 1 && first !== undefined) result[name] = `link ${first}`;
      else
        result[name] =
          `file ${mode} ${owner} ${Math.floor(facts.mtimeMs / 1000)} ${readFileSync(full, 'latin1')}`;
      firstName.set(facts.ino, first ?? name);
    } else {
      result[name] = `other ${mode} ${owner} ${facts.rdev}`;
    }
  };
  visit('');
  return result;
}
