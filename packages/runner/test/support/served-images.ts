/** Images that handmade registries serve, and stores that pull them. Made for one test file: it removes them at its end. */
import { readdir, readFile } from 'node:fs/promises';
import type { IncomingMessage, ServerResponse } from 'node:http';
import path from 'node:path';
import { after, before } from 'node:test';
import type { RootSource } from '@releap/contract';
import { type OciOptions, tarOf, temporaryFolder, writeOciLayout } from '@releap/testing/oci';
import type { HandmadeRegistry } from '@releap/testing/registry';
import type { ImageLimits } from '../../src/image/image-limits.ts';
import { openTestStore, type TestStore } from './test-store.ts';

export const PROJECT_A = '00000000-0000-4000-8000-00000000000a';
export const PROJECT_B = '00000000-0000-4000-8000-00000000000b';
export const OCI_MANIFEST = 'application/vnd.oci.image.manifest.v1+json';

let scratch: Awaited<ReturnType<typeof temporaryFolder>>;
let serial = 0;
before(async () => {
  scratch = await temporaryFolder();
});
after(async () => {
  await scratch[Symbol.asyncDispose]();
});

export function openStore(limits: Partial<ImageLimits> = {}, privateHosts?: readonly string[]): TestStore {
  return openTestStore(path.join(scratch.path, `cache-${(serial += 1)}`), limits, privateHosts);
}

export interface Image {
  /** By digest, the manifest too. */
  blobs: Map<string, Buffer>;
  manifest: string;
  layers: string[];
}

/** An image with one layer for each file. */
export async function image(
  files: Record<string, string | Buffer>,
  options: OciOptions = {},
): Promise<Image> {
  const layout = path.join(scratch.path, `layout-${(serial += 1)}`);
  const tars = await Promise.all(
    Object.entries(files).map(async ([name, content]) => await tarOf([{ name, content }])),
  );
  const manifest = await writeOciLayout(layout, tars, options);
  const dir = path.join(layout, 'blobs', 'sha256');
  const blobs = new Map<string, Buffer>();
  for (const name of await readdir(dir)) blobs.set(`sha256:${name}`, await readFile(path.join(dir, name)));
  const { layers } = JSON.parse(String(blobs.get(manifest))) as { layers: { digest: string }[] };
  return { blobs, manifest, layers: layers.map(({ digest }) => digest) };
}

/** Answers like an honest registry with these images, whose first one has all tags. */
export function serve(
  ...images: Image[]
): (asked: string, request: IncomingMessage, response: ServerResponse) => void {
  return (asked, request, response) => {
    const [kind, name = ''] = asked.split('/');
    const digest = name.startsWith('sha256:') ? name : (images[0]?.manifest ?? '');
    const data = images.map(({ blobs }) => blobs.get(digest)).find((found) => found !== undefined);
    if (data === undefined) {
      response.writeHead(404).end('{"errors":[{"code":"MANIFEST_UNKNOWN"}]}');
      return;
    }
    const type = kind === 'manifests' ? OCI_MANIFEST : 'application/octet-stream';
    const from = Number(/^bytes=(\d+)-$/.exec(request.headers.range ?? '')?.[1] ?? 0);
    const body = data.subarray(from);
    response.writeHead(from === 0 ? 200 : 206, { 'content-type': type, 'content-length': body.length });
    response.end(body);
  };
}

export type Registry = Extract<RootSource, { type: 'registry' }>;
export const from = ({ host }: HandmadeRegistry, more: Partial<Registry> = {}): Registry => ({
  type: 'registry',
  ref: `${host}/app:1`,
  ...more,
});

export const blobsAsked = ({ asked }: HandmadeRegistry): string[] =>
  asked.filter((url) => url.includes('/blobs/')).map((url) => url.replace(/^.*\//, ''));
