import { open } from 'node:fs/promises';
import type { FileHandle } from 'node:fs/promises';

const CLUSTER_BITS = 16;
export const CLUSTER_BYTES = 1 << CLUSTER_BITS;
/** Each L1 entry names one L2 table of CLUSTER_BYTES / 8 entries. */
const BYTES_PER_L1_ENTRY = CLUSTER_BYTES * (CLUSTER_BYTES / 8);
const HEADER_BYTES = 104;
/** An L1 table of this many entries reaches 4 PiB; QEMU allows 32 MiB of table. */
const VIRTUAL_MAX_BYTES = 64 * 1024 ** 4;

/**
 * Writes an empty qcow2 image (version 3, QEMU's docs/interop/qcow2.txt): all of it reads from whatever backing node
 * it is opened with. Written here because starting `qemu-img` would cost more than everything else a disk needs.
 *
 * No backing file is named in it: a name would be followed by whoever opens it, from wherever it stands.
 * @param virtualBytes size that the guest sees, a multiple of 512
 */
export async function createEmptyQcow2(path: string, virtualBytes: number, mode = 0o600): Promise<void> {
  if (
    !Number.isSafeInteger(virtualBytes) ||
    virtualBytes <= 0 ||
    virtualBytes % 512 !== 0 ||
    virtualBytes > VIRTUAL_MAX_BYTES
  ) {
    throw new Error(
      `a disk cannot have ${virtualBytes} bytes: it takes a multiple of 512 up to ${VIRTUAL_MAX_BYTES}`,
    );
  }
  const l1Entries = Math.ceil(virtualBytes / BYTES_PER_L1_ENTRY);
  const clusters = emptyQcow2Bytes(virtualBytes) / CLUSTER_BYTES;

  const header = Buffer.alloc(HEADER_BYTES);
  header.write('QFI\xfb', 0, 'latin1');
  header.writeUInt32BE(3, 4);
  header.writeUInt32BE(CLUSTER_BITS, 20);
  header.writeBigUInt64BE(BigInt(virtualBytes), 24);
  header.writeUInt32BE(l1Entries, 36);
  header.writeBigUInt64BE(BigInt(3 * CLUSTER_BYTES), 40);
  header.writeBigUInt64BE(BigInt(CLUSTER_BYTES), 48);
  header.writeUInt32BE(1, 56);
  // Compatible feature: lazy refcounts, so that allocating a cluster does not wait for its counter on the disk.
  header.writeBigUInt64BE(1n, 80);
  header.writeUInt32BE(4, 96);
  header.writeUInt32BE(HEADER_BYTES, 100);

  const refcountTable = Buffer.alloc(8);
  refcountTable.writeBigUInt64BE(BigInt(2 * CLUSTER_BYTES), 0);
  const refcounts = Buffer.alloc(clusters * 2);
  for (let cluster = 0; cluster < clusters; cluster++) refcounts.writeUInt16BE(1, cluster * 2);

  const file = await open(path, 'wx', mode);
  try {
    await file.truncate(clusters * CLUSTER_BYTES);
    await Promise.all([
      file.write(header, 0, header.length, 0),
      file.write(refcountTable, 0, refcountTable.length, CLUSTER_BYTES),
      file.write(refcounts, 0, refcounts.length, 2 * CLUSTER_BYTES),
    ]);
  } finally {
    await file.close();
  }
}

/** Length of a layer that nothing was written to. */
export function emptyQcow2Bytes(virtualBytes: number): number {
  const l1Entries = Math.ceil(virtualBytes / BYTES_PER_L1_ENTRY);
  // Header, refcount table, one refcount block (it counts 32768 clusters), the L1 table.
  return (3 + Math.ceil((l1Entries * 8) / CLUSTER_BYTES)) * CLUSTER_BYTES;
}

/**
 * Refuses a layer that is not what `createEmptyQcow2` has made and a VMM has written to since. Whoever takes over a
 * VMM writes what it likes into its layer, and the next VMM opens that before it has given up its privileges: a header
 * may name other files to be opened (backing and data files), or what this program never asks for.
 */
