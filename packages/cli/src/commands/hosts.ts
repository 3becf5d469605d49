/** `rlp host ls|drain|undrain|evict|permit-join|forget`: what the operator does with the machines that hold sandboxes. */
import type { HostEvictResponse, HostMove, HostRecord } from '@releap/contract';
import { isUuid, parseSandboxId } from '@releap/contract/ids';
import { SANDBOX_STATUS_GROUPS } from '@releap/contract/wire';
import { findHost, findSandbox, hasStatus, listHosts as readHosts, poll } from '@releap/sdk';
import { CliError, usageError } from '../cli-error.ts';
import { EXIT } from '../exit-codes.ts';
import { classSlugs } from './host-classes.ts';
import { movesTable, readMoves } from './host-moves.ts';
import { joinTokenOf } from './join-place.ts';
import { openOperator, type Operator } from '../operator.ts';
import { Spinner } from '../output/spinner.ts';
import { age, showTable, table } from '../output/table.ts';
import { waitMs } from '../parse/values.ts';
import { openService } from '../service.ts';
import { type Context, print, printJson, remark, show } from '../terminal.ts';

export interface DrainOptions {
  force?: boolean;
  move?: boolean;
  wait?: boolean;
  waitTimeout?: string;
}

export interface EvictOptions {
  all?: boolean;
  host?: string;
}

export const WAIT_MS = 30 * 60_000;
/** A host may hold thousands of sandboxes. */
export const CALL_MS = 60_000;
const FORGET_MS = 10 * 60_000;

export async function listHosts(context: Context): Promise<number> {
  const operator = openOperator(context);
  const all = await readHosts(operator.api);
  return showTable(
    context,
    all,
    ['ID', 'NAME', 'REGION', 'STATUS', 'SEEN', 'CPU', 'MEM', 'DISK', 'SANDBOXES', 'SNAPSHOTS', 'CLASSES'],
    row,
  );
}

function row(host: HostRecord): string[] {
  const { used, allocatable } = host;
  const status = host.status === 'online' && !host.ready ? 'not ready' : host.status;
  return [
    host.id,
    host.name ?? '-',
    host.region,
    host.draining ? `${status}, ${busy(host) > 0 ? 'draining' : 'drained'}` : status,
    age(host.last_seen_at),
    `${used.cpu}/${allocatable.cpu}`,
    `${used.mem_mib}/${allocatable.mem_mib} MiB`,
    `${used.disk_mib}/${allocatable.disk_mib} MiB`,
    counts(host),
    String(host.snapshots),
    classSlugs(host),
  ];
}

export function counts({ sandboxes, uncommitted_volumes: volumes }: HostRecord): string {
  const parts = Object.entries(sandboxes).map(([status, count]) => `${count} ${status}`);
  if (volumes > 0) parts.push(`${volumes} uncommitted volume${volumes === 1 ? '' : 's'}`);
  return parts.join(', ') || '-';
}

/** Its sandboxes that run, and its volumes with changes that only it has. */
export function busy({ sandboxes, uncommitted_volumes: volumes }: HostRecord): number {
  return SANDBOX_STATUS_GROUPS.busy.reduce((sum, status) => sum + (sandboxes[status] ?? 0), volumes);
}

/** Prints what becomes of each sandbox; with `wait` returns when the host may be switched off, and what was moved for that runs again. */
export async function drain(context: Context, text: string, options: DrainOptions): Promise<number> {
  const deadlineMs = waitMs(options, WAIT_MS);
  const operator = openOperator(context);
  const { id } = await findHost(operator.api, text);
  const answer = await operator.api.drainHost(
    {
      params: { id },
      body: { ...(options.force && { force: true }), ...(options.move && { move: true }) },
    },
    { timeoutMs: CALL_MS },
  );
  const { moved, remaining } = answer;
  if (!context.options.json) {
    const rows = [
      ...moved.paused.map((vm) => [vm, 'pausing']),
      ...moved.stopped.map((vm) => [vm, 'stopping']),
      ...moved.deleted.map((vm) => [vm, 'deleting']),
      ...remaining.map(({ vm_id, status, persistent }) => [
        vm_id,
        `stays ${status}${persistent ? '' : ', not persistent'}`,
      ]),
    ];
    if (rows.length > 0) print(context, table(['SANDBOX', 'NOW'], rows));
    if (remaining.some(({ persistent }) => !persistent) && !options.force)
      remark(context, 'ephemeral sandboxes run until they end; --force deletes them');
  }
  const { host, moves } = options.wait
    ? await waitUntilDrained(context, operator, id, deadlineMs)
    : { host: answer.host, moves: [] };
  if (context.options.json) {
    printJson(context, { ...answer, host, ...(host.move && { moves }) });
    return EXIT.ok;
  }
  if (moves.length > 0) print(context, movesTable(moves));
  if (host.move && isEmpty(host)) remark(context, `no persistent sandbox is on host ${id} any more`);
  else if (busy(host) === 0) remark(context, `nothing runs on host ${id} any more`);
  return EXIT.ok;
}

