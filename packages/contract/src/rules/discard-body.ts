import type { IncomingMessage } from 'node:http';

/** Bounds of the unread rest of a body that is discarded before the response is sent. */
const DISCARD_BYTES = 16 * 1024 * 1024;
const DISCARD_MS = 2_000;

/**
 * Discards the rest of a request body that is not read to the end: a client that is still sending would otherwise see a broken
 * connection instead of the response. @returns whether the body has ended, so that the connection may be used again
 */
export async function discardBody(request: IncomingMessage): Promise<boolean> {
  if (request.complete || request.destroyed) return request.complete;
  const { promise, resolve } = Promise.withResolvers<void>();
  const timer = setTimeout(resolve, DISCARD_MS);
  let bytes = 0;
  const onData = (chunk: Buffer): void => {
    bytes += chunk.length;
    if (bytes > DISCARD_BYTES) resolve();
  };
  request.unpipe();
  request.on('data', onData).once('end', resolve).once('close', resolve);
  request.resume();
  await promise;
  clearTimeout(timer);
  request.off('data', onData).off('end', resolve).off('close', resolve);
  return request.complete;
}
