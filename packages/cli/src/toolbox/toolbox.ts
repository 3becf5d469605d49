/** The way into one running sandbox. */
import type { SandboxRecord } from '@releap/contract';
import { type Client, toolboxOperations, toolboxUrl } from '@releap/sdk';
import { CliError } from '../cli-error.ts';
import { connectTo, longFetch } from '../client/connect.ts';
import type { Service } from '../client/service.ts';

export interface Toolbox {
  readonly sandbox: SandboxRecord;
  readonly api: Client<typeof toolboxOperations>;
  /** Base URL of its operations, without a final slash. */
  readonly url: string;
  readonly apiKey: string;
  readonly signal: AbortSignal;
}

export async function openToolbox(service: Service, sandbox: SandboxRecord): Promise<Toolbox> {
  const regions = await service.regions();
  const base = regions.find((region) => region.id === sandbox.region)?.toolbox_proxy_url;
  if (!base)
    throw new CliError(
      `region ${JSON.stringify(sandbox.region)} offers no way into its sandboxes (it has no toolbox_proxy_url)`,
    );
  const url = toolboxUrl(new URL(base, `${service.url}/`).href, sandbox.id);
  const { apiKey, signal } = service;
  const api = connectTo(toolboxOperations, { url, credential: apiKey, signal }, longFetch);
  return { sandbox, api, url, apiKey, signal };
}
