import { fileURLToPath } from 'node:url';
import { ImageError, show } from './image-error.ts';
import type { ImageErrorCode } from './image-error.ts';
import type { ImageLimits } from './image-limits.ts';
import type { LayerSource } from './merge-layers.ts';
import { spawnTool } from './run-tool.ts';

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
const LINE_MAX = 64 * 1024;

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
  const { signal } = options;
  if (signal?.aborted) throw new ImageError('aborted', 'making the root image was cancelled');
  const child = spawnTool(process.execPath, [`--max-old-space-size=${HEAP_MIB}`, PROCESS], {
    stdio: ['pipe', 'pipe', 'pipe'],
    env: { PATH: process.env['PATH'], NODE_NO_WARNINGS: '1' },
  });
  let stop: ImageError | undefined;
  const end = (error: ImageError): void => {
    stop ??= error;
    child.kill('SIGKILL');
  };
  const timer = setTimeout(
    () =>
      end(new ImageError('timeout', `making the root image took longer than ${job.limits.makeMs / 1000} s`)),
    job.limits.makeMs,
  );
  const onAbort = (): void => end(new ImageError('aborted', 'making the root image was cancelled'));
  signal?.addEventListener('abort', onAbort, { once: true });

  let outcome: Exclude<MakeMessage, { type: 'progress' }> | undefined;
  let partial = '';
  let stderr = '';
  child.stdout?.on('data', (chunk: Buffer) => {
    const lines = (partial + chunk.toString('utf8')).split('\n');
    partial = lines.pop() ?? '';
    if (partial.length > LINE_MAX) end(new ImageError('failed', 'the image maker said too much'));
    for (const line of lines) {
      let message: MakeMessage;
      try {
        message = JSON.parse(line) as MakeMessage;
      } catch {
        end(new ImageError('failed', `the image maker said something else: ${show(line, 200)}`));
        return;
      }
      if (message.type === 'progress') options.onProgress?.(message);
      else outcome = message;
    }
  });
  child.stderr?.on('data', (chunk: Buffer) => {
    stderr = (stderr + chunk.toString('utf8')).slice(-4096);
  });
  child.stdin?.on('error', () => undefined);
  // Kept open: its end is how the process learns that we are gone.
  child.stdin?.write(`${JSON.stringify(job)}\n`);

  try {
    const exit = await new Promise<number | NodeJS.Signals>((resolve, reject) => {
      child.once('error', reject);
      child.once('close', (code, killedBy) => resolve(code ?? killedBy ?? 'SIGKILL'));
    });
    if (stop) throw stop;
    if (outcome?.type === 'done') return { sizeBytes: outcome.sizeBytes, entries: outcome.entries };
    if (outcome?.type === 'error') throw new ImageError(outcome.code, outcome.message);
    if (/heap out of memory/i.test(stderr)) {
      throw new ImageError('too-large', 'the image has more files than the memory for making it allows');
    }
    throw new ImageError('failed', `the image maker ended with ${exit}: ${show(stderr.trim(), 500)}`);
  } finally {
    clearTimeout(timer);
    signal?.removeEventListener('abort', onAbort);
  }
}
