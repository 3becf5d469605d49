import { open } from 'node:fs/promises';

const CLUSTER_BITS = 16;
export const CLUSTER_BYTES = 1 << CLUSTER_BITS;
/** Entries of an L2 table, which takes one cluster. */
export const L2_ENTRIES = CLUSTER_BYTES / 8;
/** Bytes of the disk below one L1 entry, which names one L2 table. */
const BYTES_PER_L1_ENTRY = CLUSTER_BYTES * L2_ENTRIES;
export const HEADER_BYTES = 104;
/** An L1 table of this many entries reaches 4 PiB; QEMU allows 32 MiB of table. */
const VIRTUAL_MAX_BYTES = 64 * 1024 ** 4;

/**
 * Writes an empty qcow2 image (version 3, QEMU's docs/interop/qcow2.txt): all reads go to the backing node that it is
 * opened with. Written here because starting `qemu-img` takes longer than all other steps of creating a disk.
 *
 * The header names no backing file: programs that open the image would follow the name.
 * @param virtualBytes size that the guest sees, a multiple of 512
 * @param durable with fsync, so that it survives a power failure
 */
export async function createEmptyQcow2(path: string, virtualBytes: number, durable = false): Promise<void> {
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
  const clusters = emptyQcow2Bytes(virtualBytes) / CLUSTER_BYTES;
  const header = qcow2Header({
    virtualBytes,
    l1At: 3 * CLUSTER_BYTES,
    refcountsAt: CLUSTER_BYTES,
    refcountClusters: 1,
  });

  const refcountTable = Buffer.alloc(8);
  refcountTable.writeBigUInt64BE(BigInt(2 * CLUSTER_BYTES), 0);
  const refcounts = Buffer.alloc(clusters * 2);
  for (let cluster = 0; cluster < clusters; cluster++) refcounts.writeUInt16BE(1, cluster * 2);

  const file = await open(path, 'wx', 0o600);
  try {
    await file.truncate(clusters * CLUSTER_BYTES);
    await Promise.all([
      file.write(header, 0, header.length, 0),
      file.write(refcountTable, 0, refcountTable.length, CLUSTER_BYTES),
      file.write(refcounts, 0, refcounts.length, 2 * CLUSTER_BYTES),
    ]);
    if (durable) await file.sync();
  } finally {
    await file.close();
  }
}

/** Length of the file of an empty layer. */
export function emptyQcow2Bytes(virtualBytes: number): number {
  // Header, refcount table, one refcount block (it counts 32768 clusters), the L1 table.
  return (3 + Math.ceil((l1Entries(virtualBytes) * 8) / CLUSTER_BYTES)) * CLUSTER_BYTES;
}

export function l1Entries(virtualBytes: number): number {
  return Math.ceil(virtualBytes / BYTES_PER_L1_ENTRY);
}

/** The qcow2 header: offsets in bytes, the length of the refcount table in clusters. */
export function qcow2Header(layout: {
  virtualBytes: number;
  l1At: number;
  refcountsAt: number;
  refcountClusters: number;
}): Buffer {
  const header = Buffer.alloc(HEADER_BYTES);
  header.write('QFI\xfb', 0, 'latin1');
  header.writeUInt32BE(3, 4);
  header.writeUInt32BE(CLUSTER_BITS, 20);
  header.writeBigUInt64BE(BigInt(layout.virtualBytes), 24);
  header.writeUInt32BE(l1Entries(layout.virtualBytes), 36);
  header.writeBigUInt64BE(BigInt(layout.l1At), 40);
  header.writeBigUInt64BE(BigInt(layout.refcountsAt), 48);
  header.writeUInt32BE(layout.refcountClusters, 56);
  // Compatible feature: lazy refcounts, so that allocating a cluster does not wait for its counter on the disk.
  header.writeBigUInt64BE(1n, 80);
  header.writeUInt32BE(4, 96);
  header.writeUInt32BE(HEADER_BYTES, 100);
  return header;
}

/**
 * Refuses a layer whose header is not one of `createEmptyQcow2`. A guest that has taken over its VMM can write any header
 * into its layer, and a header can name other files that the next VMM would open (backing and data files).
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
