import { spawn } from 'node:child_process';
import { close, ftruncate, open, write } from 'node:fs';
import { readFile } from 'node:fs/promises';
import { promisify } from 'node:util';

const closeFd = promisify(close);
const FLOCK_DEADLINE_MS = 5_000;
/** What flock(1) is told to end with when somebody else holds the lock; any other code is a failure of its own. */
const HELD_ELSEWHERE = 75;

/** An exclusive lock that the kernel takes back when the process dies, however it dies. */
export interface FileLock extends AsyncDisposable {
  release(): Promise<void>;
}

/**
 * Takes flock(2) on a file, which is made when it is missing and never removed (removing it would let two
 * processes hold "the" lock on different inodes).
 *
 * Node has no flock. flock(1) locks the open file description that it inherits from us, so the lock stays with
 * our descriptor when the tool is gone. Node opens files close-on-exec: children do not keep the lock alive.
 *
 * @param holder one line about ourselves, for whoever finds the lock taken
 * @param waitMs how long to wait for a present holder to end
 * @returns the lock, or what the present holder wrote about itself
 */
export async function lockFile(
  file: string,
  holder: string,
  waitMs = 0,
): Promise<FileLock | { heldBy: string }> {
  // 'a' so that the text of a present holder is not truncated before we know that we are the next one.
  // A bare descriptor: a FileHandle that nobody refers to any more would be closed, and the lock lost.
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
