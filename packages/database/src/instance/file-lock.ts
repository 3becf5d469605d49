import { spawn } from 'node:child_process';
import { open, readFile, type FileHandle } from 'node:fs/promises';

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
 * @returns the lock, or what the present holder wrote about itself
 */
export async function lockFile(file: string, holder: string): Promise<FileLock | { heldBy: string }> {
  // 'a' so that the text of a present holder is not truncated before we know that we are the next one.
  const handle = await open(file, 'a', 0o600);
  try {
    if (!(await flock(handle))) {
      await handle.close();
      return { heldBy: (await readFile(file, 'utf8')).trim() };
    }
    await handle.truncate(0);
    await handle.write(`${holder}\n`);
  } catch (error) {
    await handle.close().catch(() => undefined);
    throw error;
  }
  let closing: Promise<void> | undefined;
  const release = (): Promise<void> => (closing ??= handle.close());
  return { release, [Symbol.asyncDispose]: release };
}

async function flock(handle: FileHandle): Promise<boolean> {
  const args = ['--exclusive', '--nonblock', '--conflict-exit-code', String(HELD_ELSEWHERE), '3'];
  const tool = spawn('flock', args, {
    stdio: ['ignore', 'ignore', 'pipe', handle.fd],
    timeout: FLOCK_DEADLINE_MS,
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
