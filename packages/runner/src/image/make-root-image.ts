import { fileURLToPath } from 'node:url';
import { ImageError, show } from './image-error.ts';
import type { ImageErrorCode } from './image-error.ts';
import type { ImageLimits } from './image-limits.ts';
import { ProcessError } from '../process/index.ts';
import type { LayerSource } from './oci-flatten.ts';
import { runTool } from './image-tool.ts';

/** What `make-process.ts` is told. */
export interface MakeJob {
  /** Bottom first. */
  layers: LayerSource[];
  /** For unpacked layers; the caller removes it. */
  workDir: string;
  /** Path of the root image to write; must not exist. */
  target: string;
  limits: ImageLimits;
}

/** What `make-process.ts` says. */
export type MakeMessage =
  | { type: 'progress'; phase: 'unpack' | 'write'; done: number; total: number }
  | { type: 'done'; sizeBytes: number; entries: number }
  | { type: 'error'; code: ImageErrorCode; message: string };

const PROCESS = fileURLToPath(new URL('make-process.ts', import.meta.url));
/** Enough for the tree of `entries` files; an image that needs more fails alone. */
const HEAP_MIB = 2048;
const OUT_OF_MEMORY = /heap out of memory/i;

/**
 * Makes a root image in a process of its own and waits for it.
 * @throws ImageError; nothing is left at `target` then, while `workDir` may hold spool files.
 */
export async function makeRootImage(
  job: MakeJob,
  options: {
    signal?: AbortSignal | undefined;
    onProgress?: (progress: Extract<MakeMessage, { type: 'progress' }>) => void;
  },
): Promise<{ sizeBytes: number; entries: number }> {
  const { signal, onProgress } = options;
  let outcome: Exclude<MakeMessage, { type: 'progress' }> | undefined;
  const { code, stderr } = await runTool(process.execPath, [`--max-old-space-size=${HEAP_MIB}`, PROCESS], {
    deadlineMs: job.limits.makeMs,
    signal,
    env: { PATH: process.env['PATH'], NODE_NO_WARNINGS: '1' },
    // Its standard input stays open: the end of that is how the process learns that we have ended.
    feed: (stdin) => stdin.write(`${JSON.stringify(job)}\n`),
    onLine: (line) => {
      const message = parseMessage(line);
      if (message.type === 'progress') onProgress?.(message);
      else outcome = message;
    },
  }).catch((error: unknown) => {
    if (!(error instanceof ImageError)) throw error;
    if (error.code === 'timeout') {
      const seconds = job.limits.makeMs / 1000;
      throw new ImageError('timeout', `making the root image took longer than ${seconds} s`);
    }
    if (error.cause instanceof ProcessError && OUT_OF_MEMORY.test(error.cause.stderr)) throw tooManyFiles();
    if (error.code === 'aborted') throw new ImageError('aborted', 'making the root image was cancelled');
    throw error;
  });
  if (outcome?.type === 'done') return { sizeBytes: outcome.sizeBytes, entries: outcome.entries };
  if (outcome?.type === 'error') throw new ImageError(outcome.code, outcome.message);
  if (OUT_OF_MEMORY.test(stderr)) throw tooManyFiles();
  throw new ImageError('failed', `the image maker exited with code ${code}: ${show(stderr.trim(), 500)}`);
}

function tooManyFiles(): ImageError {
  return new ImageError('too-large', 'the image has more files than the memory for making it allows');
}

function parseMessage(line: string): MakeMessage {
  try {
    return JSON.parse(line) as MakeMessage;
  } catch {
    throw new ImageError('failed', `the image maker printed something else: ${show(line, 200)}`);
  }
}
