/** The operator's operations on hosts, the machines that hold sandboxes. */
import type {
  HostDrainResponse,
  HostEvictResponse,
  HostList,
  HostRecord,
  HostUndrainResponse,
} from '@releap/contract';
import { CliError, usageError } from '../cli-error.ts';
import { EXIT } from '../exit-codes.ts';
import type { Http } from './http.ts';

const PATH = '/operator/hosts';
/** A host may hold thousands of sandboxes. */
const CALL_MS = 60_000;

export async function hosts(http: Http): Promise<HostRecord[]> {
  const answer = await http.json<Partial<HostList> | undefined>(PATH);
  if (!Array.isArray(answer?.hosts))
    throw new CliError('the service did not answer with a list of hosts: is it a Releap service?');
  return answer.hosts;
}

export function drainHost(http: Http, id: string, force: boolean): Promise<HostDrainResponse> {
  const json = force ? { force } : {};
  return http.json(`${PATH}/${encodeURIComponent(id)}/drain`, { method: 'POST', json, timeoutMs: CALL_MS });
}

export function undrainHost(http: Http, id: string): Promise<HostUndrainResponse> {
  return http.json(`${PATH}/${encodeURIComponent(id)}/undrain`, { method: 'POST', json: {} });
}

/** Without a sandbox: every spot sandbox on the host. */
export function evictFrom(http: Http, id: string, vmId?: string): Promise<HostEvictResponse> {
  const json = vmId === undefined ? {} : { vm_id: vmId };
  return http.json(`${PATH}/${encodeURIComponent(id)}/evict`, { method: 'POST', json, timeoutMs: CALL_MS });
}

/** The host of that id, or of the only id that begins so. */
export async function findHost(http: Http, text: string): Promise<HostRecord> {
  if (text === '') throw usageError('no host was named');
  const all = await hosts(http);
  const matches = all.filter(({ id }) => id.startsWith(text.toLowerCase()));
  const [only] = matches;
  if (only === undefined)
    throw new CliError(`no host has the id ${JSON.stringify(text)}: rlp host ls lists them`, {
      exitCode: EXIT.notFound,
      status: 404,
    });
  if (matches.length > 1)
    throw usageError(`${JSON.stringify(text)} means ${matches.length} hosts, use more of the id`);
  return only;
}
