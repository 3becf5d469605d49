import { createHash } from 'node:crypto';
import { BlobError, type Blob, type PutOptions } from './blob-store.ts';

/**
 * Passes `source` on and checks it. Content that is too large or has another digest than `digest` throws instead of
 * ending, so that a reader never takes it for complete. Before the end, `onVerified` is awaited.
 */
export async function* verifyContent(
  source: AsyncIterable<Uint8Array>,
  { maxBytes, digest, signal, onVerified }: PutOptions,
  onEnd: (blob: Blob) => void,
): AsyncGenerator<Uint8Array> {
  const hash = createHash('sha256');
  let bytes = 0;
  for await (const chunk of source) {
    signal?.throwIfAborted();
    bytes += chunk.byteLength;
    if (bytes > maxBytes)
      throw new BlobError('too-large', `the content is too large: at most ${maxBytes} bytes are allowed`);
    hash.update(chunk);
    yield chunk;
  }
  signal?.throwIfAborted();
  const blob = { digest: `sha256:${hash.digest('hex')}`, bytes };
  if (digest !== undefined && digest !== blob.digest)
    throw new BlobError('digest', `the content has the digest ${blob.digest}, not ${digest}`);
  await onVerified?.(blob);
  onEnd(blob);
}
