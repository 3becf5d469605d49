/** Inodes of squashfs 4.0, in their basic form where that can say it, else in the extended one. */
import type { TreeNode } from '../layer-tree.ts';

export const BLOCK_BYTES = 128 * 1024;
/** In a block's size: it is stored uncompressed. A size of 0 is a block of zeros that is not stored. */
const UNCOMPRESSED = 1 << 24;
const NONE = 0xffff_ffff;
const UINT32 = 2 ** 32;
/** The listing of an empty folder has this size: readers count `.` and `..`. */
const LISTING_EXTRA = 3;

const TYPES = { directory: 1, file: 2, symlink: 3, block: 4, char: 5, fifo: 6 } as const;
const EXTENDED = 7;

/** As entries of a folder have it. */
export function basicType(node: TreeNode): number {
  return TYPES[node.type];
}

export interface InodeFacts {
  number: number;
  uid: number;
  gid: number;
  links: number;
  /** Index in the table of attributes. */
  xattrs: number | undefined;
}

export interface FileData {
  /** Where the data begins in the image. */
  start: number;
  /** Stored bytes of each block, if they are not simply as many as the file has. */
  blocks?: number[];
  /** Bytes of the blocks that are not stored. */
  holes: number;
}

export interface Listing {
  /** Where it begins in the folder table. */
  block: number;
  offset: number;
  bytes: number;
  index: { at: number; block: number; name: Buffer }[];
}

export function fileInode(node: TreeNode, facts: InodeFacts, data: FileData): Buffer {
  const sizes = data.blocks ?? plainBlocks(node.size);
  const list = Buffer.alloc(sizes.length * 4);
  for (const [i, size] of sizes.entries()) list.writeUInt32LE(size === 0 ? 0 : size | UNCOMPRESSED, i * 4);
  const isBasic =
    facts.links === 1 &&
    facts.xattrs === undefined &&
    data.holes === 0 &&
    data.start < UINT32 &&
    node.size < UINT32;
  if (isBasic) {
    const inode = header(node, facts, false, 32);
    inode.writeUInt32LE(data.start, 16);
    inode.writeUInt32LE(NONE, 20);
    inode.writeUInt32LE(node.size, 28);
    return Buffer.concat([inode, list]);
  }
  const inode = header(node, facts, true, 56);
  inode.writeBigUInt64LE(BigInt(data.start), 16);
  inode.writeBigUInt64LE(BigInt(node.size), 24);
  inode.writeBigUInt64LE(BigInt(data.holes), 32);
  inode.writeUInt32LE(facts.links, 40);
  inode.writeUInt32LE(NONE, 44);
  inode.writeUInt32LE(facts.xattrs ?? NONE, 52);
  return Buffer.concat([inode, list]);
}

function* blockSizes(size: number): Generator<number, void, void> {
  for (let left = size; left > 0; left -= BLOCK_BYTES) yield Math.min(left, BLOCK_BYTES);
}

function plainBlocks(size: number): number[] {
  return [...blockSizes(size)];
}

export function directoryInode(node: TreeNode, facts: InodeFacts, listing: Listing, parent: number): Buffer {
  const size = listing.bytes + LISTING_EXTRA;
  if (facts.xattrs === undefined && listing.index.length === 0 && size <= 0xffff) {
    const inode = header(node, facts, false, 32);
    inode.writeUInt32LE(listing.block, 16);
    inode.writeUInt32LE(facts.links, 20);
    inode.writeUInt16LE(size, 24);
    inode.writeUInt16LE(listing.offset, 26);
    inode.writeUInt32LE(parent, 28);
    return inode;
  }
  const inode = header(node, facts, true, 40);
  inode.writeUInt32LE(facts.links, 16);
  inode.writeUInt32LE(size, 20);
  inode.writeUInt32LE(listing.block, 24);
  inode.writeUInt32LE(parent, 28);
  inode.writeUInt16LE(listing.index.length, 32);
  inode.writeUInt16LE(listing.offset, 34);
  inode.writeUInt32LE(facts.xattrs ?? NONE, 36);
  const entries = listing.index.map(({ at, block, name }) => {
    const entry = Buffer.alloc(12);
    entry.writeUInt32LE(at, 0);
    entry.writeUInt32LE(block, 4);
    entry.writeUInt32LE(name.length - 1, 8);
    return Buffer.concat([entry, name]);
  });
  return Buffer.concat([inode, ...entries]);
}

/** Links, devices and pipes. */
export function otherInode(node: TreeNode, facts: InodeFacts): Buffer {
  const parts: Buffer[] = [header(node, facts, facts.xattrs !== undefined, 20)];
  parts[0]?.writeUInt32LE(facts.links, 16);
  if (node.type === 'symlink') {
    const target = Buffer.from(node.link, 'latin1');
    parts.push(uint32(target.length), target);
  } else if (node.type === 'char' || node.type === 'block') {
    const { devMajor: major, devMinor: minor } = node;
    // As Linux encodes device numbers of 12 and 20 bits.
    parts.push(uint32(((minor & 0xff) | ((major & 0xfff) << 8) | ((minor & 0xf_ff00) << 12)) >>> 0));
  }
  if (facts.xattrs !== undefined) parts.push(uint32(facts.xattrs));
  return Buffer.concat(parts);
}

function header(node: TreeNode, facts: InodeFacts, extended: boolean, bytes: number): Buffer {
  const inode = Buffer.alloc(bytes);
  inode.writeUInt16LE(TYPES[node.type] + (extended ? EXTENDED : 0), 0);
  inode.writeUInt16LE(node.mode & 0o7777, 2);
  inode.writeUInt16LE(facts.uid, 4);
  inode.writeUInt16LE(facts.gid, 6);
  inode.writeUInt32LE(node.mtime, 8);
  inode.writeUInt32LE(facts.number, 12);
  return inode;
}

function uint32(value: number): Buffer {
  const bytes = Buffer.alloc(4);
  bytes.writeUInt32LE(value);
  return bytes;
}
