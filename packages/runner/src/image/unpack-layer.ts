/** From a layer's blob to its tar archive: unpacked, and verified by the image's `diff_ids`. */
import { createHash } from 'node:crypto';
import { closeSync, constants, createReadStream, createWriteStream, fstatSync, openSync } from 'node:fs';
import { open, rm } from 'node:fs/promises';
import { Transform } from 'node:stream';
import { pipeline } from 'node:stream/promises';
import { createGunzip, createZstdDecompress } from 'node:zlib';
import { ImageError, show, toImageError } from './image-error.ts';
import type { TarEntry } from './tar-read.ts';

export interface LayerSource {
  /** The blob's file: a tar archive, plain or packed with gzip or zstd. */
  path: string;
  /** How messages name it: its digest. */
  digest: string;
  /** `sha256:…` of the unpacked archive, from the image's configuration. */
  diffId: string;
  /** It is the archive itself, and was verified before. */
  verified?: boolean;
}

/** What an image's layers may still unpack to. */
export interface UnpackBudget {
  left: number;
  readonly total: number;
}

/** An archive that is ready to be read. */
export interface UnpackedLayer extends Disposable {
  fd: number;
  size: number;
  path: string;
  /** What its index says. */
  entries?: readonly TarEntry[];
}

const CHUNK = 256 * 1024;

/**
 * @param target where the archive goes, unless the blob is one already
 * @throws ImageError `lying-registry`, `invalid-image` or `too-large`; nothing is left at `target` then
 */
export async function unpackLayer(
  layer: LayerSource,
  target: string,
  budget: UnpackBudget,
): Promise<UnpackedLayer> {
  if (layer.verified) {
    const opened = openLayer(layer.path);
    charge(budget, opened.size);
    return opened;
  }
  const packing = await packingOf(layer.path);
  const hash = createHash('sha256');
  const meter = new Transform({
    transform(chunk: Buffer, _encoding, done): void {
      try {
        charge(budget, chunk.length);
      } catch (error) {
        done(error as Error);
        return;
      }
      hash.update(chunk);
      done(null, chunk);
    },
  });
  const source = createReadStream(layer.path, { highWaterMark: CHUNK });
  try {
    if (packing === 'none') {
      await pipeline(source, meter, discard);
    } else {
      const unpack =
        packing === 'gzip' ? createGunzip({ chunkSize: CHUNK }) : createZstdDecompress({ chunkSize: CHUNK });
      const sink = createWriteStream(target, { mode: 0o600, highWaterMark: 4 * CHUNK });
      await pipeline(source, unpack, meter, sink);
    }
  } catch (error) {
    await rm(target, { force: true });
    const { code } = error as NodeJS.ErrnoException;
    if (code?.startsWith('Z_') || code?.startsWith('ZSTD_')) {
      throw new ImageError('invalid-image', `layer ${layer.digest} is damaged: ${(error as Error).message}`, {
        cause: error,
      });
    }
    throw toImageError(error, `unpacking layer ${layer.digest}`);
  }
  const diffId = `sha256:${hash.digest('hex')}`;
  if (diffId !== layer.diffId) {
    await rm(target, { force: true });
    throw new ImageError(
      'lying-registry',
      `layer ${layer.digest} unpacks to ${diffId}, but the image's configuration says ${show(layer.diffId)}`,
    );
  }
  return openLayer(packing === 'none' ? layer.path : target);
}

function openLayer(path: string): UnpackedLayer {
  const fd = openSync(path, constants.O_RDONLY);
  return { fd, size: fstatSync(fd).size, path, [Symbol.dispose]: () => closeSync(fd) };
}

function charge(budget: UnpackBudget, bytes: number): void {
  budget.left -= bytes;
  if (budget.left < 0) {
    throw new ImageError('too-large', `the image's layers unpack to more than ${budget.total} bytes`);
  }
}

async function discard(chunks: AsyncIterable<Buffer>): Promise<void> {
  for await (const _chunk of chunks) {
    // Only measured and hashed on the way.
  }
}

/** By content: media types are often wrong about this, and `diff_ids` catches what is neither. */
async function packingOf(file: string): Promise<'gzip' | 'zstd' | 'none'> {
  await using handle = await open(file, 'r');
  const { buffer, bytesRead } = await handle.read(Buffer.alloc(4), 0, 4, 0);
  if (bytesRead >= 2 && buffer.readUInt16BE(0) === 0x1f8b) return 'gzip';
  if (bytesRead >= 4 && buffer.readUInt32BE(0) === 0x28b52ffd) return 'zstd';
  return 'none';
}
