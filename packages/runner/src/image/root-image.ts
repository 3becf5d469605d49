/**
 * Writes a merged tree as the read-only root image that guests mount: squashfs, made by `sqfstar`.
 *
 * Data, inodes and attributes are stored uncompressed: what a guest pays for under emulation is unpacking, not reading.
 * Without fragments every file's bytes lie on their own, so that reading a small file reads nothing else. Times, order
 * and the image's own time stamp come from the layers alone, so the same layers give the same image, byte for byte.
 */
import { open, rm } from 'node:fs/promises';
import type { FileHandle } from 'node:fs/promises';
import { Readable } from 'node:stream';
import { pipeline } from 'node:stream/promises';
import { ImageError, show, toImageError } from './image-error.ts';
import type { MergedImage } from './oci-flatten.ts';
import { killGroup, NOT_FOUND_CODE, startProcess } from '../process/index.ts';

export interface RootImageOptions {
  signal?: AbortSignal | undefined;
  /** Bytes handed over so far, of about how many. */
  onProgress?: (done: number, total: number) => void;
}

const SQFSTAR_MEMORY_MIB = 128;
const STDERR_MAX = 8 * 1024;

/**
 * Writes `merged` to `target`, which must not exist, and makes it durable.
 * @returns its size in bytes.
 * @throws ImageError; `target` is removed then.
 */
export async function writeRootImage(
  merged: MergedImage,
  target: string,
  options: RootImageOptions = {},
): Promise<number> {
  const { root } = merged;
  const child = startProcess(
    'sqfstar',
    [
      '-comp',
      'gzip',
      '-noI',
      '-noId',
      '-noD',
      '-noF',
      '-noX',
      '-no-fragments',
      '-reproducible',
      '-mkfs-time',
      '0',
      '-no-progress',
      '-quiet',
      '-exit-on-error',
      '-processors',
      '1',
      '-mem',
      `${SQFSTAR_MEMORY_MIB}M`,
      '-root-mode',
      root.mode.toString(8),
      '-root-uid',
      String(root.uid),
      '-root-gid',
      String(root.gid),
      target,
    ],
    { stdio: ['pipe', 'ignore', 'pipe'] },
  );
  let stderr = '';
  child.stderr?.on('data', (chunk: Buffer) => {
    stderr = (stderr + chunk.toString('utf8')).slice(-STDERR_MAX);
  });
  const ended = new Promise<number | NodeJS.Signals>((resolve, reject) => {
    child.once('error', reject);
    child.once('close', (code, killedBy) => resolve(code ?? killedBy ?? 'SIGKILL'));
  });
  const onAbort = (): void => killGroup(child);
  options.signal?.addEventListener('abort', onAbort, { once: true });
  try {
    if (!child.stdin) throw new ImageError('failed', 'sqfstar has no standard input');
    const source = Readable.from(
      merged.stream((bytes) => options.onProgress?.(bytes, merged.bytes)),
      { objectMode: true, highWaterMark: 4 },
    );
    const [fed, exit] = await Promise.allSettled([pipeline(source, child.stdin), ended]);
    options.signal?.throwIfAborted();
    if (exit.status === 'rejected') throw exit.reason;
    // Its own words say more than our broken pipe.
    if (exit.value !== 0) throw sqfstarError(exit.value, stderr);
    if (fed.status === 'rejected') throw fed.reason;

    await using handle = await open(target, 'r+');
    await setRootTime(handle, root.mtime);
    await handle.chmod(0o444);
    await handle.sync();
    return (await handle.stat()).size;
  } catch (error) {
    killGroup(child);
    await ended.catch(() => undefined);
    await rm(target, { force: true });
    throw toImageError(error, 'writing the root image');
  } finally {
    options.signal?.removeEventListener('abort', onAbort);
  }
}

const METADATA_BLOCK = 8192;
const INODE_DIRECTORY = 1;
const INODE_DIRECTORY_EXTENDED = 8;

/**
 * sqfstar 4.5 ignores `-root-time` and takes the present time, which would make every image differ. The inode table is
 * stored plainly (`-noI`), so the root's time can be set in place: the superblock names its inode at byte 32 as
 * `block << 16 | offset` within the table whose start is at byte 64; blocks are 8 KiB, each behind a 2 byte length.
 */
async function setRootTime(handle: FileHandle, mtime: number): Promise<void> {
  const { buffer: superblock } = await handle.read(Buffer.alloc(96), 0, 96, 0);
  const reference = superblock.readBigUInt64LE(32);
  const block = Number(superblock.readBigUInt64LE(64)) + Number(reference >> 16n);
  const offset = Number(reference & 0xffffn);
  // A position within the inode, which may run over into the next block.
  const place = (at: number): number => block + 2 + offset + at + (offset + at >= METADATA_BLOCK ? 2 : 0);
  const { buffer: type } = await handle.read(Buffer.alloc(1), 0, 1, place(0));
  if (type[0] !== INODE_DIRECTORY && type[0] !== INODE_DIRECTORY_EXTENDED) {
    throw new ImageError('failed', 'sqfstar wrote an image whose root folder is not where it should be');
  }
  const time = Buffer.alloc(4);
  time.writeUInt32LE(mtime);
  for (let i = 0; i < time.length; i += 1) await handle.write(time, i, 1, place(8 + i));
}

function sqfstarError(exit: number | NodeJS.Signals, stderr: string): ImageError {
  if (exit === NOT_FOUND_CODE) {
    return new ImageError('tool-missing', `sqfstar is not installed (rlp doctor names its package)`);
  }
  if (/no space left|out of space|disk quota/i.test(stderr)) {
    return new ImageError('no-space', "no space left on the image cache's disk while writing the root image");
  }
  const how = typeof exit === 'number' ? `ended with code ${exit}` : `was killed by ${exit}`;
  return new ImageError('failed', `sqfstar ${how} while writing the root image: ${show(stderr.trim(), 500)}`);
}
