import { createHash } from 'node:crypto';
import { createReadStream } from 'node:fs';
import { pipeline } from 'node:stream/promises';
import { run } from '../process/index.ts';

/** SHA-256 of a file's content, in hexadecimal. */
export async function fileSha256(path: string): Promise<string> {
  const hash = createHash('sha256');
  await pipeline(createReadStream(path), hash);
  return hash.digest('hex');
}

/** For a file of terabytes on a slow disk. */
const HASH_DEADLINE_MS = 24 * 60 * 60_000;

/** The same in another process at idle priority: hashing a disk must delay neither this thread nor the I/O of sandboxes. */
export async function fileSha256InBackground(path: string, signal: AbortSignal): Promise<string> {
  const text = await run('nice', ['-n', '19', 'ionice', '-c', '3', 'sha256sum', '--', path], {
    deadlineMs: HASH_DEADLINE_MS,
    signal,
  });
  const sha256 = /^\\?([0-9a-f]{64}) /.exec(text)?.[1];
  if (sha256 === undefined) throw new Error(`sha256sum printed no digest of ${path}`);
  return sha256;
}
