/** Listings of folders. */
import type { Listing } from './inode.ts';
import { METADATA_BLOCK, type MetadataTable, positionOf, type TablePosition } from './metadata-table.ts';

export interface DirectoryEntry {
  /** Bytes, not empty, at most 256. */
  name: Buffer;
  type: number;
  /** Number and place of its inode. */
  number: number;
  inode: TablePosition;
}

/** Entries of one header share an inode block, and differ little in their numbers. */
const GROUP_MAX = 256;
const DELTA_MAX = 32_767;
const HEADER_BYTES = 12;

/** Writes a listing. @param entries in byte order of their names */
export function writeListing(table: MetadataTable, entries: readonly DirectoryEntry[]): Listing {
  const begin = table.length;
  const index: Listing['index'] = [];
  let group: DirectoryEntry[] = [];
  let groupBytes = 0;
  let indexedBlock = Math.floor(begin / METADATA_BLOCK);

  const flush = (): void => {
    const [first] = group;
    if (first === undefined) return;
    const header = Buffer.alloc(HEADER_BYTES);
    header.writeUInt32LE(group.length - 1, 0);
    header.writeUInt32LE(first.inode.block, 4);
    header.writeUInt32LE(first.number, 8);
    table.write(header);
    for (const { name, type, number, inode } of group) {
      const entry = Buffer.alloc(8);
      entry.writeUInt16LE(inode.offset, 0);
      entry.writeInt16LE(number - first.number, 2);
      entry.writeUInt16LE(type, 4);
      entry.writeUInt16LE(name.length - 1, 6);
      table.write(entry);
      table.write(name);
    }
    group = [];
    groupBytes = 0;
  };

  for (const entry of entries) {
    const [first] = group;
    const fits =
      first === undefined ||
      (group.length < GROUP_MAX &&
        entry.inode.block === first.inode.block &&
        Math.abs(entry.number - first.number) <= DELTA_MAX);
    if (!fits) flush();
    // One entry of the index for each block that the listing reaches, so that a name is found without reading them all.
    const at = table.length + groupBytes;
    if (Math.floor(at / METADATA_BLOCK) > indexedBlock) {
      flush();
      indexedBlock = Math.floor(at / METADATA_BLOCK);
      index.push({ at: table.length - begin, block: positionOf(table.length).block, name: entry.name });
    }
    if (group.length === 0) groupBytes = HEADER_BYTES;
    group.push(entry);
    groupBytes += 8 + entry.name.length;
  }
  flush();
  return { ...positionOf(begin), bytes: table.length - begin, index };
}
