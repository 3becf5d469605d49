/** What the image cache of this machine holds, and what it is limited to. */
import { readdir, stat } from 'node:fs/promises';
import { join } from 'node:path';
import { IMAGE_CACHE_MIB } from '@releap/contract';
import type { Check } from './check.ts';

const MIB = 2 ** 20;
const GIB_MIB = 1024;

/** No check before the first image. */
export async function checkImageCache(
  cache: string,
  env: Readonly<Record<string, string | undefined>>,
): Promise<Check[]> {
  const folder = join(cache, 'images');
  const names = await readdir(folder).catch(() => [] as string[]);
  const images = names
    .filter((name) => name.startsWith('sha256-'))
    .map((name) => join(folder, name, 'root.squashfs'));
  const archives = await readdir(join(folder, 'layers')).catch(() => [] as string[]);
  const layers = archives.filter((name) => name.endsWith('.tar')).map((name) => join(folder, 'layers', name));
  if (images.length + layers.length === 0) return [];
  const parts = await Promise.all([
    describe('image', images, limit(env['RELEAP_IMAGE_CACHE_MIB'], IMAGE_CACHE_MIB.images)),
    describe('layer', layers, limit(env['RELEAP_LAYER_CACHE_MIB'], IMAGE_CACHE_MIB.layers)),
  ]);
  return [
    {
      id: 'image-cache',
      title: 'Image cache',
      status: 'ok',
      detail: `${parts.join(', ')} in ${folder}`,
    },
  ];
}

async function describe(kind: string, files: readonly string[], maxMib: number): Promise<string> {
  const sizes = await Promise.all(
    // One that is removed meanwhile takes nothing.
    files.map(async (file) => (await stat(file).catch(() => undefined))?.size ?? 0),
  );
  const mib = sizes.reduce((sum, size) => sum + size, 0) / MIB;
  const plural = files.length === 1 ? '' : 's';
  return `${files.length} ${kind}${plural} of ${gib(mib)} (limit ${gib(maxMib)})`;
}

const gib = (mib: number): string => `${(mib / GIB_MIB).toFixed(1)} GiB`;

function limit(text: string | undefined, mib: number): number {
  return text !== undefined && /^\d+$/.test(text) ? Number(text) : mib;
}
