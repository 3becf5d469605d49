/**
 * Writes a merged tree as a squashfs 4.0 image with nothing compressed.
 *
 * Our own writer, because a tar archive's bodies can be taken as they lie: data is copied in the order of the layers, in
 * runs of many files (a tar header between two bodies is copied along as a gap that no inode refers to), and only the
 * tables are made anew. What a tool spends on a stream of files, an image with known layers does not cost.
 * Names are in byte order and nothing depends on time or place, so the same layers give the same image, byte for byte.
 */
import { readSync, writeSync } from 'node:fs';
import { ImageError } from '../image-error.ts';
import { STACK_ALIGN, type StackPlan } from '../image-stack.ts';
import type { TreeNode } from '../layer-tree.ts';
import { type DirectoryEntry, writeListing } from './directory.ts';
import {
  basicType,
  BLOCK_BYTES,
  directoryInode,
  type FileData,
  fileInode,
  type InodeFacts,
  type Listing,
  otherInode,
} from './inode.ts';
import { MetadataTable, reference, type TablePosition } from './metadata-table.ts';
import { XattrTable } from './xattr-table.ts';

/** Reads bytes of a layer's archive. */
export type ReadLayer = (layer: number, into: Buffer, position: number) => void;

const SUPERBLOCK_BYTES = 96;
const MAGIC = 0x7371_7368;
/** Files are padded to this, as block devices are read in such parts. */
const PAGE = 4096;
/** Largest gap between two bodies that is copied instead of starting a new run: a tar header with attributes. */
const GAP_MAX = 8 * 1024;
const COPY_BYTES = 1024 * 1024;
/** Bytes after which other work of the process gets its turn. */
const TURN_BYTES = 8 * 1024 * 1024;
const NO_TABLE = 0xffff_ffff_ffff_ffffn;
const GZIP = 1;
/** Uncompressed inodes, data, fragments, attributes and ids; no fragments; exportable. */
const FLAGS = 0x1 | 0x2 | 0x8 | 0x10 | 0x80 | 0x100 | 0x800;
const NO_XATTRS = 0x200;

/**
 * Writes the image at the start of `fd`.
 * @param stack only the head of a stacked image is written: bodies of these layers stay where they are
 * @returns the size of what was written
 */
export async function writeSquashfs(
  root: TreeNode,
  readLayer: ReadLayer,
  fd: number,
  onBytes: (done: number) => void,
  stack?: StackPlan,
): Promise<number> {
  const shift = stack === undefined ? 0 : stack.tail - STACK_ALIGN;
  const out = new Output(fd, stack?.tail ?? SUPERBLOCK_BYTES, shift, onBytes);
  const data = await writeData(root, readLayer, out, stack);
  const tables = makeTables(root, data);
  const superblock = writeTables(tables, out);
  const end = out.position;
  out.write(Buffer.alloc((PAGE - (end % PAGE)) % PAGE));
  superblock.writeBigUInt64LE(BigInt(end), 40);
  writeSync(fd, superblock, 0, superblock.length, 0);
  return out.position - shift;
}

class Output {
  readonly #fd: number;
  readonly #onBytes: (done: number) => void;
  /** How much later a byte lies in the image than in the file. */
  readonly #shift: number;
  #position: number;
  #turn = 0;

  constructor(fd: number, start: number, shift: number, onBytes: (done: number) => void) {
    this.#fd = fd;
    this.#position = start;
    this.#shift = shift;
    this.#onBytes = onBytes;
  }

  /** In the image. */
  get position(): number {
    return this.#position;
  }

