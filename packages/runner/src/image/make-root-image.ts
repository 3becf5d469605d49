import { fileURLToPath } from 'node:url';
import { ImageError, show } from './image-error.ts';
import type { ImageErrorCode } from './image-error.ts';
import type { ImageLimits } from './image-limits.ts';
import type { ImageJail, ImageJails } from './image-jails.ts';
import { putIn, takeOut } from './jail-folder.ts';
import { checkCount } from './oci-flatten.ts';
import { ProcessError } from '../process/index.ts';
import type { LayerSource } from './unpack-layer.ts';
import { UnprivilegedProcess } from './unprivileged-process.ts';

/** What `make-process.ts` is told first. Paths are relative to its working directory. */
export interface MakeJob {
  /** Bottom first. */
  layers: {
    file: string;
    digest: string;
    diffId: string;
    /** It is there already; the others are announced when they are. */
    ready: boolean;
    /** It is a plain archive that was verified before. */
    verified: boolean;
    /** Its index is there, too. */
    indexed?: boolean;
  }[];
  /** The root image to write; absent: layers are only unpacked. */
  target?: string;
  /** Only its head is written where `planStack` says so. */
  stackable?: boolean;
  limits: ImageLimits;
}

/** What `make-process.ts` is told later. `merge`: it may merge and write once all layers are unpacked. */
export type MakeOrder = { type: 'arrived'; index: number } | { type: 'merge' };

/** What `make-process.ts` says. */
export type MakeMessage =
  | { type: 'progress'; phase: 'unpack' | 'write'; done: number; total: number }
  | { type: 'unpacked' }
  /** `archives`: the files that hold the unpacked layers, in their order. */
  | { type: 'done'; sizeBytes: number; entries: number; archives: string[] }
  | { type: 'error'; code: ImageErrorCode; message: string };

export type MadeRootImage = Pick<
  Extract<MakeMessage, { type: 'done' }>,
  'sizeBytes' | 'entries' | 'archives'
>;

export interface MakeOptions {
  signal?: AbortSignal | undefined;
  onProgress?: ((progress: Extract<MakeMessage, { type: 'progress' }>) => void) | undefined;
  /** Waited for before the layers are merged; disposed of when the image is written. */
  turn?: (() => Promise<Disposable>) | undefined;
}

const PROCESS = fileURLToPath(new URL('make-process.ts', import.meta.url));
/** Enough for the tree of `entries` files; an image that needs more fails alone. */
const HEAP_MIB = 2048;
const TABLES_MAX = 1024 ** 3;
const OUT_OF_MEMORY = /heap out of memory/i;
const ROOT = 'root.squashfs';

/**
 * Makes a root image of layers that are complete, and makes it durable.
 * @param job `workDir`: a folder of the caller's for this alone; `target`: must not exist
 * @throws ImageError; nothing is left at `target` then
 */
export async function makeRootImage(
  job: {
    layers: readonly LayerSource[];
    workDir: string;
    target: string;
    limits: ImageLimits;
    jails: ImageJails;
  },
  options: MakeOptions,
): Promise<{ sizeBytes: number; entries: number }> {
  checkCount(job.layers.length, job.limits);
  await using jail = await job.jails.open(job.workDir);
  const layers: MakeJob['layers'] = [];
  for (const [index, { path: file, digest, diffId, verified = false }] of job.layers.entries()) {
    const name = `layer-${index}`;
    await putIn(jail.folder, name, file);
    layers.push({ file: name, digest, diffId, ready: true, verified });
  }
  await using maker = startMaker(jail, job.limits);
  const { entries } = await makeInJail(maker, { layers, limits: job.limits, merge: true }, options);
  return { sizeBytes: await takeOutRoot(jail.folder, job.target, true), entries };
}

/** Moves a root image to `target`. @param durable it is on disk afterwards @returns its size */
export async function takeOutRoot(jail: string, target: string, durable: boolean): Promise<number> {
  return await takeOut(jail, ROOT, target, durable);
}

export function startMaker(
  jail: ImageJail,
  { uncompressedBytes }: Pick<ImageLimits, 'uncompressedBytes'>,
): UnprivilegedProcess<MakeMessage> {
  // Beside the files, a root image has the gaps between them and its tables.
  const fileMax = 2 * uncompressedBytes + TABLES_MAX;
  return UnprivilegedProcess.start(PROCESS, { jail, network: false, heapMib: HEAP_MIB, fileMax });
}

/** Tells a process that a layer which was not ready is there. */
export function announce(maker: UnprivilegedProcess<MakeMessage>, index: number): void {
  maker.send({ type: 'arrived', index } satisfies MakeOrder);
}

/** Makes a root image in the working directory of the process, once the layers are there. @throws ImageError */
export async function makeInJail(
  maker: UnprivilegedProcess<MakeMessage>,
  {
    layers,
    limits,
    merge: isMerged,
    stackable = false,
  }: Pick<MakeJob, 'layers' | 'limits' | 'stackable'> & { merge: boolean },
  { signal, onProgress, turn }: MakeOptions,
): Promise<MadeRootImage> {
  let outcome: Extract<MakeMessage, { type: 'done' | 'error' }> | undefined;
  let held: Disposable | undefined;
  let ended = false;
  const merge = async (): Promise<void> => {
    const permit = await turn?.();
    if (ended) permit?.[Symbol.dispose]();
    else held = permit;
    maker.send({ type: 'merge' } satisfies MakeOrder);
  };
  const deadlineMs = limits.pullMs + limits.makeMs;
  const job: MakeJob = { layers, limits, stackable, ...(isMerged ? { target: ROOT } : {}) };
  try {
    const { code, stderr } = await maker.run(job, {
      deadlineMs,
      signal,
      onMessage: (message) => {
        if (message.type === 'progress') onProgress?.(message);
        else if (message.type === 'unpacked') merge().catch(() => undefined);
        else outcome = message;
      },
    });
    if (outcome?.type === 'done') return outcome;
    if (outcome?.type === 'error') throw new ImageError(outcome.code, outcome.message);
    if (OUT_OF_MEMORY.test(stderr)) throw tooManyFiles();
    throw new ImageError('failed', `the image maker exited with code ${code}: ${show(stderr.trim(), 500)}`);
  } catch (error) {
    throw describe(error, deadlineMs);
  } finally {
    ended = true;
    held?.[Symbol.dispose]();
  }
}

/** Name of the index of a layer in a jail. @param file `MakeJob.layers[].file` */
export function indexOf(file: string): string {
  return `${file}.index`;
}

/** Whether a process, which is not trusted, names an archive of its jail. */
export function isArchiveName(name: string): boolean {
  return /^layer-\d+(\.tar)?$/.test(name);
}

function describe(error: unknown, deadlineMs: number): unknown {
  if (!(error instanceof ImageError)) return error;
  if (error.cause instanceof ProcessError && OUT_OF_MEMORY.test(error.cause.stderr)) return tooManyFiles();
  if (error.code === 'aborted') return new ImageError('aborted', 'making the root image was cancelled');
  if (error.code !== 'timeout') return error;
  return new ImageError('timeout', `making the root image took longer than ${deadlineMs / 1000} s`);
}

function tooManyFiles(): ImageError {
  return new ImageError('too-large', 'the image has more files than the memory for making it allows');
}
