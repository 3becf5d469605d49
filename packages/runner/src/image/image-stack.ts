/**
 * A stacked root image: the layers' archives as they lie, between the head and the tables of a squashfs file system whose
 * files point into them. What several images share is stored once, and making an image copies none of it.
 *
 *   disk of the guest   | superblock | layer | layer | … | small layers, tables |
 *   files               | root.head  | layer-2.tar   | … | root.head, continued |
 *
 * QEMU joins the files: `root.vmdk` is a VMDK descriptor (VMware's Virtual Disk Format 1.1) with one flat extent for each
 * part. It names the files as they lie in the jail of a VMM, where the content of a guest can change none of them.
 */
import { type FileHandle, link, open, writeFile } from 'node:fs/promises';
import path from 'node:path';
import { ImageError } from './image-error.ts';
import type { ImageLimits } from './image-limits.ts';

/** Files in the folder of a stacked image. */
export const STACK_FILES = { descriptor: 'root.vmdk', head: 'root.head' } as const;

/** Parts of the disk begin at multiples of this, the first one of the head has this size. */
export const STACK_ALIGN = 4096;
const SECTOR = 512;
const COPY_BYTES = 1024 * 1024;

export type StackLimits = Pick<ImageLimits, 'stackBytes' | 'stackLayerBytes' | 'stackLayers'>;

/** Where the archives of an image's layers lie in its disk. Lengths and positions in bytes. */
export interface StackPlan {
  /** By position. `index`: which of the image's layers, bottom first. */
  layers: { index: number; at: number; bytes: number }[];
  /** Where the rest of the head begins. */
  tail: number;
}

/**
 * Which archives become parts of the disk: the largest ones. The others are copied into the head, as a VMM opens each part
 * of its own. Undefined: the image is so small that it is made as one file.
 * @param sizes of the archives, bottom first
 */
export function planStack(sizes: readonly number[], limits: StackLimits): StackPlan | undefined {
  const large = [...sizes.entries()]
    .filter(([, bytes]) => bytes > 0 && bytes >= limits.stackLayerBytes)
    .toSorted(([a, left], [b, right]) => right - left || a - b)
    .slice(0, limits.stackLayers)
    .toSorted(([a], [b]) => a - b);
  const total = large.reduce((sum, [, bytes]) => sum + bytes, 0);
  if (large.length === 0 || total < limits.stackBytes) return undefined;
  const layers: StackPlan['layers'] = [];
  let at = STACK_ALIGN;
  for (const [index, bytes] of large) {
    layers.push({ index, at, bytes });
    at += aligned(bytes);
  }
  return { layers, tail: at };
}

/** Name of the link to a layer's archive in the folder of a stacked image. @param part its number in the plan */
function stackLayerFile(part: number): string {
  return `layer-${part}.tar`;
}

/** All files that the descriptor names. @param layers how many layers are parts */
export function stackFiles(layers: number): string[] {
  return [STACK_FILES.head, ...Array.from({ length: layers }, (_, part) => stackLayerFile(part))];
}

/** A part's name in the jail of a VMM, where it can be no other file's. */
export function stackFileInJail(name: string): string {
  return `root.part-${name}`;
}

/** Content of `root.vmdk`. @param headBytes length of the head */
function stackDescriptor(layers: readonly { bytes: number }[], headBytes: number): string {
  const extent = (bytes: number, name: string, from: number): string =>
    // QEMU leaves out an extent that is not writable; the node that is opened with it is read-only.
    `RW ${aligned(bytes) / SECTOR} FLAT "/${stackFileInJail(name)}" ${from / SECTOR}`;
  const extents = [
    extent(STACK_ALIGN, STACK_FILES.head, 0),
    ...layers.map(({ bytes }, part) => extent(bytes, stackLayerFile(part), 0)),
    extent(headBytes - STACK_ALIGN, STACK_FILES.head, STACK_ALIGN),
  ];
  return [
    '# Disk DescriptorFile',
    'version=1',
    'CID=fffffffe',
    'parentCID=ffffffff',
    'createType="twoGbMaxExtentFlat"',
    '',
    '# Extent description',
    ...extents,
    '',
  ].join('\n');
}

/** Bytes of the disk. @param headBytes length of the head */
export function stackBytes(layers: readonly { bytes: number }[], headBytes: number): number {
  return aligned(headBytes) + layers.reduce((sum, { bytes }) => sum + aligned(bytes), 0);
}

/**
 * Completes a stacked image in a folder that has its head: links the archives, and writes the descriptor.
 * @param archives of all layers, bottom first, on the same file system
 */
export async function linkStack(
  folder: string,
  headBytes: number,
  { layers }: StackPlan,
  archives: readonly string[],
): Promise<{ sizeBytes: number; stack: { headBytes: number; layerBytes: number[] } }> {
  if (headBytes <= STACK_ALIGN) throw new ImageError('failed', `the image maker wrote ${headBytes} bytes`);
  for (const [part, { index }] of layers.entries()) {
    await link(archives[index] ?? '', path.join(folder, stackLayerFile(part)));
  }
  const descriptor = stackDescriptor(layers, headBytes);
  await writeFile(path.join(folder, STACK_FILES.descriptor), descriptor, { mode: 0o444, flag: 'wx' });
  const layerBytes = layers.map(({ bytes }) => bytes);
  return { sizeBytes: stackBytes(layers, headBytes), stack: { headBytes, layerBytes } };
}

/**
 * Copies a stacked image into one file with the same bytes at the same positions: a guest whose memory refers to the one can
 * continue with the other.
 * @param head,layers paths of the parts @param target must not exist; the caller fsyncs it
 * @returns its length
 */
export async function joinStack(
  head: string,
  layers: readonly string[],
  target: string,
  signal?: AbortSignal,
): Promise<number> {
  await using out = await open(target, 'wx', 0o644);
  await using start = await open(head, 'r');
  let at = 0;
  const copy = async (file: FileHandle, from: number, to: number): Promise<void> => {
    const buffer = Buffer.allocUnsafe(COPY_BYTES);
    for (let position = from; position < to; ) {
      signal?.throwIfAborted();
      const { bytesRead } = await file.read(buffer, 0, Math.min(COPY_BYTES, to - position), position);
      if (bytesRead === 0) throw new Error(`a part of ${target} became shorter while it was read`);
      for (let done = 0; done < bytesRead; ) {
        const { bytesWritten } = await out.write(buffer, done, bytesRead - done, at + position - from + done);
        done += bytesWritten;
      }
      position += bytesRead;
    }
    at += aligned(to - from);
  };
  await copy(start, 0, STACK_ALIGN);
  for (const path of layers) {
    await using layer = await open(path, 'r');
    await copy(layer, 0, (await layer.stat()).size);
  }
  await copy(start, STACK_ALIGN, (await start.stat()).size);
  await out.truncate(at);
  return at;
}

function aligned(bytes: number): number {
  return Math.ceil(bytes / STACK_ALIGN) * STACK_ALIGN;
}
