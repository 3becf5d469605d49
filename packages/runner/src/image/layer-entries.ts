/**
 * The entries of a layer's archive: read from its headers, or from an index beside it. Reading the headers of an archive takes
 * longer than all else that a second image with the same layer needs, so the process that has read them leaves an index.
 */
import { readFileSync, writeFileSync } from 'node:fs';
import { readTar, type TarEntry } from './tar-read.ts';

/** Entries of an archive are read once and kept if they take at most this much memory, about; else they are read twice. */
const KEPT_BYTES = 128 * 1024 * 1024;
/** What an entry takes without its names, attributes and extents, about. */
const ENTRY_BYTES = 256;

type Row = [
  path: string,
  type: TarEntry['type'],
  mode: number,
  uid: number,
  gid: number,
  mtime: number,
  size: number,
  /** `at`, `offset`, `length` of each. */
  extents: number[],
  link: string,
  devMajor: number,
  devMinor: number,
  /** Values in base64. */
  xattrs?: [string, string][],
];

/** @returns undefined if they take too much memory @throws ImageError when the archive is damaged */
export function readEntries(fd: number, size: number): TarEntry[] | undefined {
  const entries: TarEntry[] = [];
  let bytes = 0;
  for (const entry of readTar(fd, size)) {
    bytes += ENTRY_BYTES + entry.path.length + entry.link.length + entry.extents.length * 64;
    for (const [name, value] of entry.xattrs ?? []) bytes += name.length + value.length + 64;
    if (bytes > KEPT_BYTES) return undefined;
    entries.push(entry);
  }
  return entries;
}

export function writeIndex(file: string, entries: readonly TarEntry[]): void {
  const rows = entries.map((entry): Row => {
    const { path, type, mode, uid, gid, mtime, size, link, devMajor, devMinor, xattrs } = entry;
    const extents = entry.extents.flatMap(({ at, offset, length }) => [at, offset, length]);
    const row: Row = [path, type, mode, uid, gid, mtime, size, extents, link, devMajor, devMinor];
    if (xattrs) row[11] = [...xattrs].map(([name, value]) => [name, value.toString('base64')]);
    return row;
  });
  // Names are bytes, one character each.
  writeFileSync(file, JSON.stringify(rows), { flag: 'wx', mode: 0o600 });
}

/** @returns undefined when it is damaged */
export function readIndex(file: string): TarEntry[] | undefined {
  try {
    return (JSON.parse(readFileSync(file, 'utf8')) as Row[]).map(entryOf);
  } catch {
    return undefined;
  }
}

function entryOf(row: Row): TarEntry {
  const [path, type, mode, uid, gid, mtime, size, numbers, link, devMajor, devMinor, xattrs] = row;
  const extents: TarEntry['extents'] = [];
  for (let i = 0; i < numbers.length; i += 3) {
    const [at = 0, offset = 0, length = 0] = numbers.slice(i, i + 3);
    extents.push({ at, offset, length });
  }
  const entry: TarEntry = { path, type, mode, uid, gid, mtime, size, extents, link, devMajor, devMinor };
  if (xattrs) entry.xattrs = new Map(xattrs.map(([name, value]) => [name, Buffer.from(value, 'base64')]));
  return entry;
}
