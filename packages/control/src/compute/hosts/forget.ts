/**
 * Forgets a host that will not return. First its row is marked, so that nothing is placed there and it can no longer
 * connect; then everything on it is released, one batch a transaction. The periodic task finishes what an interrupted
 * call has left, and so does a repeated call.
 */
import type { BuildQueue } from '../../storage/images/build-queue.ts';
import type { Database } from '@releap/database';
import type { Lifecycle } from '../sandboxes/lifecycle.ts';
import type { Logger } from 'pino';
import type { RunnerCredentials } from '../../platform/credentials/runner-credentials.ts';
import type { Snapshots } from '../snapshots/snapshots.ts';
import { conflict, type HostForgetResponse } from '@releap/contract';
import { queryAll, queryOne, statement } from '@releap/database';
import { TAKE_BACK } from '../../storage/images/build-statements.ts';
import { markForgotten } from '../../fleet/runners/operator-marks.ts';
import { lockHosts } from '../scheduler/hosts.ts';
import { allocate } from '../scheduler/allocate.ts';
import { hostNotFound } from './queries.ts';

export type ForgetContext = {
  builds: BuildQueue;
  database: Database;
  lifecycle: Lifecycle;
  limits: { runnerLostAfterMs: number };
  log: Logger;
  runnerCredentials: RunnerCredentials;
  snapshots: Snapshots;
};
type Released = Pick<HostForgetResponse, 'sandboxes' | 'snapshots' | 'builds'>;

const STATE = statement<{ status: string; last_seen_at: Date; forgotten_at: Date | null }>(
  'host-forget-state',
  'select status, last_seen_at, forgotten_at from runners where id = $1',
);
const BATCH = 200;
/** Not those whose content is in the store already: their moves save them, or end. $1 host, $2 rows */
const SANDBOXES = statement<{ id: string }>(
  'host-forgotten-sandboxes',
  `select id from sandboxes s where held and runner_id = $1
      and not exists (select 1 from artifacts a where a.id = s.move_id and a.stored_at is not null) limit $2`,
);
const STORED = `s.status = 'ready' and exists (select 1 from artifacts a where a.id = s.id and a.stored_at is not null)`;
const SNAPSHOTS = statement<{ id: string }>(
  'host-forgotten-snapshots',
  `select id from snapshots s where held and runner_id = $1 and not (${STORED}) limit $2`,
);
const STORED_SNAPSHOTS = statement<{ id: string }>(
  'host-forgotten-stored-snapshots',
  `select id from snapshots s where held and runner_id = $1 and ${STORED} limit $2`,
);
const UNFINISHED = statement<{ id: string }>(
  'hosts-forgotten-unfinished',
  `select r.id from runners r where r.forgotten_at is not null
      and (exists (select 1 from sandboxes s where s.held and s.runner_id = r.id)
        or exists (select 1 from snapshots s where s.held and s.runner_id = r.id))`,
);

/** @throws 404 for a host that was never seen; 409 for one that is not lost */
export async function forgetHost(context: ForgetContext, id: string): Promise<HostForgetResponse> {
  const { database, limits, log } = context;
  const marked = await allocate(database, async (client) => {
    const forgotten = await markForgotten(client, id);
    // Waits for placements in progress, so that the release sees their sandboxes.
    await lockHosts(client, [id]);
    return forgotten;
  });
  const state = await queryOne(database.pool, STATE, [id]);
  if (state === undefined) throw hostNotFound(id);
  const at = marked ?? state.forgotten_at;
  if (at === null)
    throw conflict(
      `host ${id} is ${state.status}, last heard from at ${state.last_seen_at.toISOString()}: only a lost one, not heard ` +
        `from for ${Math.round(limits.runnerLostAfterMs / 1000)} s, can be forgotten`,
      'host_not_lost',
    );
  const released = await release(context, id);
  log.warn({ runner: id, ...released }, 'a host was forgotten');
  return { host_id: id, forgotten_at: at.toISOString(), ...released };
}

/** Finishes interrupted calls. */
export async function releaseForgotten(context: ForgetContext): Promise<void> {
  for (const { id } of await queryAll(context.database.pool, UNFINISHED)) await release(context, id);
}

async function release(context: ForgetContext, id: string): Promise<Released> {
  const { builds, database, lifecycle, runnerCredentials, snapshots } = context;
  await runnerCredentials.revoke(id);
  const error = `its host ${id} was forgotten by the operator`;
  const input = (row: { id: string }): { id: string; runner_id: string; error: string } => ({
    id: row.id,
    runner_id: id,
    error,
  });
  const read = (rows: typeof SANDBOXES) => async () =>
    (await queryAll(database.pool, rows, [id, BATCH])).map(input);
  // These stay: other hosts get them from the store.
  await inBatches(read(STORED_SNAPSHOTS), (rows) =>
    snapshots.apply(
      'host-forgotten-stored',
      rows.map(({ id: snapshot, runner_id }) => ({ id: snapshot, runner_id })),
    ),
  );
  const released = {
    sandboxes: await inBatches(read(SANDBOXES), (rows) => lifecycle.apply('host-forgotten', rows)),
    snapshots: await inBatches(read(SNAPSHOTS), (rows) => snapshots.apply('host-forgotten', rows)),
    builds: (await queryAll(database.pool, TAKE_BACK, [id])).length,
  };
  builds.kick();
  return released;
}

/** One transaction a batch. @returns the number of moved rows */
async function inBatches<Input>(
  read: () => Promise<Input[]>,
  apply: (rows: Input[]) => Promise<readonly unknown[]>,
): Promise<number> {
  for (let sum = 0; ; ) {
    const rows = await read();
    const moved = rows.length === 0 ? 0 : (await apply(rows)).length;
    sum += moved;
    if (moved === 0) return sum;
  }
}
