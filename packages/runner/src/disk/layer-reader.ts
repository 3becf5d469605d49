import { open } from 'node:fs/promises';
import type { FileHandle } from 'node:fs/promises';
import { CLUSTER_BYTES, HEADER_BYTES, L2_ENTRIES, l1Entries } from './qcow2.ts';

const OFFSET_MASK = 0x00ff_ffff_ffff_fe00n;
const ZERO = 1n;
const COMPRESSED = 1n << 62n;

/** A cluster in a layer: its offset in the file, `zero`, or unallocated (undefined), so that the layer below is read. */
export type Cluster = number | 'zero' | undefined;

/** An L2 table of a layer: `L2_ENTRIES` clusters. */
export class ClusterTable {
  readonly #entries: Buffer;

  constructor(entries: Buffer) {
    this.#entries = entries;
  }

  /** Whether the cluster is allocated or zero. @param entry from 0 to `L2_ENTRIES` - 1 */
  has(entry: number): boolean {
    return this.#entries.readUInt32BE(entry * 8) !== 0 || this.#entries.readUInt32BE(entry * 8 + 4) !== 0;
  }

  /** @throws when the entry is one that our VMMs do not write */
  at(entry: number): Cluster {
    const value = this.#entries.readBigUInt64BE(entry * 8);
    if (value === 0n) return undefined;
    if ((value & COMPRESSED) !== 0n) throw new Error('a layer is damaged: it has a compressed cluster');
    if ((value & ZERO) !== 0n) return 'zero';
    const at = Number(value & OFFSET_MASK);
    if (at % CLUSTER_BYTES !== 0)
      throw new Error('a layer is damaged: the offset of a cluster is not aligned');
    return at;
  }
}

/**
 * Reads an immutable layer whose header was checked (`checkQcow2`). Its tables were written by a VMM and are not trusted:
 * offsets beyond the end of the file read as zeros, as in QEMU.
 */
export class LayerReader implements AsyncDisposable {
  readonly #file: FileHandle;
  readonly #l1: Buffer;
  /** A bit for each cluster of the file: whether an entry refers to it. */
  readonly #taken: Uint8Array;

  private constructor(file: FileHandle, l1: Buffer, fileBytes: number) {
    this.#file = file;
    this.#l1 = l1;
    this.#taken = new Uint8Array(Math.ceil(Math.ceil(fileBytes / CLUSTER_BYTES) / 8));
  }

  /** @param virtualBytes size of the disk, from the manifest: the layer's header is not trusted */
  static async open(path: string, virtualBytes: number): Promise<LayerReader> {
    const file = await open(path, 'r');
    try {
      const header = Buffer.alloc(HEADER_BYTES);
      await file.read(header, 0, HEADER_BYTES, 0);
      const l1 = Buffer.alloc(l1Entries(virtualBytes) * 8);
      await file.read(l1, 0, l1.length, Number(header.readBigUInt64BE(40)));
      return new LayerReader(file, l1, (await file.stat()).size);
    } catch (error) {
      await file.close();
      throw error;
    }
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.#file.close();
  }

  /** Reads from the file, at the offset of a `Cluster`. */
  async read(at: number, bytes: number): Promise<Buffer> {
    const buffer = Buffer.alloc(bytes);
    for (let done = 0; done < bytes; ) {
      const { bytesRead } = await this.#file.read(buffer, done, bytes - done, at + done);
      if (bytesRead === 0) break;
      done += bytesRead;
    }
    return buffer;
  }

  /**
   * Marks clusters as referenced. Each may be referenced once, or a small file could describe a disk of any size.
   * @throws when a cluster is referenced twice
   */
  claim(at: number, clusters: number): void {
    for (let n = at / CLUSTER_BYTES; n < at / CLUSTER_BYTES + clusters; n++) {
      const byte = this.#taken[n >> 3];
      // Beyond the end of the file: zeros, which are not copied.
      if (byte === undefined) continue;
      const bit = 1 << (n & 7);
      if ((byte & bit) !== 0) throw new Error('a layer is damaged: two entries refer to one cluster');
      this.#taken[n >> 3] = byte | bit;
    }
  }

  /** Reads an L2 table; undefined when it is not allocated. @param stretch index in the L1 table */
  async table(stretch: number): Promise<ClusterTable | undefined> {
    if ((stretch + 1) * 8 > this.#l1.length) return undefined;
    const offset = Number(this.#l1.readBigUInt64BE(stretch * 8) & OFFSET_MASK);
    return offset === 0 ? undefined : new ClusterTable(await this.read(offset, CLUSTER_BYTES));
  }

  /** Indexes of the clusters that are allocated or zero, lowest first. */
  async *clusters(): AsyncGenerator<number> {
    for (let stretch = 0; stretch < this.#l1.length / 8; stretch++) {
      const table = await this.table(stretch);
      if (table === undefined) continue;
      for (let entry = 0; entry < L2_ENTRIES; entry++) {
        if (table.has(entry)) yield stretch * L2_ENTRIES + entry;
      }
    }
  }
}
