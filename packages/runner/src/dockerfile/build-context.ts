/** The build context: a tar archive of the deployment's store, checked while it is read. */
import { createHash } from 'node:crypto';
import type { DockerfileRoot } from '@releap/contract';
import { type StoreClient, StoreError } from '../artifact/store-client.ts';
import { ImageError } from '../image/image-error.ts';

export type Context = NonNullable<DockerfileRoot['context']>;

/** Opens a blob of the deployment's store. @throws ImageError */
export type OpenBlob = (digest: string, signal: AbortSignal) => Promise<AsyncIterable<Uint8Array>>;

/** Build contexts from the store, which gives a runner what its assignments name. */
export function contextsOf(store: Pick<StoreClient, 'open'>): OpenBlob {
  return async (digest, signal) => {
    try {
      return await store.open(digest, signal);
    } catch (error) {
      signal.throwIfAborted();
      const code = error instanceof StoreError && error.status === 404 ? 'not-found' : 'unreachable';
      const why = error instanceof StoreError ? error.message : 'the control plane cannot be reached';
      throw new ImageError(code, `the build context ${digest} cannot be fetched: ${why}`, { cause: error });
    }
  };
}

/** What is read, as long as it is what the digest says. @throws ImageError */
export async function* verified(
  source: AsyncIterable<Uint8Array>,
  { digest, bytes }: Context,
): AsyncGenerator<Uint8Array, void, void> {
  const hash = createHash('sha256');
  let read = 0;
  for await (const chunk of source) {
    read += chunk.length;
    if (read > bytes) break;
    hash.update(chunk);
    yield chunk;
  }
  if (read !== bytes || `sha256:${hash.digest('hex')}` !== digest) {
    throw new ImageError('failed', `the build context that the store has for ${digest} is another one`);
  }
}

/** The first bytes of an archive, and all of it. */
export async function peek(
  source: AsyncIterable<Uint8Array>,
): Promise<{ head: Uint8Array; all: AsyncIterable<Uint8Array> }> {
  const chunks = source[Symbol.asyncIterator]();
  const first = await chunks.next();
  const head = first.done === true ? new Uint8Array() : first.value;
  async function* all(): AsyncGenerator<Uint8Array, void, void> {
    try {
      if (head.length > 0) yield head;
      for (let next = await chunks.next(); next.done !== true; next = await chunks.next()) yield next.value;
    } finally {
      await chunks.return?.();
    }
  }
  return { head, all: all() };
}

export function isGzip(head: Uint8Array): boolean {
  return head[0] === 0x1f && head[1] === 0x8b;
}
