import { copyFile, readFile } from 'node:fs/promises';
import { join } from 'node:path';
import { chainPath, readChain } from '../../packages/runner/src/disk/disk-chain.ts';
import { copyMemoryFile } from '../../packages/runner/src/memory/memory-file.ts';

/** Files of a sandbox that was paused, for the floor alone. */
export interface PausedCopy {
  shape: { vcpus: number; memMib: number };
  memory: string;
  state: string;
  /** The formatted empty disk at the bottom. */
  base: string;
  /** Layers of the disk, lowest first. */
  layers: string[];
}

/**
 * Copies the suspend image of a paused sandbox. Links would not do: the service takes memory with a second link for
 * that of another process too.
 * @param keep folder of the runner
 * @param folder empty
 */
export async function copyPaused(keep: string, folder: string): Promise<PausedCopy> {
  const { shape } = JSON.parse(await readFile(join(keep, 'paused.json'), 'utf8')) as {
    shape: PausedCopy['shape'];
  };
  const chain = await readChain(keep);
  if (chain === undefined) throw new Error(`${keep} has no disk of its own`);
  const copy = async (from: string, name: string): Promise<string> => {
    const to = join(folder, name);
    await copyFile(from, to);
    return to;
  };
  const layers: string[] = [];
  for (const name of chain.layers) layers.push(await copy(chainPath(chain, name), name));
  const memory = join(folder, 'memory');
  await copyMemoryFile(join(keep, 'memory'), memory);
  return {
    shape,
    memory,
    state: await copy(join(keep, 'state'), 'state'),
    base: await copy(chainPath(chain, chain.base.file), chain.base.file),
    layers,
  };
}
