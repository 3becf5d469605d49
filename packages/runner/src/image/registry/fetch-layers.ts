/** Fetches layers in an unprivileged process, and reports each one as it arrives. */
import { fileURLToPath } from 'node:url';
import type { ImageLimits } from '../image-limits.ts';
import { type ImageErrorCode, ImageError, show } from '../image-error.ts';
import type { ImageJail } from '../image-jails.ts';
import { UnprivilegedProcess } from '../unprivileged-process.ts';
import type { RegistryCredential, RegistryTarget } from './registry-client.ts';

/** What `fetch-process.ts` is told. */
export interface FetchJob {
  target: RegistryTarget;
  credential?: RegistryCredential | undefined;
  privateHosts: readonly string[];
  blobs: {
    digest: string;
    size: number;
    /** Name of the file in its working directory. */
    file: string;
  }[];
  limits: Pick<ImageLimits, 'pullMs' | 'stallMs' | 'stallBytes' | 'compressedBytes'>;
}

/** What `fetch-process.ts` says. */
export type FetchMessage =
  | { type: 'blob'; index: number }
  | { type: 'done' }
  | { type: 'error'; code: ImageErrorCode; message: string };

const PROCESS = fileURLToPath(new URL('fetch-process.ts', import.meta.url));
const HEAP_MIB = 128;

export function startFetcher(
  jail: ImageJail,
  { compressedBytes: fileMax }: Pick<ImageLimits, 'compressedBytes'>,
): UnprivilegedProcess<FetchMessage> {
  return UnprivilegedProcess.start(PROCESS, { jail, network: true, heapMib: HEAP_MIB, fileMax });
}

/** @throws ImageError */
export async function fetchLayers(
  fetcher: UnprivilegedProcess<FetchMessage>,
  job: FetchJob,
  options: { signal: AbortSignal; onBlob: (index: number) => void },
): Promise<void> {
  let outcome: Exclude<FetchMessage, { type: 'blob' }> | undefined;
  const { target, limits } = job;
  const onMessage = (message: FetchMessage): void => {
    if (message.type === 'blob') options.onBlob(message.index);
    else outcome = message;
  };
  const running = fetcher.run(job, { deadlineMs: limits.pullMs, signal: options.signal, onMessage });
  const { code, stderr } = await running.catch((error: unknown) => {
    if (!(error instanceof ImageError)) throw error;
    if (error.code === 'aborted') throw new ImageError('aborted', `fetching ${target.name} was cancelled`);
    if (error.code !== 'timeout') throw error;
    throw new ImageError(
      'timeout',
      `registry ${target.host} did not send ${target.name} within ${limits.pullMs / 1000} s`,
    );
  });
  if (outcome?.type === 'done') return;
  if (outcome?.type === 'error') throw new ImageError(outcome.code, outcome.message);
  throw new ImageError('failed', `the layer fetcher exited with code ${code}: ${show(stderr.trim(), 500)}`);
}
