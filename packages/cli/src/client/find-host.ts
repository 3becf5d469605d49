/** From what the operator typed to one host. */
import type { HostRecord } from '@releap/contract';
import { CliError, usageError } from '../cli-error.ts';
import { EXIT } from '../exit-codes.ts';
import type { Operator } from '../operator.ts';

export async function listHosts({ api }: Operator): Promise<HostRecord[]> {
  const { hosts }: { hosts?: HostRecord[] } = await api.listHosts();
  if (!Array.isArray(hosts))
    throw new CliError('the service did not answer with a list of hosts: is it a Releap service?');
  return hosts;
}

/** The host of that id, or of the only id that begins so. */
export async function findHost(operator: Operator, text: string): Promise<HostRecord> {
  if (text === '') throw usageError('no host was named');
  const all = await listHosts(operator);
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
