/** The way into one running sandbox. */
import type { SandboxRecord } from '@releap/contract';
import { toolboxUrl } from '@releap/contract/toolbox-path';
import type { Http } from '../api/http.ts';
import type { Service } from '../api/service.ts';
import { CliError } from '../cli-error.ts';

export interface Toolbox {
  http: Http;
  sandbox: SandboxRecord;
  /** Absolute address of an operation, as in `process/execute`. */
  url: (tail: string) => string;
}

export async function openToolbox(service: Service, sandbox: SandboxRecord): Promise<Toolbox> {
  const regions = await service.regions();
  const base = regions.find((region) => region.id === sandbox.region)?.toolbox_proxy_url;
  if (!base)
    throw new CliError(
      `region ${JSON.stringify(sandbox.region)} offers no way into its sandboxes (it has no toolbox_proxy_url)`,
    );
  const absolute = new URL(base, `${service.url}/`).href;
  return { http: service.http, sandbox, url: (tail) => `${toolboxUrl(absolute, sandbox.id)}/${tail}` };
}
