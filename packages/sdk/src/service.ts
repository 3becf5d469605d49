/** The service as a project's API key sees it. */
import type { RegionRecord, SandboxRecord } from '@releap/contract/wire';
import { operations } from '@releap/contract/wire';
import { client, type ClientOptions } from './client.ts';
import { pages } from './pages.ts';
import type { Client, RetryPolicy } from './types.ts';

export type Api = Client<typeof operations>;

export interface ServiceOptions {
  /** Without a final slash. */
  url: string;
  apiKey: string;
  /** Of all calls. */
  signal?: AbortSignal;
  fetch?: ClientOptions['fetch'];
  /** For what may be silent for long; see `@releap/sdk/node`. Default: `fetch`. */
  longFetch?: ClientOptions['fetch'];
}

export interface Service {
  readonly url: string;
  readonly apiKey: string;
  readonly signal: AbortSignal;
  readonly api: Api;
  /** The same for what may be silent for long: logs that are followed, uploads, commands. */
  readonly patient: Api;
  readonly longFetch: ClientOptions['fetch'];
  /** Asked once. */
  regions(): Promise<RegionRecord[]>;
  /** Newest first. */
  sandboxes(): AsyncGenerator<SandboxRecord>;
  /** The same with another signal, for what has to continue after an abort. */
  withSignal(signal: AbortSignal): Service;
}

/** A rate that is still exceeded after so many tries is not one to wait for. */
export const RETRIED_READS: RetryPolicy = { attempts: 5, statuses: [429] };

/** Reads that exceed the rate limit (429) are repeated for a while, other calls only where they say so. */
export function openService(options: ServiceOptions): Service {
  const { url, apiKey, signal = new AbortController().signal, fetch, longFetch = fetch } = options;
  const connect = (send: ClientOptions['fetch']): Api =>
    client(operations, {
      baseUrl: url,
      credential: apiKey,
      signal,
      retryReads: RETRIED_READS,
      ...(send === undefined ? {} : { fetch: send }),
    });
  const api = connect(fetch);
  let regions: Promise<RegionRecord[]> | undefined;
  return {
    url,
    apiKey,
    signal,
    api,
    patient: connect(longFetch),
    longFetch,
    regions: () => (regions ??= api.listRegions()),
    sandboxes: () => pages(api.listSandboxes, 'vms'),
    withSignal: (other) => openService({ ...options, signal: other }),
  };
}

/** For a create or fork that finds no capacity (429), or a part of the service temporarily unavailable (503). */
export function retryOnOverload(onRefusal: (reason: string) => void): RetryPolicy {
  return { attempts: 20, onRefusal: ({ message }) => onRefusal(message) };
}
