import { chmod, chown, open, readdir, rename, rm } from 'node:fs/promises';
import type { FileHandle } from 'node:fs/promises';
import { run } from '../network/command.ts';
import { chainPath, checkChain, DISK_FILE, flatLayer, saveChain } from './disk-chain.ts';
import type { DiskChain } from './disk-chain.ts';
import { lineageOf } from './lineage.ts';
import { createEmptyQcow2 } from './qcow2.ts';

/** At least 5 MB a second. */
const FLATTEN_DEADLINE_MS = 30 * 60_000;
/** User and group of who has no rights anywhere. */
const NOBODY = 65_534;

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
    await rm(partial, { force: true });
    await createEmptyQcow2(partial, chain.bytes);
    await convert(chain, partial, signal);
    await chown(partial, 0, 0);
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

/**
 * Layers hold what VMMs have written, and those may have been taken over by their guests. So who reads them may do
 * nothing but that: it is nobody, has no network, and gets files that are open already. It ends with us.
 */
async function convert(chain: DiskChain, target: string, signal: AbortSignal | undefined): Promise<void> {
  const paths = [...(chain.base === undefined ? [] : [chain.base]), ...chain.layers];
  await using opened = new AsyncDisposableStack();
  const files: FileHandle[] = [];
  for (const name of paths) files.push(opened.use(await readable(chainPath(chain, name))));
  files.push(opened.use(await open(target, 'r+')));
  await chown(target, NOBODY, NOBODY);
  const inside = (at: number): string => `/proc/self/fd/${at + 3}`;
  const source = graph(
    paths.map((_, at) => inside(at)),
    chain.base !== undefined,
  );
  // At the lowest priority: nobody waits for it.
  const unprivileged = ['--reuid', `${NOBODY}`, '--regid', `${NOBODY}`, '--clear-groups', '--no-new-privs'];
  const tool = ['nice', '-n', '19', 'qemu-img', 'convert', '-n', '--target-is-zero', '-O', 'qcow2'];
  await run(
    'unshare',
    [
      '--net',
      '--',
      'setpriv',
      ...unprivileged,
      '--pdeathsig',
      'KILL',
      '--',
      ...tool,
      source,
      inside(paths.length),
    ],
    { deadlineMs: FLATTEN_DEADLINE_MS, signal, fds: files.map(({ fd }) => fd) },
  );
}

/** An open file that the user `nobody` can open again by its descriptor: that asks for rights to the file itself. */
async function readable(path: string): Promise<FileHandle> {
  const file = await open(path, 'r');
  const { mode } = await file.stat();
  if ((mode & 0o004) === 0) await file.chmod((mode & 0o777) | 0o444);
  return file;
}

/** The whole graph in one name; no file names another. @param files lowest first */
function graph(files: readonly string[], hasBase: boolean): string {
  let below: Node | null = null;
  files.forEach((filename, at) => {
    const file = { driver: 'file', filename, locking: 'off', 'read-only': true };
    below = hasBase && at === 0 ? { driver: 'raw', file } : { driver: 'qcow2', file, backing: below };
  });
  return `json:${JSON.stringify(below)}`;
}
