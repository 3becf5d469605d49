/** The way into one running sandbox. */
import { toolboxOperations, toolboxUrl, type RegionRecord, type SandboxRecord } from '@releap/contract/wire';
import { client } from './client.ts';
import { ReleapError } from './error.ts';
import { RETRIED_READS, type Service } from './service.ts';
import type { Client } from './types.ts';

export interface Toolbox {
  readonly sandbox: SandboxRecord;
  readonly api: Client<typeof toolboxOperations>;
  /** Base URL of its operations, without a final slash. */
  readonly url: string;
  readonly apiKey: string;
  readonly signal: AbortSignal;
}

/** @throws ReleapError when the region of the sandbox has no gateway */
export async function openToolbox(service: Service, sandbox: SandboxRecord): Promise<Toolbox> {
  const url = toolboxUrl(await gatewayUrl(service, sandbox.region), sandbox.id);
  const { apiKey, signal, longFetch } = service;
  const api = client(toolboxOperations, {
    baseUrl: url,
    credential: apiKey,
    signal,
    retryReads: RETRIED_READS,
    ...(longFetch === undefined ? {} : { fetch: longFetch }),
  });
  return { sandbox, api, url, apiKey, signal };
}

/** Base URL of a region's gateway. */
export async function gatewayUrl(service: Service, region: string): Promise<string> {
  const is = ({ id }: RegionRecord): boolean => id === region;
  const record =
    (await service.regions()).find(is) ??
    // A region that takes no new sandboxes is listed only then.
    (await service.api.listRegions({ query: { include_disabled: true } })).find(is);
  const base = record?.toolbox_proxy_url;
  if (base) return new URL(base, `${service.url}/`).href;
  throw new ReleapError(
    'failed',
    `region ${JSON.stringify(region)} offers no way into its sandboxes (it has no toolbox_proxy_url)`,
  );
}
