/** The service as a project's API key sees it. */
import type { RegionRecord, SandboxRecord } from '@releap/contract';
import { operations } from '@releap/sdk';
import { loadSettings } from '../settings.ts';
import type { Context } from '../terminal.ts';
import { type Api, connect, connectTo, longFetch } from './connect.ts';
import { pages } from './pages.ts';

/** How long one long poll lasts, in milliseconds; the service allows 60 s, proxies between often less. */
export const POLL_MS = 25_000;
/** Extra time for a response beyond the requested poll, in milliseconds. */
export const POLL_SLACK_MS = 15_000;

export interface Service {
  readonly url: string;
  readonly apiKey: string;
  readonly signal: AbortSignal;
  readonly api: Api;
  /** The same for what may be silent for long: logs that are followed. */
  readonly patient: Api;
  /** Asked once. */
  regions(): Promise<RegionRecord[]>;
  /** Newest first. */
  sandboxes(): AsyncGenerator<SandboxRecord>;
}

/** The service of the settings. `signal` replaces the context's where work has to continue after a Ctrl-C. */
export function openService(context: Context, signal: AbortSignal = context.signal): Service {
  const { url, apiKey } = loadSettings(context);
  const credentials = { url, credential: apiKey, signal };
  const api = connect(credentials);
  let regions: Promise<RegionRecord[]> | undefined;
  return {
    url,
    apiKey,
    signal,
    api,
    patient: connectTo(operations, credentials, longFetch),
    regions: () => (regions ??= api.listRegions()),
    sandboxes: () => pages(api.listSandboxes, ({ vms }) => vms),
  };
}
