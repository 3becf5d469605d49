import { spawn } from 'node:child_process';
import { close, ftruncate, open, write } from 'node:fs';
import { readFile } from 'node:fs/promises';
import { promisify } from 'node:util';

const closeFd = promisify(close);
const FLOCK_DEADLINE_MS = 5_000;
/** Exit code of flock(1) when another process holds the lock; any other code is a failure of flock itself. */
const HELD_ELSEWHERE = 75;

/** An exclusive lock that the kernel releases when the process dies. */
export interface FileLock extends AsyncDisposable {
  release(): Promise<void>;
}

/**
 * Takes flock(2) on a file, which is created if absent and never removed (removing it would let two
 * processes hold "the" lock on different inodes).
 *
 * Node has no flock. flock(1) locks the open file description that it inherits, so the lock stays with
 * this descriptor when flock(1) has exited. Node opens files close-on-exec: children do not keep the lock alive.
 *
 * @param holder one line that describes this process to others that find the lock taken
 * @param waitMs how long to wait for the present holder
 * @returns the lock, or the line of the present holder
 */
export async function lockFile(
  file: string,
  holder: string,
  waitMs = 0,
): Promise<FileLock | { heldBy: string }> {
  // 'a' so that the line of a present holder is not truncated before the lock is taken.
  // A bare descriptor: an unreferenced FileHandle would be closed, and the lock lost.
  const fd = await promisify(open)(file, 'a', 0o600);
  try {
    if (await flock(fd, waitMs)) {
      await promisify(ftruncate)(fd, 0);
      await promisify(write)(fd, `${holder}\n`);
      return held(fd);
    }
  } catch (error) {
    await closeFd(fd).catch(() => undefined);
    throw error;
  }
  await closeFd(fd);
  return { heldBy: (await readFile(file, 'utf8')).trim() };
}

function held(fd: number): FileLock {
  let closing: Promise<void> | undefined;
  const release = (): Promise<void> => (closing ??= closeFd(fd));
  return { release, [Symbol.asyncDispose]: release };
}

async function flock(fd: number, waitMs: number): Promise<boolean> {
  const args = [
    '--exclusive',
    '--timeout',
    String(waitMs / 1000),
    '--conflict-exit-code',
    String(HELD_ELSEWHERE),
    '3',
  ];
  const tool = spawn('flock', args, {
    stdio: ['ignore', 'ignore', 'pipe', fd],
    signal: AbortSignal.timeout(waitMs + FLOCK_DEADLINE_MS),
    killSignal: 'SIGKILL',
  });
  let complaint = '';
  tool.stderr?.on('data', (chunk: Buffer) => {
    complaint = (complaint + chunk.toString('utf8')).slice(-1000);
  });
  const code = await new Promise<number | null>((resolve, reject) => {
    tool.once('error', (cause) =>
      reject(new Error('cannot run flock (Debian package util-linux)', { cause })),
    );
    tool.once('close', resolve);
  });
  if (code === 0) return true;
  if (code === HELD_ELSEWHERE) return false;
  throw new Error(`flock ended with ${code ?? 'a signal'}: ${complaint.trim()}`);
}
