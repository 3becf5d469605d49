/** The parts of a squashfs image that are not file data: streams of bytes in blocks of 8 KiB, stored uncompressed. */

export const METADATA_BLOCK = 8192;
/** As stored: behind a length of two bytes, whose top bit says "uncompressed". */
const STORED_BLOCK = METADATA_BLOCK + 2;
const UNCOMPRESSED = 0x8000;

/** A place in a table: where its block begins, relative to the table, and the offset in the block. */
export interface TablePosition {
  block: number;
  offset: number;
}

export class MetadataTable {
  readonly #blocks: Buffer[] = [];
  #current = Buffer.alloc(METADATA_BLOCK);
  #used = 0;

  /** Bytes written so far. */
  get length(): number {
    return this.#blocks.length * METADATA_BLOCK + this.#used;
  }

  /** Where the next byte goes. */
  get position(): TablePosition {
    return positionOf(this.length);
  }

  write(data: Buffer): void {
    for (let done = 0; done < data.length; ) {
      const count = data.copy(this.#current, this.#used, done);
      this.#used += count;
      done += count;
      if (this.#used === METADATA_BLOCK) {
        this.#blocks.push(this.#current);
        this.#current = Buffer.alloc(METADATA_BLOCK);
        this.#used = 0;
      }
    }
  }

  /** The table as stored. */
  *stored(): Generator<Buffer, void, void> {
    const last = this.#used === 0 ? [] : [this.#current.subarray(0, this.#used)];
    for (const block of [...this.#blocks, ...last]) {
      const length = Buffer.alloc(2);
      length.writeUInt16LE(block.length | UNCOMPRESSED);
      yield length;
      yield block;
    }
  }

  /** Where the table's blocks begin in a file that has it at `start`: the index that some tables are found by. */
  index(start: number): Buffer {
    const count = Math.ceil(this.length / METADATA_BLOCK);
    const index = Buffer.alloc(count * 8);
    for (let i = 0; i < count; i += 1) index.writeBigUInt64LE(BigInt(start + i * STORED_BLOCK), i * 8);
    return index;
  }
}

/** Where the byte at `at` of a table's stream is stored. */
export function positionOf(at: number): TablePosition {
  return { block: Math.floor(at / METADATA_BLOCK) * STORED_BLOCK, offset: at % METADATA_BLOCK };
}

/** A position as other parts of the image refer to it. */
export function reference({ block, offset }: TablePosition): bigint {
  return (BigInt(block) << 16n) | BigInt(offset);
}
