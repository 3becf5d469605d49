/** Extended headers of POSIX.1-2001 (pax): records `"%d %s=%s\n"`, length in bytes, itself included. */
import { ImageError } from './image-error.ts';

export interface PaxRecords {
  path?: string;
  linkpath?: string;
  size?: number;
  uid?: number;
  gid?: number;
  mtime?: number;
  /** From `SCHILY.xattr.*`, values as bytes. */
  xattrs?: Map<string, Buffer>;
  sparse?: PaxSparse;
}

/** GNU tar's sparse files in pax clothing, versions 0.0, 0.1 and 1.0. */
export interface PaxSparse {
  /** The file's real name; the entry has a made-up one. */
  name?: string;
  size: number;
  /** Pairs of position in the file and length. */
  map: [number, number][];
  /** Version 1.0: the map is at the start of the body. */
  mapInBody: boolean;
}

const XATTR = 'SCHILY.xattr.';

/** @throws ImageError `invalid-image` when a record is malformed. `offset` says where in the archive, for the message. */
export function parsePax(data: Buffer, offset: number): PaxRecords {
  const records: PaxRecords = {};
  const sparse = new Map<string, string>();
  const sparseMap: [number, number][] = [];
  let pendingOffset: number | undefined;
  let at = 0;
  while (at < data.length) {
    const space = data.indexOf(0x20, at);
    const lengthText = space < 0 || space - at > 10 ? '' : data.toString('latin1', at, space);
    const length = /^[0-9]+$/.test(lengthText) ? Number(lengthText) : 0;
    const end = at + length;
    const equals = data.indexOf(0x3d, space);
    if (length === 0 || end > data.length || equals < 0 || equals >= end || data[end - 1] !== 0x0a) {
      throw malformed(offset, 'a record is malformed');
    }
    const key = data.toString('latin1', space + 1, equals);
    const value = data.subarray(equals + 1, end - 1);
    at = end;
    if (key.startsWith(XATTR)) {
      records.xattrs ??= new Map();
      records.xattrs.set(key.slice(XATTR.length), Buffer.from(value));
      continue;
    }
    // An empty value means: as if the record were not there.
    if (value.length === 0) continue;
    const text = value.toString('latin1');
    if (key === 'path') records.path = noNul(text, offset);
    else if (key === 'linkpath') records.linkpath = noNul(text, offset);
    else if (key === 'size') records.size = wholeNumber(text, offset);
    else if (key === 'uid') records.uid = wholeNumber(text, offset);
    else if (key === 'gid') records.gid = wholeNumber(text, offset);
    else if (key === 'mtime') records.mtime = seconds(text, offset);
    else if (key === 'GNU.sparse.offset') pendingOffset = wholeNumber(text, offset);
    else if (key === 'GNU.sparse.numbytes') {
      if (pendingOffset === undefined) throw malformed(offset, 'a sparse map contradicts itself');
      sparseMap.push([pendingOffset, wholeNumber(text, offset)]);
      pendingOffset = undefined;
    } else if (key.startsWith('GNU.sparse.')) sparse.set(key.slice('GNU.sparse.'.length), text);
  }
  if (sparse.size > 0) records.sparse = readSparse(sparse, sparseMap, offset);
  return records;
}

function readSparse(keys: Map<string, string>, listed: [number, number][], offset: number): PaxSparse {
  const size = keys.get('realsize') ?? keys.get('size');
  if (size === undefined) throw malformed(offset, 'a sparse file has no size');
  const name = keys.get('name');
  const map = listed;
  const packed = keys.get('map');
  if (packed !== undefined) {
    const numbers = packed.split(',').map((text) => wholeNumber(text, offset));
    if (numbers.length % 2 !== 0) throw malformed(offset, 'a sparse map contradicts itself');
    for (let i = 0; i < numbers.length; i += 2) map.push([numbers[i] ?? 0, numbers[i + 1] ?? 0]);
  }
  return {
    size: wholeNumber(size, offset),
    map,
    mapInBody: keys.get('major') === '1',
    ...(name === undefined ? {} : { name: noNul(name, offset) }),
  };
}

/**
 * The map of a version 1.0 sparse file: decimal numbers, one a line, a count first, padded to a whole block.
 * `read` gives bytes of the body; fewer than asked for at its end.
 */
export function sparseFromPax(
  read: (from: number, length: number) => Buffer,
  most: number,
  offset: number,
): { map: [number, number][]; bodyOffset: number } {
  let at = 0;
  const next = (): number => {
    const chunk = read(at, 24);
    const newline = chunk.indexOf(0x0a);
    if (newline < 0) throw malformed(offset, 'a sparse map does not end');
    at += newline + 1;
    return wholeNumber(chunk.toString('latin1', 0, newline), offset);
  };
  const count = next();
  if (count > most) throw malformed(offset, `a sparse map has ${count} parts`);
  const map: [number, number][] = [];
  for (let i = 0; i < count; i += 1) map.push([next(), next()]);
  return { map, bodyOffset: Math.ceil(at / 512) * 512 };
}

function wholeNumber(text: string, offset: number): number {
  const value = /^[0-9]{1,16}$/.test(text) ? Number(text) : Number.NaN;
  if (!Number.isSafeInteger(value)) throw malformed(offset, 'a number does not fit its field');
  return value;
}

function seconds(text: string, offset: number): number {
  if (!/^-?[0-9]{1,15}(\.[0-9]*)?$/.test(text)) throw malformed(offset, 'a time is malformed');
  return Math.floor(Number(text));
}

function noNul(text: string, offset: number): string {
  if (text.includes('\0')) throw malformed(offset, 'a name has a zero byte');
  return text;
}

function malformed(offset: number, what: string): ImageError {
  return new ImageError(
    'invalid-image',
    `a layer's tar archive is damaged at byte ${offset}: ${what} in an extended header`,
  );
}
