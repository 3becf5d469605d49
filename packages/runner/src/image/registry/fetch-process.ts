/**
 * The process that fetches layers: `node fetch-process.ts`, a `FetchJob` as one line of JSON on standard input, `FetchMessage`
 * lines on standard output, blobs as files in its working directory.
 *
 * A process of its own and unprivileged, because it speaks for long with servers that tenants choose. It ends when its
 * standard input does.
 */
import { createHash } from 'node:crypto';
import { type FileHandle, open } from 'node:fs/promises';
import { createInterface } from 'node:readline';
import { ImageError, toImageError } from '../image-error.ts';
import { dropPrivileges } from '../unprivileged.ts';
import { AddressPolicy } from './address-policy.ts';
import type { FetchJob, FetchMessage } from './fetch-layers.ts';
import { RegistryClient } from './registry-client.ts';

/** A blob that broke off is continued so many times. */
const CONTINUATIONS_MAX = 3;
const RETRYABLE = new Set(['unreachable', 'timeout']);
/** Blobs of an image that are fetched at the same time. */
const PARALLEL = 3;
const WATCH_MS = 1_000;

function send(message: FetchMessage): void {
  process.stdout.write(`${JSON.stringify(message)}\n`);
}

/** Gives up on a registry that sends less than `minBytes` in `stallMs`: it would hold a place that others wait for. */
function watchPace(
  { limits, target }: FetchJob,
  received: () => number,
): AsyncDisposable & { signal: AbortSignal } {
  const slow = new AbortController();
  let since = performance.now();
  let before = 0;
  const timer = setInterval(
    () => {
      const ms = performance.now() - since;
      if (ms < limits.stallMs) return;
      const bytes = received() - before;
      if (bytes < limits.stallBytes) {
        const message = `registry ${target.host} sent ${bytes} bytes in ${Math.round(ms / 1000)} s while fetching ${target.name}; at least ${limits.stallBytes} are expected`;
        slow.abort(new ImageError('timeout', message));
      }
      since = performance.now();
      before += bytes;
    },
    Math.min(WATCH_MS, limits.stallMs / 4),
  );
  return {
    signal: slow.signal,
    [Symbol.asyncDispose]: () => {
      clearInterval(timer);
      return Promise.resolve();
    },
  };
}

async function fetchAll(job: FetchJob): Promise<void> {
  let received = 0;
  await using pace = watchPace(job, () => received);
  await using client = new RegistryClient({
    target: job.target,
    credential: job.credential,
    policy: new AddressPolicy(job.privateHosts),
    signal: pace.signal,
    stallMs: job.limits.stallMs,
  });
  const onBytes = (count: number): void => {
    received += count;
  };
  const left = job.blobs.entries();
  const worker = async (): Promise<void> => {
    for (const [index, blob] of left) {
      await fetchBlob(client, job, blob, onBytes);
      send({ type: 'blob', index });
    }
  };
  try {
    await Promise.all(Array.from({ length: PARALLEL }, worker));
  } catch (error) {
    throw pace.signal.aborted ? pace.signal.reason : error;
  }
  send({ type: 'done' });
}

async function fetchBlob(
  client: RegistryClient,
  { target }: FetchJob,
  { digest, size, file }: FetchJob['blobs'][number],
  onBytes: (count: number) => void,
): Promise<void> {
  await using out = await open(file, 'wx', 0o600);
  const progress = { hash: createHash('sha256'), size: 0 };
  for (let left = CONTINUATIONS_MAX; ; left -= 1) {
    try {
      await receive(client, out, digest, size, progress, onBytes);
      if (progress.size < size)
        throw new ImageError('unreachable', `registry ${target.host} ended a layer of ${target.name} early`);
      break;
    } catch (error) {
      const mayContinue = error instanceof ImageError && RETRYABLE.has(error.code) && progress.size > 0;
      if (left === 0 || !mayContinue) throw error;
    }
  }
  const actual = `sha256:${progress.hash.digest('hex')}`;
  if (progress.size === size && actual === digest) return;
  throw new ImageError(
    'lying-registry',
    `registry ${target.host} sent content for ${target.name} that does not match its digest: ${actual} of more than ${progress.size - 1} bytes, not ${digest} of ${size}`,
  );
}

/** Receives what is missing of a blob, and no more than one byte beyond its size. */
async function receive(
  client: RegistryClient,
  out: FileHandle,
  digest: string,
  size: number,
  progress: { hash: ReturnType<typeof createHash>; size: number },
  onBytes: (count: number) => void,
): Promise<void> {
  const { offset, body } = await client.blob(digest, progress.size);
  // A registry without ranges starts again: what is known is skipped.
  let skip = progress.size - offset;
  for await (const chunk of body) {
    onBytes(chunk.length);
    const fresh = chunk.subarray(Math.min(skip, chunk.length));
    skip -= chunk.length - fresh.length;
    if (fresh.length === 0) continue;
    progress.hash.update(fresh);
    progress.size += fresh.length;
    if (progress.size > size) return;
    await out.appendFile(fresh);
  }
}

dropPrivileges();
const input = createInterface({ input: process.stdin });
input.once('line', (line) => {
  fetchAll(JSON.parse(line) as FetchJob)
    .catch((error: unknown) => {
      const { code, message } = toImageError(error, 'fetching the layers');
      send({ type: 'error', code, message });
    })
    .finally(() => {
      input.close();
      process.stdin.destroy();
    });
});
process.stdin.once('end', () => process.exit(1));
