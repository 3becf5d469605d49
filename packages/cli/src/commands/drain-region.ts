/** `rlp region drain`: drains every host of a region, and shows how far it is. */
import type { HostRecord } from '@releap/contract/wire';
import { listHosts, poll } from '@releap/sdk';
import { CliError } from '../cli-error.ts';
import { EXIT } from '../exit-codes.ts';
import { openOperator, type Operator } from '../operator.ts';
import { Spinner } from '../output/spinner.ts';
import { table } from '../output/table.ts';
import { waitMs } from '../parse/values.ts';
import { type Context, print, printJson, remark } from '../terminal.ts';
import { busy, CALL_MS, counts, type DrainOptions, WAIT_MS } from './hosts.ts';

export async function drainRegion(context: Context, region: string, options: DrainOptions): Promise<number> {
  const deadlineMs = waitMs(options, WAIT_MS);
  const operator = openOperator(context);
  const { regions } = await operator.api.listAllRegions();
  const found = regions.find(({ id }) => id === region);
  if (found === undefined)
    throw new CliError(`no region has the id ${JSON.stringify(region)}: rlp region ls lists them`, {
      exitCode: EXIT.notFound,
    });
  for (const { id } of await hostsOf(operator, region))
    await operator.api.drainHost(
      { params: { id }, body: options.force ? { force: true } : {} },
      { timeoutMs: CALL_MS },
    );
  const hosts = options.wait
    ? await waitUntilDrained(context, operator, region, deadlineMs)
    : await hostsOf(operator, region);
  if (context.options.json) printJson(context, { region, hosts });
  else {
    print(context, table(['HOST', 'STATUS', 'SANDBOXES'], hosts.map(row)));
    if (found.enabled) remark(context, `it still takes new sandboxes: rlp region set ${region} --disable`);
    if (!options.force && hosts.some((host) => busy(host) > 0))
      remark(context, 'ephemeral sandboxes run until they end; --force deletes them');
  }
  return EXIT.ok;
}

const hostsOf = async ({ api }: Operator, region: string): Promise<HostRecord[]> =>
  (await listHosts(api)).filter((host) => host.region === region);

function row(host: HostRecord): string[] {
  const drain = host.draining ? (busy(host) > 0 ? 'draining' : 'drained') : 'not draining';
  return [host.id, `${host.status}, ${drain}`, counts(host)];
}

async function waitUntilDrained(
  context: Context,
  operator: Operator,
  region: string,
  deadlineMs: number,
): Promise<HostRecord[]> {
  using spinner = new Spinner(context, `draining ${region}`);
  return await poll(context.signal, deadlineMs, {
    async read() {
      const hosts = await hostsOf(operator, region);
      // Another operator may have ended a drain, or a host has joined: then this would never end.
      const other = hosts.find((host) => !host.draining);
      if (other !== undefined) throw new CliError(`host ${other.id} of ${region} is not draining`);
      spinner.text = `draining ${region}: ${progress(hosts)}`;
      return hosts;
    },
    result: (hosts) => (hosts.every((host) => busy(host) === 0) ? hosts : undefined),
    describe: (hosts) => `region ${region} is still in use (${progress(hosts)})`,
    work: 'the drain',
    intervalMs: 1_000,
  });
}

function progress(hosts: readonly HostRecord[]): string {
  const drained = hosts.filter((host) => busy(host) === 0).length;
  const left = hosts.reduce((sum, host) => sum + busy(host), 0);
  return `${drained} of ${hosts.length} hosts are empty, ${left} sandboxes or uncommitted volumes are left`;
}
