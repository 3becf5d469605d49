/**
 * Reads the headers of a tar archive that lies in a file, and says where the bodies are.
 *
 * Why not a streaming library: we need bodies by position (a later layer decides which of them survive), extended
 * attributes as bytes (`security.capability` is binary), sparse files, and names as bytes. Names and link targets are
 * therefore held as latin1 strings, one character a byte, and must be written out the same way.
 *
 * Formats: POSIX ustar and pax (POSIX.1-2001), GNU tar (long names, base-256 numbers, sparse files of all versions),
 * and plain v7.
 */
import { readSync } from 'node:fs';
import { ImageError, show } from './image-error.ts';
import { parsePax, sparseFromPax } from './tar-pax.ts';
import type { PaxRecords } from './tar-pax.ts';

/** A run of bytes of a body: `length` bytes of the archive file from `offset` on belong at `at` in the body. */
export interface Extent {
  at: number;
  offset: number;
  length: number;
}

export type EntryType = 'file' | 'link' | 'symlink' | 'char' | 'block' | 'directory' | 'fifo';

export interface TarEntry {
  /** As in the archive, latin1. */
  path: string;
  type: EntryType;
  /** Permission bits with setuid, setgid and sticky. */
  mode: number;
  uid: number;
  gid: number;
  /** Seconds since 1970, whole. */
  mtime: number;
  /** Apparent size of a file's body, holes included. */
  size: number;
  /** Where the stored parts of the body are, in order, not overlapping. */
  extents: Extent[];
  /** Target of a link or symlink, latin1. */
  link: string;
  devMajor: number;
  devMinor: number;
  xattrs?: Map<string, Buffer>;
}

const BLOCK = 512;
/** Most bytes of one extended header; its parts have limits of their own later. */
const EXTENDED_MAX = 1024 * 1024;
const SPARSE_EXTENTS_MAX = 100_000;

/** Of one that lies behind a large body: its header, and those that extend it. */
const FAR_BYTES = 4096;
const NEAR_BYTES = 128 * 1024;

/** Windowed reader over a file: one system call for many headers that lie close together, and few bytes of the bodies between others. */
class Window {
  readonly #fd: number;
  readonly size: number;
  readonly #buffer = Buffer.allocUnsafe(NEAR_BYTES);
  #start = 0;
  #length = 0;

  constructor(fd: number, size: number) {
    this.#fd = fd;
    this.size = size;
  }

