import { open } from 'node:fs/promises';
import type { FileHandle } from 'node:fs/promises';
import { syncLargeData } from './sync-path.ts';
import { CLUSTER_BYTES, L2_ENTRIES, l1Entries, qcow2Header } from './qcow2.ts';

/** The flag QCOW_OFLAG_COPIED: the cluster's reference count is 1, so a VMM may write to it in place. */
const COPIED = 1n << 63n;
const ZERO = 1n;
/** Clusters that one refcount block counts, with 16 bits each. */
const COUNTERS = CLUSTER_BYTES / 2;

/** Writes a layer sequentially. `finish` writes the header last, so that an incomplete file is not a valid layer. */
export class LayerWriter implements AsyncDisposable {
  readonly #file: FileHandle;
  readonly #virtualBytes: number;
  readonly #l1: Buffer;
  #end = CLUSTER_BYTES;

  private constructor(file: FileHandle, virtualBytes: number) {
    this.#file = file;
    this.#virtualBytes = virtualBytes;
    this.#l1 = Buffer.alloc(l1Entries(virtualBytes) * 8);
  }

  /** @throws EEXIST when the file exists */
  static async create(path: string, virtualBytes: number, mode: number): Promise<LayerWriter> {
    return new LayerWriter(await open(path, 'wx', mode), virtualBytes);
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.#file.close();
  }

  /** Appends whole clusters. @returns the offset of the first one in the file */
  async append(clusters: Buffer): Promise<number> {
    const at = this.#end;
    this.#end += Math.ceil(clusters.length / CLUSTER_BYTES) * CLUSTER_BYTES;
    for (let done = 0; done < clusters.length; ) {
      const { bytesWritten } = await this.#file.write(clusters, done, clusters.length - done, at + done);
      done += bytesWritten;
    }
    return at;
  }

  /** Appends an L2 table. @param clusters by entry: an offset that `append` returned, `zero`, or unallocated */
  async describe(stretch: number, clusters: readonly (number | 'zero' | undefined)[]): Promise<void> {
    const table = Buffer.alloc(L2_ENTRIES * 8);
    clusters.forEach((cluster, entry) => {
      if (cluster === undefined) return;
      table.writeBigUInt64BE(cluster === 'zero' ? ZERO : BigInt(cluster) | COPIED, entry * 8);
    });
    this.#l1.writeBigUInt64BE(BigInt(await this.append(table)) | COPIED, stretch * 8);
  }

  /** Writes the L1 and refcount tables and the header, and fsyncs the file. */
  async finish(): Promise<void> {
    const l1At = await this.append(this.#l1);
    const before = this.#end / CLUSTER_BYTES;
    // The refcount blocks and tables count themselves, too.
    let blocks = 0;
    let tables = 0;
    for (let clusters = -1; clusters !== before + blocks + tables; ) {
      clusters = before + blocks + tables;
      blocks = Math.ceil(clusters / COUNTERS);
      tables = Math.ceil((blocks * 8) / CLUSTER_BYTES);
    }
    const counters = Buffer.alloc(blocks * CLUSTER_BYTES);
    for (let cluster = 0; cluster < before + blocks + tables; cluster++) {
      counters.writeUInt16BE(1, cluster * 2);
    }
    const countersAt = await this.append(counters);
    const table = Buffer.alloc(tables * CLUSTER_BYTES);
    for (let block = 0; block < blocks; block++) {
      table.writeBigUInt64BE(BigInt(countersAt + block * CLUSTER_BYTES), block * 8);
    }
    const refcountsAt = await this.append(table);
    // Readers may expect a file of whole clusters.
    await this.#file.truncate(this.#end);
    const header = qcow2Header({
      virtualBytes: this.#virtualBytes,
      l1At,
      refcountsAt,
      refcountClusters: tables,
    });
    await this.#file.write(header, 0, header.length, 0);
    await syncLargeData(this.#file);
  }
}