export async function checkQcow2(path: string, virtualBytes: number): Promise<void> {
  const header = Buffer.alloc(HEADER_BYTES);
  const file = await open(path, 'r');
  try {
    await file.read(header, 0, HEADER_BYTES, 0);
  } finally {
    await file.close();
  }
  const facts = {
    magic: header.toString('latin1', 0, 4) === 'QFI\xfb' && header.readUInt32BE(4) === 3,
    'no backing file': header.readBigUInt64BE(8) === 0n,
    clusters: header.readUInt32BE(20) === CLUSTER_BITS,
    size: header.readBigUInt64BE(24) === BigInt(virtualBytes),
    'no encryption': header.readUInt32BE(32) === 0,
    'no snapshots': header.readUInt32BE(60) === 0,
    // Bit 0: not closed cleanly, which the VMM mends.
    features: (header.readBigUInt64BE(72) & ~1n) === 0n,
  };
  const wrong = Object.entries(facts).filter(([, holds]) => !holds);
  if (wrong.length > 0) {
    throw new Error(`the disk ${path} is damaged (${wrong.map(([name]) => name).join(', ')})`);
  }
}

const OFFSET_MASK = 0x00ff_ffff_ffff_fe00n;

/**
 * One cluster of a layer that nobody writes to any more, as a guest would read it.
 * @param index of the cluster, counted in `CLUSTER_BYTES`
 * @returns undefined when the layer does not have it, so that what is below counts
 */
export async function readCluster(path: string, index: number): Promise<Buffer | undefined> {
  const layer = await LayerReader.open(path);
  try {
    const at = await layer.find(index);
    return at === undefined ? undefined : await layer.read(at, CLUSTER_BYTES);
  } finally {
    await layer.close();
  }
}

/** Which clusters a layer has, lowest first, but no more than `most`: then it has that many at least. */
export async function listClusters(path: string, most: number): Promise<number[]> {
  const layer = await LayerReader.open(path);
  try {
    const found: number[] = [];
    for await (const index of layer.clusters()) {
      found.push(index);
      if (found.length >= most) break;
    }
    return found;
  } finally {
    await layer.close();
  }
}

/** Reads a layer's tables. What they say is a VMM's word: nothing is believed beyond the end of the file. */
class LayerReader {
  readonly #file: FileHandle;
  readonly #l1: Buffer;

  private constructor(file: FileHandle, l1: Buffer) {
    this.#file = file;
    this.#l1 = l1;
  }

  static async open(path: string): Promise<LayerReader> {
    const file = await open(path, 'r');
    try {
      const header = Buffer.alloc(HEADER_BYTES);
      await file.read(header, 0, HEADER_BYTES, 0);
      const bytes = Number(header.readBigUInt64BE(24));
      const entries = Math.ceil(bytes / BYTES_PER_L1_ENTRY);
      const l1 = Buffer.alloc(entries * 8);
      await file.read(l1, 0, l1.length, Number(header.readBigUInt64BE(40)));
      return new LayerReader(file, l1);
    } catch (error) {
      await file.close();
      throw error;
    }
  }

  async close(): Promise<void> {
    await this.#file.close();
  }

  async read(at: number, bytes: number): Promise<Buffer> {
    const buffer = Buffer.alloc(bytes);
    await this.#file.read(buffer, 0, bytes, at);
    return buffer;
  }

  /** Where in the file a cluster is; undefined when it is not there. Zeroed clusters count as there, at a hole. */
  async find(index: number): Promise<number | undefined> {
    const perTable = CLUSTER_BYTES / 8;
    const table = await this.#table(Math.floor(index / perTable));
    const entry = table?.readBigUInt64BE((index % perTable) * 8) ?? 0n;
    const offset = entry & OFFSET_MASK;
    return offset === 0n ? undefined : Number(offset);
  }

  async *clusters(): AsyncGenerator<number> {
    const perTable = CLUSTER_BYTES / 8;
    for (let at = 0; at < this.#l1.length / 8; at++) {
      const table = await this.#table(at);
      if (table === undefined) continue;
      for (let entry = 0; entry < perTable; entry++) {
        if (table.readBigUInt64BE(entry * 8) !== 0n) yield at * perTable + entry;
      }
    }
  }

  async #table(at: number): Promise<Buffer | undefined> {
    if ((at + 1) * 8 > this.#l1.length) return undefined;
    const offset = Number(this.#l1.readBigUInt64BE(at * 8) & OFFSET_MASK);
    return offset === 0 ? undefined : await this.read(offset, CLUSTER_BYTES);
  }
}
