/** Extended attributes, each different set of them stored once. */
import { MetadataTable, reference } from './metadata-table.ts';

const PREFIXES = ['user.', 'trusted.', 'security.'];

export class XattrTable {
  readonly pairs = new MetadataTable();
  readonly ids = new MetadataTable();
  readonly #known = new Map<string, number>();

  get count(): number {
    return this.#known.size;
  }

  /** The index of a set of attributes. */
  add(xattrs: ReadonlyMap<string, Buffer>): number {
    const sorted = [...xattrs].toSorted(([a], [b]) => (a < b ? -1 : 1));
    const key = JSON.stringify(sorted.map(([name, value]) => [name, value.toString('latin1')]));
    const known = this.#known.get(key);
    if (known !== undefined) return known;
    const start = reference(this.pairs.position);
    let listed = 0;
    for (const [name, value] of sorted) {
      const type = PREFIXES.findIndex((prefix) => name.startsWith(prefix));
      const rest = Buffer.from(name.slice(PREFIXES[type]?.length ?? 0), 'latin1');
      const head = Buffer.alloc(4);
      head.writeUInt16LE(type, 0);
      head.writeUInt16LE(rest.length, 2);
      const size = Buffer.alloc(4);
      size.writeUInt32LE(value.length);
      this.pairs.write(Buffer.concat([head, rest, size, value]));
      listed += name.length + 1;
    }
    const id = Buffer.alloc(16);
    id.writeBigUInt64LE(start, 0);
    id.writeUInt32LE(sorted.length, 8);
    // What listxattr(2) gives back.
    id.writeUInt32LE(listed, 12);
    this.ids.write(id);
    this.#known.set(key, this.#known.size);
    return this.#known.size - 1;
  }
}
