/** `rlp snapshot create|ls|rm`. */
import type { SnapshotRecord } from '@releap/contract';
import {
  findSandbox,
  findSnapshot,
  hasStatus,
  listSnapshots as readSnapshots,
  waitUntilReady,
} from '@releap/sdk';
import { usageError } from '../cli-error.ts';
import { EXIT } from '../exit-codes.ts';
import { Spinner } from '../output/spinner.ts';
import { age, size, table } from '../output/table.ts';
import { waitMs } from '../parse/values.ts';
import { openService } from '../service.ts';
import { type Context, print, printJson, remark } from '../terminal.ts';
import { forEachNamed } from './each.ts';

export interface SnapshotCreateOptions {
  kind?: string;
  /** False with `--no-wait`. */
  wait?: boolean;
  waitTimeout?: string;
}

const WAIT_MS = 15 * 60_000;

/** Without a kind: what a sandbox of its sort can have. */
export async function createSnapshot(
  context: Context,
  vm: string,
  name: string,
  options: SnapshotCreateOptions,
): Promise<number> {
  const { kind } = options;
  if (name === '') throw usageError('the name of the snapshot is empty');
  if (kind !== undefined && kind !== 'disk' && kind !== 'full')
    throw usageError(`--kind must be disk or full, but was ${JSON.stringify(kind)}`);
  const deadlineMs = waitMs(options, WAIT_MS);
  const service = openService(context);
  const sandbox = await findSandbox(service, vm);
  using spinner = new Spinner(context, `${name}: asking for it`);
  const created = await service.api.createSnapshot({
    params: { id: sandbox.id },
    body: { name, kind: kind ?? (sandbox.persistent ? 'full' : 'disk') },
  });
  spinner.text = `${name}: ${created.status}`;
  const record =
    options.wait === false
      ? created
      : await waitUntilReady(service, created.id, {
          deadlineMs,
          onStatus: spinner.statusOf(name),
        });
  spinner.stop();
  if (context.options.json) printJson(context, { ...created, ...record });
  else print(context, created.id);
  if (record.no_changes)
    remark(context, `nothing was written since the snapshot before: ${name} shares all of it`);
  return EXIT.ok;
}

export async function listSnapshots(context: Context, options: { quiet?: boolean }): Promise<number> {
  const service = openService(context);
  const found: SnapshotRecord[] = [];
  for await (const snapshot of readSnapshots(service)) found.push(snapshot);
  if (context.options.json) printJson(context, found);
  else if (options.quiet) for (const { id } of found) print(context, id);
  else
    print(
      context,
      table(
        ['NAME', 'KIND', 'STATUS', 'DISK', 'MEM', 'AGE', 'ID', 'ERROR'],
        found.map((one) => [
          one.name,
          one.kind,
          one.status,
          size(one.disk_bytes),
          size(one.mem_bytes),
          age(one.created_at),
          one.id,
          one.error ?? '',
        ]),
      ),
    );
  return EXIT.ok;
}

export async function removeSnapshots(
  context: Context,
  names: string[],
  options: { force?: boolean },
): Promise<number> {
  const service = openService(context);
  return await forEachNamed(context, 'snapshot', names, async (name) => {
    try {
      const { id } = await findSnapshot(service, name);
      await service.api.deleteSnapshot({ params: { id } });
      return { id, status: 'deleted', printed: id };
    } catch (error) {
      if (options.force && hasStatus(error, 404, 'snapshot_not_found')) return { status: 'absent' };
      throw error;
    }
  });
}
