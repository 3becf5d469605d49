import type { Cluster, ClusterTable } from './layer-reader.ts';
import { LayerReader } from './layer-reader.ts';
import { LayerWriter } from './layer-writer.ts';
import { CLUSTER_BYTES, L2_ENTRIES, l1Entries } from './qcow2.ts';

/** Clusters that lie one behind the other are copied together, up to 1 MiB. */
const RUN_MAX = 16;

/**
 * Makes one layer that reads, on whatever these stood on, as all of them do together. `qemu-img` has nothing for that:
 * it merges down to the ground, or writes into a layer that others hold.
 * @param paths lowest first; checked (`checkQcow2`), and nobody writes to them
 * @param target must not exist; to be removed when this throws
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
  for (let stretch = 0; stretch < l1Entries(virtualBytes); stretch++) {
    signal?.throwIfAborted();
    const tables = await Promise.all(layers.map((layer) => layer.table(stretch)));
    if (tables.every((table) => table === undefined)) continue;
    const clusters: Cluster[] = Array.from({ length: L2_ENTRIES });
    for (let entry = 0; entry < L2_ENTRIES; ) {
      const run = runAt(tables, entry);
      if (run.layer !== undefined) {
        signal?.throwIfAborted();
        const data = await (layers[run.layer] as LayerReader).read(run.at, run.length * CLUSTER_BYTES);
        const at = await writer.append(data);
        for (let n = 0; n < run.length; n++) clusters[entry + n] = at + n * CLUSTER_BYTES;
      } else if (run.isZero) clusters[entry] = 'zero';
      entry += run.length;
    }
    await writer.describe(stretch, clusters);
  }
  await writer.finish();
}

type Run = { layer: number; at: number; length: number } | { layer?: undefined; isZero: boolean; length: 1 };

/** What is copied next. @param tables of each layer, highest first: the first that says anything counts */
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
