/** A registry and a folder for stores; started before the tests of the file that imports it. */
import { mkdir, readdir } from 'node:fs/promises';
import path from 'node:path';
import { after, before } from 'node:test';
import type { RootSource } from '@releap/contract';
import type { ImageLimits } from '../../src/image/image-limits.ts';
import { openTestStore, type TestStore } from './test-store.ts';
import { tarOf, temporaryFolder, writeOciLayout } from '@releap/testing/oci';
import type { OciOptions } from '@releap/testing/oci';
import { startRegistry } from '@releap/testing/registry';
import type { TestRegistry } from '@releap/testing/registry';

export let scratch: Awaited<ReturnType<typeof temporaryFolder>>;
export let registry: TestRegistry;
let serial = 0;

before(async () => {
  scratch = await temporaryFolder();
  const dir = path.join(scratch.path, 'registry');
  await mkdir(dir);
  registry = await startRegistry(dir);
});
after(async () => {
  await registry[Symbol.asyncDispose]();
  await scratch[Symbol.asyncDispose]();
});

export const newCacheDir = (): string => path.join(scratch.path, `cache-${(serial += 1)}`);
const newLayoutDir = (): string => path.join(scratch.path, `layout-${(serial += 1)}`);

export function openStore(cacheDir = newCacheDir(), limits: Partial<ImageLimits> = {}): TestStore {
  return openTestStore(cacheDir, limits);
}

/** Pushes a small image and returns its reference and digest. */
export async function push(
  name: string,
  files: Record<string, string>,
  options: OciOptions = {},
  to: TestRegistry = registry,
): Promise<{ ref: string; digest: string; layout: string }> {
  const layout = newLayoutDir();
  const tars = await Promise.all(
    Object.entries(files).map(async ([file, content]) => await tarOf([{ name: file, content }])),
  );
  const digest = await writeOciLayout(layout, tars, options);
  to.push(layout, name);
  return { ref: `${to.host}/${name}`, digest, layout };
}

export const from = (
  ref: string,
  more: Partial<Extract<RootSource, { type: 'registry' }>> = {},
): RootSource => ({
  type: 'registry',
  ref,
  ...more,
});

/** The unpacked layers that are kept. */
export async function archives(store: TestStore): Promise<string[]> {
  return (await readdir(path.join(store.images, 'layers'))).filter((name) => name.endsWith('.tar'));
}