  /** The bytes at `offset`, valid until the next call; shorter only at the end of the file. `length` ≤ 64 KiB. */
  at(offset: number, length: number): Buffer {
    if (offset < this.#start || offset + length > this.#start + this.#length) {
      const gap = offset - (this.#start + this.#length);
      const most = gap > -NEAR_BYTES && gap < FAR_BYTES ? NEAR_BYTES : Math.max(length, FAR_BYTES);
      this.#start = offset;
      this.#length = 0;
      while (this.#length < length) {
        const got = readSync(
          this.#fd,
          this.#buffer,
          this.#length,
          most - this.#length,
          offset + this.#length,
        );
        if (got === 0) break;
        this.#length += got;
      }
    }
    const from = offset - this.#start;
    return this.#buffer.subarray(from, Math.min(from + length, this.#length));
  }

  /** A copy of the bytes at `offset`, of any length up to `EXTENDED_MAX`. */
  copy(offset: number, length: number): Buffer {
    const out = Buffer.allocUnsafe(length);
    let done = 0;
    while (done < length) {
      const got = readSync(this.#fd, out, done, length - done, offset + done);
      if (got === 0) throw damaged(offset, 'it ends in the middle of an entry');
      done += got;
    }
    return out;
  }
}

/**
 * All entries of the archive in `fd`, in order. Entry names are not judged here; that is the reader's part.
 * @throws ImageError `invalid-image` when the archive is damaged or uses a kind of entry that no image may have.
 */
export function* readTar(fd: number, fileSize: number): Generator<TarEntry, void, void> {
  const window = new Window(fd, fileSize);
  let offset = 0;
  let longName: string | undefined;
  let longLink: string | undefined;
  let pax: PaxRecords | undefined;

  while (offset < fileSize) {
    const header = window.at(offset, BLOCK);
    if (header.length < BLOCK) throw damaged(offset, 'it ends in the middle of a header');
    if (isZero(header)) {
      const next = window.at(offset + BLOCK, BLOCK);
      if (next.length < BLOCK || isZero(next)) return;
      throw damaged(offset, 'there is an empty block between entries');
    }
    verifyChecksum(header, offset);
    const flag = String.fromCharCode(header[156] ?? 0);
    const storedSize = readNumber(header, 124, 12, offset);
    const body = offset + BLOCK;

    if (flag === 'x' || flag === 'g' || flag === 'L' || flag === 'K') {
      if (storedSize > EXTENDED_MAX) throw damaged(offset, `an extended header has ${storedSize} bytes`);
      if (flag !== 'g') {
        const data = window.copy(body, storedSize);
        if (flag === 'x') pax = parsePax(data, offset);
        else if (flag === 'L') longName = untilNul(data);
        else longLink = untilNul(data);
      }
      offset = body + padded(storedSize);
      continue;
    }

    const entry = readEntry(header, offset, flag, pax, longName, longLink);
    const stored = pax?.size ?? storedSize;
    let bodyStart = body;
    if (flag === 'S') bodyStart = readOldSparse(window, header, offset, entry, stored);
    else if (entry?.type === 'file') readBody(window, offset, body, entry, stored, pax);
    // Only files have a body; some archivers state a size for links and folders all the same, without one.
    const hasBody = flag === 'S' || entry === undefined || entry.type === 'file';
    const end = hasBody ? bodyStart + padded(stored) : body;
    if ((hasBody ? bodyStart + stored : end) > fileSize)
      throw damaged(offset, 'it ends in the middle of an entry');
    if (entry) yield entry;
    offset = end;
    longName = undefined;
    longLink = undefined;
    pax = undefined;
  }
}

/** The entry without its body; undefined for what an archive may carry and no file system holds (a volume label). */
function readEntry(
  header: Buffer,
  offset: number,
  flag: string,
  pax: PaxRecords | undefined,
  longName: string | undefined,
  longLink: string | undefined,
): TarEntry | undefined {
  const isUstar = header.toString('latin1', 257, 263) === 'ustar\0';
  const prefix = isUstar ? untilNul(header.subarray(345, 500)) : '';
  const name = untilNul(header.subarray(0, 100));
  const path = pax?.path ?? longName ?? (prefix === '' ? name : `${prefix}/${name}`);
  let type = TYPES[flag];
  if (flag === '\0' && path.endsWith('/')) type = 'directory';
  if (type === undefined) {
    if (flag === 'V') return undefined;
    throw new ImageError(
      'invalid-image',
      `a layer has an entry of type ${show(flag)} (${show(path)}), which no image may have`,
    );
  }
  return {
    path: pax?.sparse?.name ?? path,
    type,
    mode: readNumber(header, 100, 8, offset) & 0o7777,
    uid: pax?.uid ?? readNumber(header, 108, 8, offset),
    gid: pax?.gid ?? readNumber(header, 116, 8, offset),
    mtime: pax?.mtime ?? readNumber(header, 136, 12, offset, true),
    size: 0,
    extents: [],
    link:
      type === 'link' || type === 'symlink'
        ? (pax?.linkpath ?? longLink ?? untilNul(header.subarray(157, 257)))
        : '',
    devMajor: type === 'char' || type === 'block' ? readNumber(header, 329, 8, offset) : 0,
    devMinor: type === 'char' || type === 'block' ? readNumber(header, 337, 8, offset) : 0,
    ...(pax?.xattrs === undefined ? {} : { xattrs: pax.xattrs }),
  };
}

const TYPES: Readonly<Record<string, EntryType>> = {
  '\0': 'file',
  '0': 'file',
  '7': 'file',
  S: 'file',
  '1': 'link',
  '2': 'symlink',
  '3': 'char',
  '4': 'block',
  '5': 'directory',
  '6': 'fifo',
};

function readBody(
  window: Window,
  offset: number,
  body: number,
  entry: TarEntry,
  stored: number,
  pax: PaxRecords | undefined,
): void {
  if (!pax?.sparse) {
    entry.size = stored;
    if (stored > 0) entry.extents.push({ at: 0, offset: body, length: stored });
    return;
  }
  const sparse = pax.sparse;
  let map = sparse.map;
  let data = body;
  if (sparse.mapInBody) {
    const table = sparseFromPax(
      (from, length) => window.at(body + from, Math.min(length, Math.max(0, stored - from))),
      SPARSE_EXTENTS_MAX,
      offset,
    );
    map = table.map;
    data = body + table.bodyOffset;
  }
  entry.size = sparse.size;
  place(entry, map, data, body + stored, offset);
}

/** GNU's own sparse header: four extents in the header, more in blocks that follow it. Returns where the body starts. */
function readOldSparse(
  window: Window,
  header: Buffer,
  offset: number,
  entry: TarEntry | undefined,
  stored: number,
): number {
  if (!entry) throw damaged(offset, 'a sparse file has no entry');
  const map: [number, number][] = [];
  const take = (block: Buffer, from: number, count: number): void => {
    for (let i = 0; i < count; i += 1) {
      const at = from + i * 24;
      if (block[at] === 0) return;
      map.push([readNumber(block, at, 12, offset), readNumber(block, at + 12, 12, offset)]);
    }
  };
  take(header, 386, 4);
  entry.size = readNumber(header, 483, 12, offset);
  let more = header[482] === 1;
  let body = offset + BLOCK;
  while (more) {
    const block = window.at(body, BLOCK);
    if (block.length < BLOCK || map.length > SPARSE_EXTENTS_MAX)
      throw damaged(offset, 'a sparse map does not end');
    take(block, 0, 21);
    more = block[504] === 1;
    body += BLOCK;
  }
  place(entry, map, body, body + stored, offset);
  return body;
}

function place(
  entry: TarEntry,
  map: readonly [number, number][],
  data: number,
  end: number,
  offset: number,
): void {
  let at = 0;
  let from = data;
  for (const [start, length] of map) {
    if (start < at || start + length > entry.size || from + length > end) {
      throw damaged(offset, 'a sparse map contradicts itself');
    }
    if (length > 0) entry.extents.push({ at: start, offset: from, length });
    at = start + length;
    from += length;
  }
}

/** Octal text, or GNU's base-256 when the first bit is set. Empty is 0. */
function readNumber(block: Buffer, at: number, length: number, offset: number, signed = false): number {
  const first = block[at] ?? 0;
  if (first >= 0x80) {
    const negative = first === 0xff;
    let value = negative ? -1n : BigInt(first & 0x7f);
    for (let i = 1; i < length; i += 1) value = (value << 8n) | BigInt(block[at + i] ?? 0);
    if (
      (negative && !signed) ||
      value > BigInt(Number.MAX_SAFE_INTEGER) ||
      value < BigInt(Number.MIN_SAFE_INTEGER)
    ) {
      throw damaged(offset, 'a number does not fit its field');
    }
    return Number(value);
  }
  const text = block
    .toString('latin1', at, at + length)
    .replace(/\0.*$/s, '')
    .trim();
  if (text === '') return 0;
  if (!/^[0-7]+$/.test(text)) throw damaged(offset, `${show(text)} is not an octal number`);
  return Number.parseInt(text, 8);
}

/** The sum of all bytes with the checksum field as spaces; old archivers summed signed bytes. */
function verifyChecksum(header: Buffer, offset: number): void {
  let unsigned = 8 * 32;
  let signed = 8 * 32;
  for (let i = 0; i < BLOCK; i += 1) {
    if (i >= 148 && i < 156) continue;
    const byte = header[i] ?? 0;
    unsigned += byte;
    signed += byte < 128 ? byte : byte - 256;
  }
  const stated = readNumber(header, 148, 8, offset);
  if (stated !== unsigned && stated !== signed) throw damaged(offset, 'a header has a wrong checksum');
}

function isZero(block: Buffer): boolean {
  return block[0] === 0 && block.every((byte) => byte === 0);
}

function untilNul(data: Buffer): string {
  const nul = data.indexOf(0);
  return data.toString('latin1', 0, nul < 0 ? data.length : nul);
}

function padded(size: number): number {
  return Math.ceil(size / BLOCK) * BLOCK;
}

function damaged(offset: number, what: string): ImageError {
  return new ImageError('invalid-image', `a layer's tar archive is damaged at byte ${offset}: ${what}`);
}
