import { chmod, readdir, rename, rm } from 'node:fs/promises';
import { run } from '../network/command.ts';
import { chainPath, checkChain, DISK_FILE, flatLayer, saveChain } from './disk-chain.ts';
import type { DiskChain } from './disk-chain.ts';
import { lineageOf } from './lineage.ts';

/** At least 5 MB a second. */
const FLATTEN_DEADLINE_MS = 30 * 60_000;

type Node = Record<string, unknown>;

/**
 * Makes one layer of a disk whose layers nobody writes to meanwhile: each costs whoever opens it a little. It stands
 * for itself, without an empty disk below. The layers that it was stay where they are, for whoever is opening them.
 * @returns the disk as it is from now on
 * @throws when it cannot be; the disk is what it was
 */
export async function flattenChain(chain: DiskChain): Promise<DiskChain> {
  const flat = await writeFlat(chain);
  await saveChain(flat);
  return flat;
}

/** As `flattenChain`, and leaves the list of the disk's folder as it is. */
export async function writeFlat(chain: DiskChain, signal?: AbortSignal): Promise<DiskChain> {
  await checkChain(chain);
  const name = flatLayer(chain);
  const path = chainPath(chain, name);
  const partial = `${path}.partial`;
  try {
    // At the lowest priority: nobody waits for it.
    await run(
      'nice',
      ['-n', '19', 'qemu-img', 'convert', '-O', 'qcow2', '-o', OPTIONS, source(chain), partial],
      { deadlineMs: FLATTEN_DEADLINE_MS, signal },
    );
    await chmod(partial, 0o444);
    await rename(partial, path);
  } catch (error) {
    await rm(partial, { force: true });
    throw error;
  }
  const { folder, bytes } = chain;
  const flat: DiskChain = { folder, layers: [name], lineage: lineageOf(chain), bytes };
  await checkChain(flat);
  return flat;
}

/** What lies beside a disk and is no part of it: what it was made of before it was flattened, or is not yet. */
export async function unusedFiles({ folder, layers, base }: DiskChain): Promise<string[]> {
  const names = await readdir(folder);
  return names.filter((name) => DISK_FILE.test(name) && name !== base && !layers.includes(name));
}

/** Removes it. */
export async function dropUnused(chain: DiskChain): Promise<void> {
  for (const name of await unusedFiles(chain)) await rm(chainPath(chain, name), { force: true });
}

/** As `createEmptyQcow2` makes them. */
const OPTIONS = 'cluster_size=65536,lazy_refcounts=on,refcount_bits=16';

/** The whole graph in one name; no file names another. */
function source(chain: DiskChain): string {
  const file = (name: string): Node => ({
    driver: 'file',
    filename: chainPath(chain, name),
    locking: 'off',
    'read-only': true,
  });
  let below: Node | null = chain.base === undefined ? null : { driver: 'raw', file: file(chain.base) };
  for (const name of chain.layers) below = { driver: 'qcow2', file: file(name), backing: below };
  return `json:${JSON.stringify(below)}`;
}
