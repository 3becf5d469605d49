import { spawn } from 'node:child_process';
import { ImageError, show } from './image-error.ts';
import { missingTool } from './run-tool.ts';

/** A held lock; release it once. */
export interface CacheLock extends AsyncDisposable {
  release(): Promise<void>;
}

const CONFLICT = 75;

/**
 * An exclusive lock on `file` among all processes of this machine, by flock(2).
 *
 * Node cannot call flock itself, so a child holds it: `flock FILE cat` echoes the line we send as soon as the lock is
 * held, and ends, giving it back, when its standard input closes; which the kernel does for us however we end.
 * @returns undefined only with `wait: false`, when somebody else holds it.
 */
export async function lockFile(
  file: string,
  options: { wait: true; signal?: AbortSignal | undefined },
): Promise<CacheLock>;
export async function lockFile(
  file: string,
  options: { wait: boolean; signal?: AbortSignal | undefined },
): Promise<CacheLock | undefined>;
export async function lockFile(
  file: string,
  options: { wait: boolean; signal?: AbortSignal | undefined },
): Promise<CacheLock | undefined> {
  const { signal } = options;
  if (signal?.aborted) throw new ImageError('aborted', 'waiting for another process was cancelled');
  const wait = options.wait ? [] : ['--nonblock', '--conflict-exit-code', String(CONFLICT)];
  const child = spawn('flock', ['--exclusive', ...wait, file, 'cat'], { stdio: ['pipe', 'pipe', 'pipe'] });
  const ended = new Promise<number | undefined>((resolve, reject) => {
    child.once('error', reject);
    child.once('close', (code) => resolve(code ?? undefined));
  });
  ended.catch(() => undefined);
  let stderr = '';
  child.stderr.on('data', (chunk: Buffer) => {
    stderr = (stderr + chunk.toString('utf8')).slice(-1024);
  });
  // A child that is gone already is told by its exit, not by our broken pipe.
  child.stdin.on('error', () => undefined);
  const onAbort = (): void => void child.kill('SIGKILL');
  signal?.addEventListener('abort', onAbort, { once: true });
  try {
    child.stdin.write('held\n');
    const held = new Promise<'held'>((resolve) => {
      child.stdout.once('data', () => resolve('held'));
    });
    const outcome = await Promise.race([held, ended]);
    if (outcome === 'held') {
      const release = async (): Promise<void> => {
        child.stdin.end();
        await ended.catch(() => undefined);
      };
      return { release, [Symbol.asyncDispose]: release };
    }
    if (signal?.aborted) throw new ImageError('aborted', 'waiting for another process was cancelled');
    if (outcome === CONFLICT && !options.wait) return undefined;
    throw new ImageError(
      'failed',
      `cannot lock ${file}: flock ended with ${outcome ?? 'a signal'}: ${show(stderr.trim())}`,
    );
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === 'ENOENT') throw missingTool('flock', 'not found');
    throw error;
  } finally {
    signal?.removeEventListener('abort', onAbort);
  }
}
