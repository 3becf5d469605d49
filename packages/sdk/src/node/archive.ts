/**
 * Folders in and out of a sandbox as tar streams. What comes out of one is hostile: an entry is written only
 * below the target, never through a symbolic link, never as a device, and without set-id bits.
 */
import { createReadStream, createWriteStream, type Stats } from 'node:fs';
import { chmod, lstat, mkdir, readdir, readlink, rm, symlink } from 'node:fs/promises';
import { join, sep } from 'node:path';
import { pipeline } from 'node:stream/promises';
import { extract, type Header, pack, type Pack } from 'tar-stream';
import { ReleapError } from '../error.ts';

export interface CopyCount {
  files: number;
  bytes: number;
}

/** What becomes of an entry of the folder; `look-inside`: a folder of which only what is in it may be taken. */
export type Select = (path: string, isFolder: boolean) => 'take' | 'leave' | 'look-inside';

export interface PackOptions {
  onFile?: ((count: CopyCount) => void) | undefined;
  /** By the path below the folder, with `/`. Default: everything. */
  select?: Select | undefined;
  /** Files in place of those of the same name in the folder. */
  extra?: readonly { name: string; content: string }[] | undefined;
}

/** Writes the contents of a local folder as a tar stream into `target`. Sockets, pipes and devices are left out. */
export async function packFolder(
  folder: string,
  target: NodeJS.WritableStream,
  { onFile, select = () => 'take', extra = [] }: PackOptions = {},
): Promise<CopyCount> {
  const count: CopyCount = { files: 0, bytes: 0 };
  const archive = pack();
  const sent = pipeline(archive as unknown as NodeJS.ReadableStream, target);
  const replaced = new Set(extra.map(({ name }) => name));
  const selected: Select = (path, isFolder) => (replaced.has(path) ? 'leave' : select(path, isFolder));
  const walk = async (): Promise<void> => {
    for await (const found of selectedEntries(folder, selected)) {
      await packEntry(archive, found);
      if (!found.stats.isFile()) continue;
      count.files++;
      count.bytes += found.stats.size;
      onFile?.(count);
    }
    for (const { name, content } of extra)
      await entry(archive, { name, type: 'file', mtime: EPOCH }, content);
  };
  const walked = walk().then(
    () => archive.finalize(),
    (error: unknown) => {
      archive.destroy(error as Error);
      throw error;
    },
  );
  await Promise.all([walked, sent]);
  return count;
}

interface FolderEntry {
  /** Below the folder, with `/`. */
  relative: string;
  path: string;
  stats: Stats;
}

/** In the order of their names; a folder comes before what is in it. */
async function* selectedEntries(root: string, select: Select, below = ''): AsyncGenerator<FolderEntry> {
  for (const name of (await readdir(join(root, below))).sort()) {
    const relative = below === '' ? name : `${below}/${name}`;
    const path = join(root, relative);
    const stats = await lstat(path);
    const choice = select(relative, stats.isDirectory());
    if (choice === 'leave') continue;
    if (choice === 'take') yield { relative, path, stats };
    if (stats.isDirectory()) yield* selectedEntries(root, select, relative);
  }
}

async function packEntry(archive: Pack, { relative, path, stats }: FolderEntry): Promise<void> {
  const header = { name: relative, mode: stats.mode & 0o7777, mtime: stats.mtime };
  if (stats.isDirectory()) await entry(archive, { ...header, name: `${relative}/`, type: 'directory' });
  else if (stats.isSymbolicLink())
    await entry(archive, { ...header, type: 'symlink', linkname: await readlink(path) });
  else if (stats.isFile()) await packFile(archive, path, header, stats);
}

/** The sizes of the files that would be packed, in bytes, without reading them. */
export async function* fileSizes(folder: string, select: Select): AsyncGenerator<number> {
  for await (const { stats } of selectedEntries(folder, select)) if (stats.isFile()) yield stats.size;
}

/** The same content is the same archive. */
const EPOCH = new Date(0);

function entry(archive: Pack, header: Partial<Header> & { name: string }, content = ''): Promise<void> {
  const { promise, resolve, reject } = Promise.withResolvers<void>();
  archive.entry(header, content, (error) => (error ? reject(error) : resolve()));
  return promise;
}

async function packFile(archive: Pack, path: string, header: { name: string }, stats: Stats): Promise<void> {
  if (stats.size === 0) return entry(archive, { ...header, type: 'file', size: 0 });
  const sink = archive.entry({ ...header, type: 'file', size: stats.size });
  // `end`: a file that grows while it is read is cut to the size in the header.
  await pipeline(createReadStream(path, { end: stats.size - 1 }), sink as unknown as NodeJS.WritableStream);
}

/** Writes a tar stream below `folder`, which must exist. Existing files are replaced. */
export async function unpackFolder(
  source: NodeJS.ReadableStream,
  folder: string,
  onFile?: (count: CopyCount) => void,
): Promise<CopyCount> {
  const count: CopyCount = { files: 0, bytes: 0 };
  const archive = extract();
  const modes: [string, number][] = [];
  const received = pipeline(source, archive as unknown as NodeJS.WritableStream);
  const written = (async () => {
    for await (const item of archive) {
      const { header } = item;
      const path = await safePath(folder, header.name);
      if (path === null) item.resume();
      else if (header.type === 'file' || header.type === 'contiguous-file') {
        await removeLink(path);
        await pipeline(
          item as unknown as NodeJS.ReadableStream,
          createWriteStream(path, { mode: 0o600, flags: 'wx' }),
        );
        await chmod(path, (header.mode ?? 0o644) & 0o777);
        count.files++;
        count.bytes += header.size ?? 0;
        onFile?.(count);
      } else {
        item.resume();
        if (header.type === 'directory') {
          const there = await lstat(path).catch(() => null);
          if (there === null) await mkdir(path);
          else if (!there.isDirectory())
            throw new ReleapError('failed', `${path} is not a folder, and the sandbox has one of that name`);
          // At the end: a folder that may not be written to would refuse its own contents.
          modes.push([path, (header.mode ?? 0o755) & 0o777]);
        } else if (header.type === 'symlink' && header.linkname) {
          await removeLink(path);
          await symlink(header.linkname, path);
        }
      }
    }
    for (const [path, mode] of modes.reverse()) await chmod(path, mode | 0o700);
  })();
  await Promise.all([received, written]);
  return count;
}

/** Where an entry goes; null for the folder itself. Makes the folders above it, and throws where one is a link. */
async function safePath(folder: string, name: string): Promise<string | null> {
  const parts = name.split('/').filter((part) => part !== '' && part !== '.');
  if (parts.includes('..') || parts.some((part) => part.includes(sep) || part.includes('\0')))
    throw new ReleapError(
      'failed',
      `the sandbox sent ${JSON.stringify(name)}, a path that leaves the folder: nothing more is copied`,
    );
  let path = folder;
  for (const part of parts.slice(0, -1)) {
    path = join(path, part);
    const stats = await lstat(path).catch(() => null);
    if (stats === null) await mkdir(path);
    else if (!stats.isDirectory())
      throw new ReleapError(
        'failed',
        `the sandbox sent ${JSON.stringify(name)}, but ${path} is not a folder: nothing more is copied`,
      );
  }
  const last = parts.at(-1);
  return last === undefined ? null : join(path, last);
}

/** A link at the place of a file would be written through. */
async function removeLink(path: string): Promise<void> {
  const stats = await lstat(path).catch(() => null);
  if (stats === null) return;
  if (stats.isDirectory())
    throw new ReleapError('failed', `${path} is a folder, and the sandbox has a file or link of that name`);
  await rm(path);
}