  write(data: Buffer): void {
    const at = this.#position - this.#shift;
    for (let done = 0; done < data.length; ) {
      done += writeSync(this.#fd, data, done, data.length - done, at + done);
    }
    this.#position += data.length;
    this.#turn += data.length;
  }

  /** Lets other work of the process run, now and then. */
  async breathe(): Promise<void> {
    if (this.#turn < TURN_BYTES) return;
    this.#turn = 0;
    this.#onBytes(this.#position - this.#shift);
    await new Promise((resolve) => setImmediate(resolve));
  }
}

const inOrder = new WeakMap<TreeNode, [string, TreeNode][]>();

/** The children of a folder, of a tree that does not change any more. */
function sorted(node: TreeNode): [string, TreeNode][] {
  let children = inOrder.get(node);
  if (children === undefined) {
    children = [...(node.children ?? [])].sort(([a], [b]) => (a < b ? -1 : 1));
    inOrder.set(node, children);
  }
  return children;
}

/** All files with content, each once. */
function* filesOf(folder: TreeNode, seen = new Set<TreeNode>()): Generator<TreeNode, void, void> {
  for (const [, node] of sorted(folder)) {
    if (node.children) yield* filesOf(node, seen);
    else if (node.type === 'file' && node.size > 0 && !seen.has(node)) {
      if (node.names > 1) seen.add(node);
      yield node;
    }
  }
}

interface Run {
  layer: number;
  from: number;
  to: number;
}

async function writeData(
  root: TreeNode,
  readLayer: ReadLayer,
  out: Output,
  stack: StackPlan | undefined,
): Promise<Map<TreeNode, FileData>> {
  const data = new Map<TreeNode, FileData>();
  const stacked = new Map(stack?.layers.map(({ index, at }) => [index, at]));
  const whole: TreeNode[] = [];
  const sparse: TreeNode[] = [];
  for (const node of filesOf(root)) {
    const [extent] = node.extents;
    const isWhole = node.extents.length === 1 && extent?.at === 0 && extent.length === node.size;
    const layerAt = isWhole ? stacked.get(node.layer) : undefined;
    if (layerAt !== undefined && extent !== undefined) {
      data.set(node, { start: layerAt + extent.offset, holes: 0 });
    } else (isWhole ? whole : sparse).push(node);
  }
  const offsetOf = (node: TreeNode): number => node.extents[0]?.offset ?? 0;
  whole.sort((a, b) => a.layer - b.layer || offsetOf(a) - offsetOf(b));

  const runs: Run[] = [];
  let at = out.position;
  for (const node of whole) {
    const from = offsetOf(node);
    let run = runs.at(-1);
    const gap = run?.layer === node.layer ? from - run.to : -1;
    if (run === undefined || gap < 0 || gap > GAP_MAX) {
      run = { layer: node.layer, from, to: from };
      runs.push(run);
    }
    at += from - run.to;
    data.set(node, { start: at, holes: 0 });
    run.to = from + node.size;
    at += node.size;
  }
  const buffer = Buffer.allocUnsafe(COPY_BYTES);
  for (const { layer, from, to } of runs) {
    for (let position = from; position < to; position += COPY_BYTES) {
      const part = buffer.subarray(0, Math.min(COPY_BYTES, to - position));
      readLayer(layer, part, position);
      out.write(part);
      await out.breathe();
    }
  }
  for (const node of sparse) data.set(node, await writeSparse(node, readLayer, out));
  return data;
}

/** Blocks that lie in a hole are not stored; the others are put together from what the archive has of them. */
async function writeSparse(node: TreeNode, readLayer: ReadLayer, out: Output): Promise<FileData> {
  const result = { start: out.position, blocks: [] as number[], holes: 0 };
  let next = 0;
  for (let begin = 0; begin < node.size; begin += BLOCK_BYTES) {
    const end = Math.min(begin + BLOCK_BYTES, node.size);
    while ((node.extents[next]?.at ?? Infinity) + (node.extents[next]?.length ?? 0) <= begin) next += 1;
    let block: Buffer | undefined;
    for (let i = next; ; i += 1) {
      const extent = node.extents[i];
      if (extent === undefined || extent.at >= end) break;
      block ??= Buffer.alloc(end - begin);
      const from = Math.max(extent.at, begin);
      const to = Math.min(extent.at + extent.length, end);
      readLayer(node.layer, block.subarray(from - begin, to - begin), extent.offset + from - extent.at);
    }
    result.blocks.push(block?.length ?? 0);
    if (block === undefined) result.holes += end - begin;
    else out.write(block);
    await out.breathe();
  }
  return result;
}

interface Tables {
  inodes: MetadataTable;
  folders: MetadataTable;
  /** Places of the inodes, by number. */
  places: TablePosition[];
  root: TablePosition;
  ids: number[];
  xattrs: XattrTable;
}

function makeTables(root: TreeNode, data: ReadonlyMap<TreeNode, FileData>): Tables {
  const inodes = new MetadataTable();
  const folders = new MetadataTable();
  const xattrs = new XattrTable();
  const ids = new Map<number, number>();
  const { numbers, links } = numberInodes(root);
  const places: TablePosition[] = [];

  const idOf = (id: number): number => {
    const known = ids.get(id);
    if (known !== undefined) return known;
    ids.set(id, ids.size);
    return ids.size - 1;
  };
  const factsOf = (node: TreeNode): InodeFacts => ({
    number: numbers.get(node) ?? 0,
    uid: idOf(node.uid),
    gid: idOf(node.gid),
    links: links.get(node) ?? 1,
    xattrs: node.xattrs === undefined || node.xattrs.size === 0 ? undefined : xattrs.add(node.xattrs),
  });
  const put = (number: number, inode: Buffer): TablePosition => {
    const place = inodes.position;
    inodes.write(inode);
    places[number - 1] = place;
    return place;
  };

  /** Writes all that is below a folder, then its listing. */
  const writeFolder = (folder: TreeNode): Listing => {
    const children = sorted(folder);
    const listings = new Map<TreeNode, Listing>();
    for (const [, node] of children) if (node.children) listings.set(node, writeFolder(node));
    const parent = numbers.get(folder) ?? 0;
    const entries = children.map(([name, node]): DirectoryEntry => {
      const number = numbers.get(node) ?? 0;
      const inode = places[number - 1] ?? put(number, inodeOf(node, listings.get(node), parent));
      return { name: Buffer.from(name, 'latin1'), type: basicType(node), number, inode };
    });
    return writeListing(folders, entries);
  };
  const inodeOf = (node: TreeNode, listing: Listing | undefined, parent: number): Buffer => {
    const facts = factsOf(node);
    if (listing) return directoryInode(node, facts, listing, parent);
    if (node.type === 'file') return fileInode(node, facts, data.get(node) ?? { start: 0, holes: 0 });
    return otherInode(node, facts);
  };
  const listing = writeFolder(root);
  const number = numbers.get(root) ?? 0;
  // No folder has this number: the root has no parent.
  const place = put(number, inodeOf(root, listing, number + 1));
  return { inodes, folders, places, root: place, ids: [...ids.keys()], xattrs };
}

/** Numbers the inodes from 1 on, those of a folder one after the other, and counts their names. */
function numberInodes(root: TreeNode): { numbers: Map<TreeNode, number>; links: Map<TreeNode, number> } {
  const numbers = new Map<TreeNode, number>();
  const links = new Map<TreeNode, number>();
  const visit = (folder: TreeNode): void => {
    const children = sorted(folder);
    let folders = 0;
    for (const [, node] of children) {
      if (!node.children) continue;
      visit(node);
      folders += 1;
    }
    links.set(folder, folders + 2);
    for (const [, node] of children) {
      if (!numbers.has(node)) numbers.set(node, numbers.size + 1);
      if (!node.children && node.names > 1) links.set(node, (links.get(node) ?? 0) + 1);
    }
  };
  visit(root);
  numbers.set(root, numbers.size + 1);
  return { numbers, links };
}

/** Writes the tables in the order that readers check: each ends where the next one begins. */
function writeTables({ inodes, folders, places, root, ids, xattrs }: Tables, out: Output): Buffer {
  const superblock = Buffer.alloc(SUPERBLOCK_BYTES);
  const put = (table: MetadataTable): number => {
    const start = out.position;
    for (const part of table.stored()) out.write(part);
    return start;
  };
  const putIndexed = (table: MetadataTable): number => {
    const index = table.index(put(table));
    const start = out.position;
    out.write(index);
    return start;
  };
  const inodeTable = put(inodes);
  const folderTable = put(folders);
  const fragmentTable = out.position;

  const lookup = new MetadataTable();
  for (const place of places) lookup.write(uint64(reference(place)));
  const lookupTable = putIndexed(lookup);

  const idTable = new MetadataTable();
  for (const id of ids) {
    const bytes = Buffer.alloc(4);
    bytes.writeUInt32LE(id);
    idTable.write(bytes);
  }
  const idsAt = putIndexed(idTable);
  const xattrsAt = xattrs.count === 0 ? NO_TABLE : BigInt(writeXattrs(xattrs, out, put));

  superblock.writeUInt32LE(MAGIC, 0);
  superblock.writeUInt32LE(places.length, 4);
  superblock.writeUInt32LE(BLOCK_BYTES, 12);
  superblock.writeUInt16LE(GZIP, 20);
  superblock.writeUInt16LE(Math.log2(BLOCK_BYTES), 22);
  superblock.writeUInt16LE(FLAGS | (xattrs.count === 0 ? NO_XATTRS : 0), 24);
  superblock.writeUInt16LE(ids.length, 26);
  superblock.writeUInt16LE(4, 28);
  superblock.writeBigUInt64LE(reference(root), 32);
  superblock.writeBigUInt64LE(BigInt(idsAt), 48);
  superblock.writeBigUInt64LE(xattrsAt, 56);
  superblock.writeBigUInt64LE(BigInt(inodeTable), 64);
  superblock.writeBigUInt64LE(BigInt(folderTable), 72);
  superblock.writeBigUInt64LE(BigInt(fragmentTable), 80);
  superblock.writeBigUInt64LE(BigInt(lookupTable), 88);
  return superblock;
}

function writeXattrs(xattrs: XattrTable, out: Output, put: (table: MetadataTable) => number): number {
  const pairs = put(xattrs.pairs);
  const index = xattrs.ids.index(put(xattrs.ids));
  const start = out.position;
  const head = Buffer.alloc(16);
  head.writeBigUInt64LE(BigInt(pairs), 0);
  head.writeUInt32LE(xattrs.count, 8);
  out.write(Buffer.concat([head, index]));
  return start;
}

function uint64(value: bigint): Buffer {
  const bytes = Buffer.alloc(8);
  bytes.writeBigUInt64LE(value);
  return bytes;
}

/** A `ReadLayer` over open files. */
export function layerReader(fds: readonly number[]): ReadLayer {
  return (layer, into, position) => {
    for (let done = 0; done < into.length; ) {
      const got = readSync(fds[layer] ?? -1, into, done, into.length - done, position + done);
      if (got === 0) throw new ImageError('failed', 'a layer became shorter while it was read');
      done += got;
    }
  };
}
