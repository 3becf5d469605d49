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
  const images = names.filter((name) => name.startsWith('sha256-')).map((name) => join(folder, name));
  const layers = join(folder, 'layers');
  const ofImages = (await Promise.all(images.map(contentOf))).flat();
  const layerFiles = await contentOf(layers);
  if (images.length + layerFiles.length === 0) return [];
  const held = new Set(ofImages.map(({ inode }) => inode));
  const unused = layerFiles.filter(({ inode }) => !held.has(inode));
  const parts = [
    describe('image', images.length, ofImages, limit(env['RELEAP_IMAGE_CACHE_MIB'], IMAGE_CACHE_MIB.images)),
    // A layer that an image has counts with the images.
    describe(
      'layer',
      layerFiles.length,
      unused,
      limit(env['RELEAP_LAYER_CACHE_MIB'], IMAGE_CACHE_MIB.layers),
    ),
  ];
  return [
    {
      id: 'image-cache',
      title: 'Image cache',
      status: 'ok',
      detail: `${parts.join(', ')} in ${folder}`,
    },
  ];
}

interface Content {
  inode: number;
  bytes: number;
}

/** Root images, and layers, in a folder of the cache. */
async function contentOf(folder: string): Promise<Content[]> {
  const names = await readdir(folder).catch(() => [] as string[]);
  const files = names
    .filter((name) => name === 'root.squashfs' || name === 'root.head' || name.endsWith('.tar'))
    // One that is removed meanwhile takes nothing.
    .map((name) => stat(join(folder, name)).catch(() => undefined));
  return (await Promise.all(files))
    .flatMap((file) => file ?? [])
    .map(({ ino, size }) => ({ inode: ino, bytes: size }));
}

function describe(kind: string, count: number, content: readonly Content[], maxMib: number): string {
  const files = new Map(content.map(({ inode, bytes }) => [inode, bytes]));
  const mib = [...files.values()].reduce((sum, bytes) => sum + bytes, 0) / MIB;
  const plural = count === 1 ? '' : 's';
  return `${count} ${kind}${plural} of ${gib(mib)} (limit ${gib(maxMib)})`;
}

const gib = (mib: number): string => `${(mib / GIB_MIB).toFixed(1)} GiB`;

function limit(text: string | undefined, mib: number): number {
  return text !== undefined && /^\d+$/.test(text) ? Number(text) : mib;
}
