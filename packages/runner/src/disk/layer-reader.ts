import { open } from 'node:fs/promises';
import type { FileHandle } from 'node:fs/promises';
import { CLUSTER_BYTES, HEADER_BYTES, L2_ENTRIES, l1Entries } from './qcow2.ts';

const OFFSET_MASK = 0x00ff_ffff_ffff_fe00n;
const ZERO = 1n;
const COMPRESSED = 1n << 62n;

/** What a layer says of one cluster: where in its file it is, that it is zero, or nothing, so that what is below counts. */
export type Cluster = number | 'zero' | undefined;

/** The clusters of one stretch of a disk (`L2_ENTRIES` of them), as one layer has them. */
export class ClusterTable {
  readonly #entries: Buffer;

  constructor(entries: Buffer) {
    this.#entries = entries;
  }

  /** Whether the layer says anything of it. @param entry from 0 to `L2_ENTRIES` - 1 */
  has(entry: number): boolean {
    return this.#entries.readUInt32BE(entry * 8) !== 0 || this.#entries.readUInt32BE(entry * 8 + 4) !== 0;
  }

  /** @throws when it says what no VMM of ours writes */
  at(entry: number): Cluster {
    const value = this.#entries.readBigUInt64BE(entry * 8);
    if (value === 0n) return undefined;
    if ((value & COMPRESSED) !== 0n) throw new Error('a layer is damaged: it has a compressed cluster');
    if ((value & ZERO) !== 0n) return 'zero';
    const at = Number(value & OFFSET_MASK);
    if (at % CLUSTER_BYTES !== 0) throw new Error('a layer is damaged: a cluster of it begins between two');
    return at;
  }
}

/**
 * Reads an immutable layer, whose header was checked (`checkQcow2`). What its tables say is a VMM's
 * word: nothing is believed beyond the end of the file, which reads as zeros as it does for QEMU.
 */
export class LayerReader implements AsyncDisposable {
  readonly #file: FileHandle;
  readonly #l1: Buffer;
  /** A bit for each cluster of the file: whether some part of the disk lies in it. */
  readonly #taken: Uint8Array;

  private constructor(file: FileHandle, l1: Buffer, fileBytes: number) {
    this.#file = file;
    this.#l1 = l1;
    this.#taken = new Uint8Array(Math.ceil(Math.ceil(fileBytes / CLUSTER_BYTES) / 8));
  }

  /** @param virtualBytes size of the disk; not the layer's own word, which a VMM may have written */
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

  /** Bytes of its file, from a place that a `Cluster` names. */
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
   * Marks clusters as used. Each holds one part of the disk and no more, or a small file could describe a disk of any size.
   * @throws when one was used before
   */
  claim(at: number, clusters: number): void {
    for (let n = at / CLUSTER_BYTES; n < at / CLUSTER_BYTES + clusters; n++) {
      const byte = this.#taken[n >> 3];
      // Beyond the end of the file there are only zeros, which cost nothing.
      if (byte === undefined) continue;
      const bit = 1 << (n & 7);
      if ((byte & bit) !== 0) throw new Error('a layer is damaged: two parts of the disk have one cluster');
      this.#taken[n >> 3] = byte | bit;
    }
  }

  /** What it says of a stretch of the disk; undefined when that is nothing. */
  async table(stretch: number): Promise<ClusterTable | undefined> {
    if ((stretch + 1) * 8 > this.#l1.length) return undefined;
    const offset = Number(this.#l1.readBigUInt64BE(stretch * 8) & OFFSET_MASK);
    return offset === 0 ? undefined : new ClusterTable(await this.read(offset, CLUSTER_BYTES));
  }

  /** Which clusters it says anything of, lowest first. */
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
