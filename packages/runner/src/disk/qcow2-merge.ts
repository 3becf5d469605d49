import { dirname } from 'node:path';
import { checkSpace } from './check-space.ts';
import type { Cluster, ClusterTable } from './layer-reader.ts';
import { LayerReader } from './layer-reader.ts';
import { LayerWriter } from './layer-writer.ts';
import { CLUSTER_BYTES, L2_ENTRIES, l1Entries } from './qcow2.ts';

/** Adjacent clusters are copied together, up to 1 MiB. */
const RUN_MAX = 16;
const ZEROS = Buffer.alloc(CLUSTER_BYTES);
/** The host's free space is checked after this many bytes. */
const CHECK_SPACE_BYTES = 64 * 1024 * 1024;

/**
 * Merges layers into one that reads the same on the same backing file. `qemu-img` cannot do this: `convert` merges the
 * whole chain, and `commit` writes into a layer that other disks share. The tables of a layer were written by a VMM and
 * are not trusted: no cluster is copied twice, and zeros are not written.
 * @param paths lowest first; checked (`checkQcow2`), and immutable
 * @param target must not exist; the caller removes it when this throws
 * @throws when a layer is damaged, or the host's disk is full
 */
export async function mergeLayers(
  paths: readonly string[],
  target: string,
  virtualBytes: number,
  signal?: AbortSignal,
): Promise<void> {
  await using opened = new AsyncDisposableStack();
  const layers: LayerReader[] = [];
  for (const path of paths.toReversed()) layers.push(opened.use(await LayerReader.open(path, virtualBytes)));
  const writer = opened.use(await LayerWriter.create(target, virtualBytes, 0o444));
  let unchecked = 0;
  for (let stretch = 0; stretch < l1Entries(virtualBytes); stretch++) {
    signal?.throwIfAborted();
    const tables = await Promise.all(layers.map((layer) => layer.table(stretch)));
    if (tables.every((table) => table === undefined)) continue;
    const clusters: Cluster[] = Array.from({ length: L2_ENTRIES });
    for (let entry = 0; entry < L2_ENTRIES; ) {
      const run = runAt(tables, entry);
      if (run.layer !== undefined) {
        signal?.throwIfAborted();
        const layer = layers[run.layer] as LayerReader;
        layer.claim(run.at, run.length);
        const data = await layer.read(run.at, run.length * CLUSTER_BYTES);
        const placed = await appendNonZero(writer, data);
        placed.forEach((cluster, n) => {
          clusters[entry + n] = cluster;
        });
        unchecked += data.length;
        if (unchecked >= CHECK_SPACE_BYTES) {
          await checkSpace(dirname(target));
          unchecked = 0;
        }
      } else if (run.isZero) clusters[entry] = 'zero';
      entry += run.length;
    }
    await writer.describe(stretch, clusters);
  }
  await writer.finish();
}

/** @returns the L2 entry of each cluster of `data` */
async function appendNonZero(writer: LayerWriter, data: Buffer): Promise<Cluster[]> {
  const count = data.length / CLUSTER_BYTES;
  const isZero = (n: number): boolean =>
    data.subarray(n * CLUSTER_BYTES, (n + 1) * CLUSTER_BYTES).equals(ZEROS);
  const clusters: Cluster[] = [];
  for (let from = 0; from < count; ) {
    let to = from;
    while (to < count && !isZero(to)) to += 1;
    if (to > from) {
      const at = await writer.append(data.subarray(from * CLUSTER_BYTES, to * CLUSTER_BYTES));
      for (let n = from; n < to; n++) clusters.push(at + (n - from) * CLUSTER_BYTES);
    }
    // The cluster that ended the run is zero.
    if (to < count) clusters.push('zero');
    from = to + 1;
  }
  return clusters;
}

type Run = { layer: number; at: number; length: number } | { layer?: undefined; isZero: boolean; length: 1 };

/** The next clusters to copy. @param tables of each layer, highest first: the first one with the cluster wins */
function runAt(tables: readonly (ClusterTable | undefined)[], entry: number): Run {
  const layerOf = (at: number): number => tables.findIndex((table) => table?.has(at) === true);
  const layer = layerOf(entry);
  const table = tables[layer];
  const at = table?.at(entry);
  if (typeof at !== 'number') return { isZero: at === 'zero', length: 1 };
  let length = 1;
  while (
    length < RUN_MAX &&
    entry + length < L2_ENTRIES &&
    layerOf(entry + length) === layer &&
    table?.at(entry + length) === at + length * CLUSTER_BYTES
  ) {
    length += 1;
  }
  return { layer, at, length };
}
