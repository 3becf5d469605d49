/** Images for measurements, made on the spot: as many bytes as wanted, in files that compress about as programs do. */
import { createHash } from 'node:crypto';
import { mkdir, readFile } from 'node:fs/promises';
import { join } from 'node:path';
import { tarOf, writeOciLayout } from '@releap/testing/oci';
import type { TestRegistry } from '@releap/testing/registry';
import { BUILTINS } from '../../packages/runner/src/image/builtin/index.ts';

const MIB = 2 ** 20;
const MAKE_MS = 120_000;
const FILE_BYTES = 24 * 1024;
/** Of each file: the rest repeats within the reach of every compressor. */
const RANDOM_SHARE = 0.35;

/** Bytes that are the same in every run. */
function* randomBytes(seed: string): Generator<number, never, void> {
  for (let round = 0; ; round++) yield* createHash('sha256').update(`${seed} ${round}`).digest();
}

/** A layer with files of `mib` MiB together. Layers of different names share nothing. */
export async function makeLayer(name: string, mib: number): Promise<Buffer> {
  const source = randomBytes(name);
  const pool = Buffer.from(Array.from({ length: MIB }, () => source.next().value));
  const count = Math.max(1, Math.round((mib * MIB) / FILE_BYTES));
  const random = Math.round(FILE_BYTES * RANDOM_SHARE);
  return await tarOf(
    Array.from({ length: count }, (_, index) => {
      const at = (index * 7919) % (MIB - FILE_BYTES);
      const content = Buffer.alloc(FILE_BYTES, `${name} ${index} `);
      pool.copy(content, 0, at, at + random);
      content.writeUInt32LE(index, 0);
      return { name: `opt/${name}/${index % 64}/file-${index}`, content };
    }),
  );
}

/** A layer with a shell and its tools, so that a sandbox runs. */
export async function busyboxLayer(folder: string): Promise<Buffer> {
  const workDir = join(folder, 'busybox');
  await mkdir(workDir);
  const made = await BUILTINS.get('busybox')?.make({
    workDir,
    packagesDir: join(import.meta.dirname, '../../build/packages'),
    signal: AbortSignal.timeout(MAKE_MS),
    report: () => undefined,
  });
  const [layer] = made?.layers ?? [];
  if (layer === undefined) throw new Error('there is no busybox layer');
  return await readFile(layer.path);
}

/** Pushes an image of these layers. @returns its reference */
export async function pushImage(
  registry: TestRegistry,
  folder: string,
  name: string,
  layers: readonly Buffer[],
): Promise<string> {
  const layout = join(folder, `layout-${name}`);
  await mkdir(layout);
  await writeOciLayout(layout, layers);
  registry.push(layout, `${name}:1`);
  return `${registry.host}/${name}:1`;
}
