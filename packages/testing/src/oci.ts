/** Layers and OCI layouts for tests, made with tools that the code under test does not use. */
import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { createHash } from 'node:crypto';
import { mkdir, mkdtemp, rm, writeFile } from 'node:fs/promises';
import os from 'node:os';
import path from 'node:path';
import { buffer } from 'node:stream/consumers';
import { gzipSync, zstdCompressSync } from 'node:zlib';
import { pack } from 'tar-stream';
import type { Header } from 'tar-stream';

export type Item = Partial<Header> & { name: string; content?: string | Buffer };

/** A folder that is removed after the test, whatever the outcome. */
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
