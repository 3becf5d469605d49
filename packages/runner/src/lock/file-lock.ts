import { constants, close, open } from 'node:fs';
import { promisify } from 'node:util';
import { ProcessError, runToExit } from '../process/index.ts';

const closeFd = promisify(close);

/** A lock that is held; the kernel releases it when this process ends, however it ends. */
export interface FileLock extends AsyncDisposable {
  release(): Promise<void>;
}

/** What flock(1) exits with when another process holds the lock. */
const HELD_ELSEWHERE_CODE = 75;
/** Longer than any holder works; a caller with less patience gives a signal. */
const WAIT_MAX_MS = 24 * 60 * 60_000;

interface Waiting {
  wait: boolean;
  signal?: AbortSignal | undefined;
}

/**
 * Takes an exclusive lock on `file` among all processes of this machine, by flock(2). The file is made when it is missing
 * and never removed: removing it would let two processes hold the lock, each on an inode of its own.
 *
 * Node.js cannot call flock. flock(1) locks the open file description that it inherits from us, so that the lock stays
 * with our descriptor when the tool has ended. Descriptors are close-on-exec: no child keeps the lock.
 * @returns undefined only with `wait: false`, when another process holds it
 * @throws ProcessError
 */
export async function lockFile(file: string, options: Waiting & { wait: true }): Promise<FileLock>;
export async function lockFile(file: string, options: Waiting): Promise<FileLock | undefined>;
export async function lockFile(file: string, { wait, signal }: Waiting): Promise<FileLock | undefined> {
  // A bare descriptor: a FileHandle that is garbage collected would be closed, and the lock with it.
  const fd = await promisify(open)(file, constants.O_RDWR | constants.O_CREAT, 0o600);
  let isHeld = false;
  try {
    const nonblock = wait ? [] : ['--nonblock'];
    const conflict = ['--conflict-exit-code', String(HELD_ELSEWHERE_CODE)];
    const { code, stderr } = await runToExit('flock', ['--exclusive', ...nonblock, ...conflict, '3'], {
      deadlineMs: WAIT_MAX_MS,
      signal,
      extraFd: fd,
    });
    isHeld = code === 0;
    if (!isHeld && (wait || code !== HELD_ELSEWHERE_CODE)) {
      throw new ProcessError('exit', `cannot lock ${file}: flock exited with code ${code}: ${stderr.trim()}`);
    }
  } finally {
    if (!isHeld) await closeFd(fd);
  }
  if (!isHeld) return undefined;
  let closing: Promise<void> | undefined;
  const release = (): Promise<void> => (closing ??= closeFd(fd));
  return { release, [Symbol.asyncDispose]: release };
}
