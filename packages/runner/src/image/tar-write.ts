/**
 * Tar headers of layers that are made here. Long names are GNU records; extended attributes only exist in pax. Names are
 * latin1 strings, one character a byte.
 */
import type { TreeNode } from './layer-tree.ts';

const BLOCK = 512;
const OCTAL_ID_MAX = 0o7_777_777;
const OCTAL_SIZE_MAX = 0o77_777_777_777;

const FLAGS = { file: '0', symlink: '2', char: '3', block: '4', directory: '5', fifo: '6' } as const;

/** All blocks that precede the body of `node` under the name `path`. With `linkTo`, a hard link to that earlier name. */
export function tarHeader(path: string, node: TreeNode, linkTo?: string): Buffer {
  const name = node.type === 'directory' ? `${path}/` : path;
  const link = linkTo ?? node.link;
  const blocks: Buffer[] = [];
  if (node.xattrs && linkTo === undefined) blocks.push(...record('x', paxXattrs(node.xattrs)));
  if (link.length > 100) blocks.push(...record('K', Buffer.from(`${link}\0`, 'latin1')));
  if (name.length > 100) blocks.push(...record('L', Buffer.from(`${name}\0`, 'latin1')));
  const isFile = node.type === 'file' && linkTo === undefined;
  blocks.push(
    header({
      name,
      link,
      flag: linkTo === undefined ? FLAGS[node.type] : '1',
      mode: node.mode,
      uid: node.uid,
      gid: node.gid,
      size: isFile ? node.size : 0,
      mtime: node.mtime,
      devMajor: node.devMajor,
      devMinor: node.devMinor,
    }),
  );
  return Buffer.concat(blocks);
}

/** Zero bytes that fill a body of `size` up to a whole block. */
export function tarPadding(size: number): Buffer {
  return Buffer.alloc((BLOCK - (size % BLOCK)) % BLOCK);
}

/** What ends an archive. */
export const TAR_END = Buffer.alloc(2 * BLOCK);

interface HeaderFields {
  name: string;
  link: string;
  flag: string;
  mode: number;
  uid: number;
  gid: number;
  size: number;
  mtime: number;
  devMajor: number;
  devMinor: number;
}

function header(fields: HeaderFields): Buffer {
  const block = Buffer.alloc(BLOCK);
  block.write(fields.name.slice(0, 100), 0, 'latin1');
  octal(block, fields.mode, 100, 8);
  id(block, fields.uid, 108);
  id(block, fields.gid, 116);
  if (fields.size > OCTAL_SIZE_MAX) base256(block, fields.size, 124, 12);
  else octal(block, fields.size, 124, 12);
  octal(block, fields.mtime, 136, 12);
  block.write(fields.flag, 156, 'latin1');
  block.write(fields.link.slice(0, 100), 157, 'latin1');
  block.write('ustar  \0', 257, 'latin1');
  octal(block, fields.devMajor, 329, 8);
  octal(block, fields.devMinor, 337, 8);
  block.fill(0x20, 148, 156);
  const sum = block.reduce((total, byte) => total + byte, 0);
  block.write(`${sum.toString(8).padStart(6, '0')}\0 `, 148, 'latin1');
  return block;
}

function octal(block: Buffer, value: number, at: number, length: number): void {
  block.write(`${value.toString(8).padStart(length - 1, '0')}\0`, at, 'latin1');
}

function id(block: Buffer, value: number, at: number): void {
  if (value > OCTAL_ID_MAX) base256(block, value, at, 8);
  else octal(block, value, at, 8);
}

function base256(block: Buffer, value: number, at: number, length: number): void {
  let rest = BigInt(value);
  for (let i = length - 1; i > 0; i -= 1) {
    block[at + i] = Number(rest & 0xffn);
    rest >>= 8n;
  }
  block[at] = 0x80;
}

function record(flag: 'x' | 'L' | 'K', data: Buffer): Buffer[] {
  const fields = { link: '', mode: 0o644, uid: 0, gid: 0, mtime: 0, devMajor: 0, devMinor: 0 };
  const name = flag === 'x' ? './PaxHeaders/attributes' : '././@LongLink';
  return [header({ ...fields, name, flag, size: data.length }), data, tarPadding(data.length)];
}

function paxXattrs(xattrs: ReadonlyMap<string, Buffer>): Buffer {
  const records: Buffer[] = [];
  for (const [name, value] of [...xattrs].toSorted(([a], [b]) => (a < b ? -1 : 1))) {
    const key = Buffer.from(` SCHILY.xattr.${name}=`, 'latin1');
    const rest = key.length + value.length + 1;
    // The length counts its own digits.
    let length = rest + String(rest).length;
    if (String(length).length !== String(rest).length) length = rest + String(length).length;
    records.push(Buffer.from(String(length)), key, value, Buffer.from('\n'));
  }
  return Buffer.concat(records);
}