async function waitUntilDrained(
  context: Context,
  operator: Operator,
  id: string,
  deadlineMs: number,
): Promise<{ host: HostRecord; moves: HostMove[] }> {
  using spinner = new Spinner(context, `draining ${id}`);
  return await poll(context.signal, deadlineMs, {
    async read() {
      const host = (await readHosts(operator.api)).find((one) => one.id === id);
      if (host === undefined) throw new CliError(`host ${id} is gone`, { exitCode: EXIT.notFound });
      // Another operator may have ended the drain, and then this would never end.
      if (!host.draining) throw new CliError(`host ${id} is not draining any more`);
      spinner.text = `draining ${id}: ${counts(host)}`;
      return { host, moves: host.move ? await readMoves(operator, id) : [] };
    },
    result: (found) => (isEmpty(found.host) && found.moves.every(isOver) ? found : undefined),
    describe({ host, moves }) {
      const later = host.move ? '; rlp host show says what moves wait for' : '';
      if (!isEmpty(host)) return `host ${id} is still in use (${counts(host)}${later})`;
      return `nothing is on host ${id} any more, but ${moves.filter((move) => !isOver(move)).length} of its sandboxes do not run again yet${later}`;
    },
    work: 'the drain',
    intervalMs: 1_000,
  });
}

/** Those that have not left the host are counted there. */
const isOver = ({ status }: HostMove): boolean => status !== 'resuming';

/** Nothing runs there, and after a drain with moves no sandbox is left that could run again. */
function isEmpty(host: HostRecord): boolean {
  const { stopped = 0, paused = 0 } = host.sandboxes;
  return busy(host) === 0 && (!host.move || stopped + paused + host.moving === 0);
}

export async function undrain(context: Context, text: string): Promise<number> {
  const operator = openOperator(context);
  const { host } = await operator.api.undrainHost({
    params: { id: (await findHost(operator.api, text)).id },
  });
  return show(context, { host }, () => host.id);
}

/** Prints the token alone, for a shell. */
export async function permitJoin(context: Context, text: string): Promise<number> {
  const operator = openOperator(context);
  const answer = await operator.api.permitHostJoin({
    params: { id: (await findHost(operator.api, text)).id },
  });
  const token = await joinTokenOf(context, answer.token);
  if (context.options.json) printJson(context, { ...answer, token });
  else print(context, token);
  remark(context, `joins host ${answer.host_id} once, until ${answer.expires_at}`);
  return EXIT.ok;
}

/**
 * Forgets a lost host. A complete id is sent unchanged: it need not be listed any more, so that an
 * interrupted call can be finished.
 */
export async function forget(context: Context, text: string, options: { yes?: boolean }): Promise<number> {
  const operator = openOperator(context);
  const host = isUuid(text) ? undefined : await findHost(operator.api, text);
  const id = host?.id ?? text.toLowerCase();
  if (!options.yes) {
    const found = host ?? (await findHost(operator.api, id));
    throw usageError(
      `what host ${id} holds would be lost for good (sandboxes: ${counts(found)}; snapshots: ${found.snapshots}): say --yes`,
    );
  }
  const answer = await operator.api.forgetHost({ params: { id } }, { timeoutMs: FORGET_MS });
  if (context.options.json) printJson(context, answer);
  else {
    print(context, answer.host_id);
    const { sandboxes, snapshots, builds } = answer;
    remark(context, `released sandboxes: ${sandboxes}, snapshots: ${snapshots}, builds: ${builds}`);
  }
  return EXIT.ok;
}

/** Takes spot sandboxes off their hosts: one, or all of them. */
export async function evict(
  context: Context,
  vm: string | undefined,
  options: EvictOptions,
): Promise<number> {
  if ((vm === undefined) === (options.all !== true))
    throw usageError('name one sandbox to evict, or use --all for every spot sandbox');
  if (vm !== undefined && options.host !== undefined) throw usageError('--host goes with --all');
  const operator = openOperator(context);
  const outcome =
    vm === undefined ? await evictAll(operator, options.host) : await evictOne(context, operator, vm);
  if (context.options.json) printJson(context, outcome);
  else {
    for (const { vm_id } of outcome.evicted) print(context, vm_id);
    for (const { vm_id, reason } of outcome.remaining)
      context.terminal.stderr.write(`rlp: sandbox ${vm_id} stays: ${reason}\n`);
    if (outcome.evicted.length + outcome.remaining.length === 0) remark(context, 'there is no spot sandbox');
  }
  return outcome.remaining.length > 0 ? EXIT.failed : EXIT.ok;
}

async function evictAll(operator: Operator, host: string | undefined): Promise<HostEvictResponse> {
  const hosts = host === undefined ? await readHosts(operator.api) : [await findHost(operator.api, host)];
  const sum: HostEvictResponse = { evicted: [], remaining: [] };
  for (const { id } of hosts) {
    const { evicted, remaining } = await operator.api.evictFromHost(
      { params: { id }, body: {} },
      { timeoutMs: CALL_MS },
    );
    sum.evicted.push(...evicted);
    sum.remaining.push(...remaining);
  }
  return sum;
}

/** An id may be of any project; a name is looked up in the project of this machine's key. */
async function evictOne(context: Context, { api }: Operator, vm: string): Promise<HostEvictResponse> {
  const id = parseSandboxId(vm) === null ? (await findSandbox(openService(context), vm)).id : vm;
  try {
    return await api.evictSandbox({ params: { id } }, { timeoutMs: CALL_MS });
  } catch (error) {
    if (!hasStatus(error, 404, 'sandbox_not_found')) throw error;
    throw new CliError(`no host holds a sandbox ${id}`, { exitCode: EXIT.notFound, status: 404 });
  }
}
