/**
 * The memory of a full snapshot as parts: `memory.tar` with the memory, most of which is holes, `state`, `paused.json`, and the
 * system disk that its guest was booted with.
 */
import { chmod, writeFile } from 'node:fs/promises';
import { basename, join } from 'node:path';
import type { ArtifactPart } from '@releap/contract';
import { heldSystemPath, SuspendImage, SUSPENSION_FILE, DURABLE_FILE } from '../machine/index.ts';
import { sizeOfFile, unpackSparse } from './sparse-file.ts';

export const MEMORY_PART = 'memory.tar';
const STATE_FILE = 'state';
const SYSTEM_FILE = basename(heldSystemPath(''));
const MIB = 1024 * 1024;

/** The files of the suspend image in a folder. @throws when there is none */
export async function memoryFiles(folder: string): Promise<{ sparse: string; whole: string[] }> {
  const image = new SuspendImage(folder);
  if ((await image.read()) === undefined) throw new Error(`there is no memory in ${folder}`);
  return { sparse: basename(image.memory), whole: [STATE_FILE, SUSPENSION_FILE, SYSTEM_FILE] };
}

/** The first of these names, which are not those of a disk, that a full snapshot does not have. */
export function checkMemoryParts(names: readonly string[]): string | undefined {
  return names.find((name) => ![MEMORY_PART, STATE_FILE, SUSPENSION_FILE, SYSTEM_FILE].includes(name));
}

/**
 * Makes a suspend image of the parts in a folder. Whether this host can resume it is checked when it does.
 * @throws when it is not whole
 */
export async function unpackMemory(
  folder: string,
  parts: readonly ArtifactPart[],
  signal: AbortSignal,
): Promise<void> {
  const damaged = (why: string): Error => new Error(`the stored memory is damaged: ${why}`);
  const partOf = (name: string): ArtifactPart | undefined => parts.find((one) => one.name === name);
  const image = new SuspendImage(folder);
  if (partOf(MEMORY_PART) === undefined || partOf(STATE_FILE) === undefined)
    throw damaged('it is not complete');
  await unpackSparse(folder, MEMORY_PART, basename(image.memory), signal);
  const suspension = await image.read();
  if (suspension === undefined) throw damaged(`${SUSPENSION_FILE} is missing`);
  const { id, shape, stateBytes, system } = suspension;
  if ((await sizeOfFile(image.memory)) !== shape.memMib * MIB) throw damaged('its size is another one');
  if (partOf(STATE_FILE)?.bytes !== stateBytes) throw damaged('the state of its devices is not whole');
  if (partOf(SYSTEM_FILE)?.digest !== `sha256:${system}`) throw damaged('it has another system disk');
  for (const path of [image.memory, image.state]) await chmod(path, 0o600);
  await chmod(heldSystemPath(folder), 0o444);
  // The host that captured it was booted at another time. The folder gets its name once all of it is durable.
  await writeFile(join(folder, DURABLE_FILE), id, { mode: 0o600 });
}
