/**
 * The process that turns layers into a root image: `node make-process.ts`, a `MakeJob` and then `MakeOrder`s as lines of JSON
 * on standard input, `MakeMessage` lines on standard output, files in its working directory.
 *
 * A process of its own, without privileges and without a network, because the content is hostile (memory and time have a
 * bound that the runner does not share) and because unpacking and hashing would hold up the runner's event loop. It ends
 * when its standard input does, so that a runner that was killed leaves nothing working.
 */
import { rm } from 'node:fs/promises';
import { getPriority, setPriority } from 'node:os';
import { createInterface } from 'node:readline';
import { Semaphore } from '../budget/semaphore.ts';
import { toImageError } from './image-error.ts';
import { planStack } from './image-stack.ts';
import { readIndex, writeIndex } from './layer-entries.ts';
import { indexOf, type MakeJob, type MakeMessage, type MakeOrder } from './make-root-image.ts';
import { mergeUnpacked } from './oci-flatten.ts';
import { writeRootImage } from './root-image.ts';
import { dropPrivileges } from './unprivileged.ts';
import { type UnpackedLayer, unpackLayer } from './unpack-layer.ts';

const PROGRESS_EVERY_MS = 250;
const NICENESS = 10;
/** Layers that are unpacked at a time: inflating is done beside hashing. */
const PARALLEL = 2;

function send(message: MakeMessage): void {
  process.stdout.write(`${JSON.stringify(message)}\n`);
}

class Maker {
  readonly #job: MakeJob;
  readonly #arrived: PromiseWithResolvers<void>[];
  readonly #merge = Promise.withResolvers<void>();

  constructor(job: MakeJob) {
    this.#job = job;
    this.#arrived = job.layers.map(() => Promise.withResolvers<void>());
    for (const [index, { ready }] of job.layers.entries()) if (ready) this.#arrived[index]?.resolve();
  }

  order(order: MakeOrder): void {
    if (order.type === 'merge') this.#merge.resolve();
    else this.#arrived[order.index]?.resolve();
  }

  async run(): Promise<void> {
    const { limits, target, stackable = false } = this.#job;
    const layers = await this.#unpackAll();
    const archives = layers.map(({ path }) => path);
    if (target === undefined) return send({ type: 'done', sizeBytes: 0, entries: 0, archives });
    send({ type: 'unpacked' });
    await this.#merge.promise;
    let last = 0;
    using merged = await mergeUnpacked(layers, limits, (index, entries) => {
      const { file = '', verified = false } = this.#job.layers[index] ?? {};
      // A pull keeps the archives that it has brought, and their indices with them.
      if (stackable && !verified) writeIndex(indexOf(file), entries);
    });
    const onProgress = (done: number, total: number): void => {
      if (performance.now() - last < PROGRESS_EVERY_MS) return;
      last = performance.now();
      send({ type: 'progress', phase: 'write', done, total });
    };
    const sizes = layers.map(({ size }) => size);
    const stack = stackable ? planStack(sizes, limits) : undefined;
    const sizeBytes = await writeRootImage(merged, target, onProgress, stack);
    send({ type: 'done', sizeBytes, entries: merged.entries, archives });
  }

  async #unpackAll(): Promise<UnpackedLayer[]> {
    const { layers, limits } = this.#job;
    const budget = { left: limits.uncompressedBytes, total: limits.uncompressedBytes };
    const turns = new Semaphore(PARALLEL);
    let unpacked = 0;
    return await Promise.all(
      layers.map(async ({ file, digest, diffId, verified, indexed }, index) => {
        await this.#arrived[index]?.promise;
        return await turns.run(async () => {
          const source = { path: file, digest, diffId, verified };
          const layer = await unpackLayer(source, `${file}.tar`, budget);
          if (layer.path !== file) await rm(file, { force: true });
          unpacked += 1;
          send({ type: 'progress', phase: 'unpack', done: unpacked, total: layers.length });
          const entries = indexed ? readIndex(indexOf(file)) : undefined;
          return entries === undefined ? layer : { ...layer, entries };
        });
      }),
    );
  }
}

// A service that was started nicer than that stays so: an unprivileged process cannot go back (setpriority(2)).
if (getPriority() < NICENESS) setPriority(NICENESS);
dropPrivileges();
let maker: Maker | undefined;
const input = createInterface({ input: process.stdin });
input.on('line', (line) => {
  if (maker) return maker.order(JSON.parse(line) as MakeOrder);
  maker = new Maker(JSON.parse(line) as MakeJob);
  maker
    .run()
    .catch((error: unknown) => {
      const { code, message } = toImageError(error, 'making the root image');
      send({ type: 'error', code, message });
    })
    .finally(() => {
      input.close();
      process.stdin.destroy();
      // Layers that are still being unpacked are not needed any more.
      process.stdout.write('', () => process.exit(0));
    });
});
process.stdin.once('end', () => process.exit(1));
