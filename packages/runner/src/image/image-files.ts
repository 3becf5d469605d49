/** The files of one image in its folder, and what they say when they are read again. */
import { readdir, readFile, stat } from 'node:fs/promises';
import path from 'node:path';
import type { ImageConfig } from './image-config.ts';
import { isMissing } from './image-error.ts';
import { STACK_FILES, stackBytes, stackFiles } from './image-stack.ts';
import { BOOT } from './layer-store.ts';

/** A root image that is ready to be booted from. */
export interface RootImage {
  /** `sha256:…` of the manifest for our platform. */
  digest: string;
  /** Absolute path of `root.squashfs`, or of the descriptor of a stacked image. What is there never changes. */
  path: string;
  /** Of a stacked image: absolute paths of the files that its descriptor names. */
  parts?: readonly string[];
  /** Of the disk that the guest sees. */
  sizeBytes: number;
  layerCount: number;
  config: ImageConfig;
}

/** `config.json`. */
export interface StoredImage {
  version: 1;
  digest: string;
  /** Of `root.squashfs`, also where that has not been made of a stacked image yet. */
  sizeBytes: number;
  layerCount: number;
  config: ImageConfig;
  /** Who may have it without asking again: any caller, if it was pulled anonymously from this repository. */
  origin: { repository: string; anonymous: boolean };
  /** Of a stacked image: lengths of its parts. */
  stack?: StoredStack;
}

export interface StoredStack {
  headBytes: number;
  layerBytes: number[];
}

export const IMAGE_FILES = {
  root: 'root.squashfs',
  config: 'config.json',
  used: 'used',
  pinned: 'pinned',
  unsynced: 'unsynced',
} as const;

/** What is in an image's folder, if it is whole and valid. */
export async function readImage(
  folder: string,
  digest: string,
): Promise<{ stored: StoredImage; image: RootImage } | undefined> {
  try {
    const text = await readFile(path.join(folder, IMAGE_FILES.config), 'utf8');
    const stored = JSON.parse(text) as StoredImage;
    if (stored.version !== 1 || stored.digest !== digest) return undefined;
    if (!(await isOfThisBoot(folder))) return undefined;
    const root = await findRoot(folder, stored);
    if (root === undefined) return undefined;
    const { sizeBytes, layerCount, config } = stored;
    return { stored, image: { digest, ...root, sizeBytes, layerCount, config } };
  } catch (error) {
    if (isMissing(error) || error instanceof SyntaxError) return undefined;
    throw error;
  }
}

/** The file with the whole image, if there is one, else the parts of a stacked image. */
async function findRoot(
  folder: string,
  { sizeBytes, stack }: StoredImage,
): Promise<Pick<RootImage, 'path' | 'parts'> | undefined> {
  const root = path.join(folder, IMAGE_FILES.root);
  const whole = await sizeOf(root);
  if (whole !== undefined) return whole === sizeBytes ? { path: root } : undefined;
  if (stack === undefined) return undefined;
  const { headBytes, layerBytes } = stack;
  if (
    stackBytes(
      layerBytes.map((bytes) => ({ bytes })),
      headBytes,
    ) !== sizeBytes
  )
    return undefined;
  const parts = stackFiles(layerBytes.length).map((name) => path.join(folder, name));
  const descriptor = path.join(folder, STACK_FILES.descriptor);
  const sizes = await Promise.all([...parts, descriptor].map(sizeOf));
  const isComplete =
    sizes.at(-1) !== undefined && [headBytes, ...layerBytes].every((bytes, index) => bytes === sizes[index]);
  return isComplete ? { path: descriptor, parts } : undefined;
}

async function sizeOf(file: string): Promise<number | undefined> {
  try {
    return (await stat(file)).size;
  } catch (error) {
    if (isMissing(error)) return undefined;
    throw error;
  }
}

/** Whether it is on disk, or was published since the machine has started. */
async function isOfThisBoot(folder: string): Promise<boolean> {
  try {
    return (await readFile(path.join(folder, IMAGE_FILES.unsynced), 'utf8')) === BOOT;
  } catch (error) {
    if (isMissing(error)) return true;
    throw error;
  }
}

/** What tidying up has to know of an image. */
export interface ImageFacts {
  digest: string;
  /** Files with its content. A layer that several images have is one file. */
  files: { inode: number; bytes: number }[];
  usedMs: number;
  /** A jail may hold it by a hard link; then removing it frees nothing. */
  linked: boolean;
  pinned: boolean;
}

/** @param digest whose folder it is */
export async function imageFacts(folder: string, digest: string): Promise<ImageFacts> {
  const facts: ImageFacts = { digest, files: [], usedMs: 0, linked: false, pinned: false };
  for (const name of await readdir(folder).catch(() => [] as string[])) {
    const file = await stat(path.join(folder, name)).catch(() => undefined);
    if (file === undefined) continue;
    if (name === IMAGE_FILES.used) facts.usedMs = file.mtimeMs;
    else if (name === IMAGE_FILES.pinned) facts.pinned = true;
    else if (name === IMAGE_FILES.root || name === STACK_FILES.head) {
      facts.files.push({ inode: file.ino, bytes: file.size });
      facts.linked ||= file.nlink > 1;
    } else if (name.endsWith('.tar')) facts.files.push({ inode: file.ino, bytes: file.size });
  }
  return facts;
}

/** Bytes that images take together: what they share counts once. */
export function bytesOf(images: readonly Pick<ImageFacts, 'files'>[]): number {
  const files = new Map(images.flatMap((image) => image.files.map(({ inode, bytes }) => [inode, bytes])));
  return [...files.values()].reduce((sum, bytes) => sum + bytes, 0);
}
