/** A queue of invocations and a gateway that the tests of the file that imports it share, and workers of both. */
import assert from 'node:assert/strict';
import { fork, type ChildProcess } from 'node:child_process';
import { once } from 'node:events';
import path from 'node:path';
import { after, beforeEach } from 'node:test';
import { newUuid } from '@releap/contract';
import { openFresh } from '@releap/testing/postgres';
import { programOf } from '@releap/testing/program';
import { quiet, until } from '@releap/testing/world';
import { enqueue } from '../../src/functions/invocations/enqueue.ts';
import { createSender } from '../../src/functions/invocations/send.ts';
import { createWorker, type Worker } from '../../src/functions/invocations/worker.ts';
import { newOrg, PRICES } from './billing.ts';
import { newFunction, type FunctionRow } from './functions.ts';
import { handled, startScriptedGateway, type GatewayCall } from './scripted-gateway.ts';
import type { CrashPoint } from './worker-child.ts';

export const database = await openFresh();
export const gateway = await startScriptedGateway();
after(() => gateway[Symbol.asyncDispose]());
beforeEach(() => {
  gateway.calls.length = 0;
  gateway.answer = (call) => handled(call);
});

const LEASE_MS = 1_200;
const CHILD = programOf(path.join(import.meta.dirname, 'worker-child.ts'));

/** A worker in this process, with its timers. */
export function startWorker(leaseMs = LEASE_MS, onBacklog?: () => void, window?: number): Worker {
  const sender = createSender();
  const worker = createWorker({
    database,
    prices: PRICES,
    send: sender.send,
    gatewayOf: () => Promise.resolve(gateway.url),
    tokenFor: () => Promise.resolve('token'),
    log: quiet,
    leaseMs,
    retryMs: 10,
    ...(onBacklog && { onBacklog }),
    ...(window !== undefined && { window }),
  });
  const timer = setInterval(() => {
    // What the database refuses now, the next turn does again.
    void worker.renewLeases().catch(() => undefined);
    void worker.sweep().catch(() => undefined);
    worker.kick();
  }, LEASE_MS / 3);
  worker.kick();
  const dispose = worker[Symbol.asyncDispose].bind(worker);
  return Object.assign(worker, {
    async [Symbol.asyncDispose]() {
      clearInterval(timer);
      await dispose();
      await sender.close();
    },
  });
}

export async function startChild(crash: CrashPoint): Promise<ChildProcess> {
  const child = fork(CHILD, {
    env: {
      ...process.env,
      TEST_DATABASE_URL: database.url,
      TEST_GATEWAY: gateway.url,
      TEST_LEASE_MS: String(LEASE_MS),
      TEST_CRASH: crash,
    },
  });
  await once(child, 'message');
  return child;
}

export const newCalled = async (
  limits: { maxInstances?: number; maxConcurrency?: number } = {},
): Promise<FunctionRow> => {
  const { projectId } = await newOrg(database);
  const fn = await newFunction(database, projectId);
  await database.pool.query(
    'update function_versions set max_instances = $2, max_concurrency = $3 where id = $1',
    [fn.versionId, limits.maxInstances ?? null, limits.maxConcurrency ?? 1],
  );
  return fn;
};

export async function spawnMany(
  fn: FunctionRow,
  count: number,
  body: string | Buffer = 'x',
): Promise<string[]> {
  const payloads = Array.from({ length: count }, () => ({
    id: newUuid(),
    contentType: 'text/plain',
    body: Buffer.from(body),
  }));
  await enqueue(database.pool, { projectId: fn.projectId, name: fn.name, source: 'map', payloads });
  return payloads.map(({ id }) => id);
}

interface Row {
  id: string;
  status: string;
  attempt: number;
  error: string | null;
}
export const rowsOf = async (ids: readonly string[]): Promise<Row[]> =>
  (
    await database.pool.query<Row>('select id, status, attempt, error from invocations where id = any($1)', [
      ids,
    ])
  ).rows;
export const isDone = (ids: readonly string[]) => async (): Promise<boolean> => {
  const rows = await rowsOf(ids);
  return (
    rows.length === ids.length && rows.every(({ status }) => status !== 'pending' && status !== 'running')
  );
};

/** All have succeeded, and each was charged once: what is recorded twice is charged twice. */
export async function assertEndedOnce(fn: FunctionRow, ids: readonly string[]): Promise<void> {
  await until(isDone(ids));
  const rows = await rowsOf(ids);
  assert.deepEqual(
    rows.filter(({ status }) => status !== 'succeeded'),
    [],
  );
  assert.equal(rows.length, ids.length);
  const charged = await database.pool.query<{ invocations: string }>(
    'select invocations from function_meters where function_id = $1',
    [fn.id],
  );
  assert.equal(Number(charged.rows[0]?.invocations), ids.length);
  const payloads = await database.pool.query(
    'select from invocation_payloads where invocation_id = any($1)',
    [ids],
  );
  assert.equal(payloads.rowCount, 0);
  for (const id of ids) assert.ok(gateway.callsOf(id).length > 0, 'each was run');
}

/** Calls that no handler has answered yet. @param isHeld the others are answered at once */
export function holdCalls(isHeld = (_call: GatewayCall): boolean => true): GatewayCall[] {
  const held: GatewayCall[] = [];
  gateway.answer = (call) => (isHeld(call) ? void held.push(call) : handled(call));
  return held;
}
