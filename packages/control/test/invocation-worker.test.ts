/** "each is run at least once, recorded exactly once": workers that share a queue, and die at any point. */
import assert from 'node:assert/strict';
import { fork, type ChildProcess } from 'node:child_process';
import { once } from 'node:events';
import path from 'node:path';
import { after, before, beforeEach, describe, it } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import { newUuid } from '@releap/contract';
import { openDatabase, type Database } from '@releap/database';
import { freshDatabase } from '@releap/testing/postgres';
import { propertyRuns } from '@releap/testing/repetitions';
import { quiet, until } from '@releap/testing/world';
import * as fc from 'fast-check';
import { pino } from 'pino';
import { enqueue } from '../src/functions/invocations/enqueue.ts';
import { PayloadBudget } from '../src/functions/invocations/payload-budget.ts';
import { createSender } from '../src/functions/invocations/send.ts';
import { createWorker, ATTEMPTS_MAX, type Worker } from '../src/functions/invocations/worker.ts';
import { functionCost, newOrg, PRICES } from './support/billing.ts';
import { newFunction, type FunctionRow } from './support/functions.ts';
import { handled, refused, startScriptedGateway, type ScriptedGateway } from './support/scripted-gateway.ts';
import type { CrashPoint } from './support/worker-child.ts';

let url: string;
let database: Database;
let gateway: ScriptedGateway;
before(async () => {
  url = await freshDatabase();
  database = openDatabase({ url, log: quiet, connections: 8 });
  gateway = await startScriptedGateway();
});
after(async () => {
  await gateway[Symbol.asyncDispose]();
  await database.close();
});
beforeEach(() => {
  gateway.calls.length = 0;
  gateway.answer = (call) => handled(call);
});

const LEASE_MS = 1_200;
const CHILD = path.join(import.meta.dirname, 'support/worker-child.ts');

/** A worker in this process, with its timers. */
function startWorker(leaseMs = LEASE_MS, onBacklog?: () => void, window?: number): Worker {
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

async function startChild(crash: CrashPoint): Promise<ChildProcess> {
  const child = fork(CHILD, {
    env: {
      ...process.env,
      TEST_DATABASE_URL: url,
      TEST_GATEWAY: gateway.url,
      TEST_LEASE_MS: String(LEASE_MS),
      TEST_CRASH: crash,
    },
  });
  await once(child, 'message');
  return child;
}

const newCalled = async (
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

async function spawnMany(fn: FunctionRow, count: number, body: string | Buffer = 'x'): Promise<string[]> {
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
const rowsOf = async (ids: readonly string[]): Promise<Row[]> =>
  (
    await database.pool.query<Row>('select id, status, attempt, error from invocations where id = any($1)', [
      ids,
    ])
  ).rows;
const isDone = (ids: readonly string[]) => async (): Promise<boolean> => {
  const rows = await rowsOf(ids);
  return (
    rows.length === ids.length && rows.every(({ status }) => status !== 'pending' && status !== 'running')
  );
};

/** All have succeeded, and each was charged once: what is recorded twice is charged twice. */
async function assertEndedOnce(fn: FunctionRow, ids: readonly string[]): Promise<void> {
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

describe('a worker that is killed', () => {
  for (const [crash, when] of [
    ['leased', 'after it has leased them'],
    ['answered', 'before it records what it was answered'],
    ['recording', 'while it records'],
  ] as const) {
    it(`${when} leaves invocations that another one ends, once each`, async () => {
      const fn = await newCalled();
      const ids = await spawnMany(fn, 20);
      const child = await startChild(crash);
      if (child.exitCode === null && child.signalCode === null) await once(child, 'exit');
      assert.equal(child.signalCode, 'SIGKILL');
      await using _worker = startWorker();
      await assertEndedOnce(fn, ids);
    });
  }

  it('while handlers run leaves invocations that another one ends, once each', async () => {
    const fn = await newCalled();
    const ids = await spawnMany(fn, 20);
    // None of the child's calls is answered. On a busy machine its own leases may end, and it calls some again.
    gateway.answer = () => undefined;
    const child = await startChild('none');
    await until(() => ids.every((id) => gateway.callsOf(id).length > 0));
    child.kill('SIGKILL');
    await once(child, 'exit');
    gateway.answer = (call) => handled(call);
    await using _worker = startWorker();
    await assertEndedOnce(fn, ids);
    for (const { attempt } of await rowsOf(ids)) assert.ok(attempt > 1);
  });

  it('at any time, beside another one and a gateway that breaks connections, loses none and records none twice', async () => {
    const step = fc.record({
      spawns: fc.integer({ min: 1, max: 60 }),
      pauseMs: fc.integer({ min: 0, max: 150 }),
    });
    await fc.assert(
      fc.asyncProperty(
        fc.array(step, { minLength: 2, maxLength: 4 }),
        fc.boolean(),
        async (steps, isBroken) => {
          const fn = await newCalled();
          let calls = 0;
          gateway.answer = async (call) => {
            if (isBroken && ++calls % 17 === 0) call.response.destroy();
            else {
              await sleep(calls % 20);
              handled(call);
            }
          };
          const ids: string[] = [];
          await using _worker = startWorker();
          for (const { spawns, pauseMs } of steps) {
            const child = await startChild('none');
            ids.push(...(await spawnMany(fn, spawns)));
            await sleep(pauseMs);
            child.kill('SIGKILL');
            await once(child, 'exit');
          }
          await assertEndedOnce(fn, ids);
        },
      ),
      { numRuns: propertyRuns(20, 2) },
    );
  });
});

describe('workers that share a queue', () => {
  it('call each invocation once while none of them dies', async () => {
    const fn = await newCalled();
    gateway.answer = async (call) => {
      await sleep(Math.random() * 20);
      handled(call);
    };
    const ids = await spawnMany(fn, 400);
    // A lease that does not run out on a busy machine.
    await using _one = startWorker(60_000);
    await using _other = startWorker(60_000);
    const more = Array.from({ length: 20 }, () => spawnMany(fn, 5));
    for (const worker of [_one, _other]) worker.kick();
    ids.push(...(await Promise.all(more)).flat());
    const poll = setInterval(() => _one.kick(), 20);
    await until(isDone(ids)).finally(() => clearInterval(poll));
    await assertEndedOnce(fn, ids);
    assert.equal(gateway.calls.length, ids.length);
  });

  it('tell each other of new ones that they cannot run now', async () => {
    const fn = await newCalled();
    const held: Parameters<typeof handled>[0][] = [];
    gateway.answer = (call) => void held.push(call);
    let told = 0;
    await using worker = startWorker(60_000, () => (told += 1));
    const ids = await spawnMany(fn, 20);
    worker.kick(true);
    await until(() => held.length === 20);
    assert.equal(told, 0);
    // More than one server runs of a function.
    ids.push(...(await spawnMany(fn, 200)));
    worker.kick();
    await until(() => worker.inFlight > 20);
    assert.equal(told, 0, 'another server has stored them, and tells it');
    worker.kick(true);
    await until(() => told > 0);
    gateway.answer = (call) => handled(call);
    for (const call of held) handled(call);
    await until(isDone(ids));
  });

  it('renew what takes longer than a lease, and drop what another one owns', async () => {
    const fn = await newCalled();
    const held: Parameters<typeof handled>[0][] = [];
    gateway.answer = (call) => void held.push(call);
    const [id = ''] = await spawnMany(fn, 1);
    // Longer than a busy machine stops a process.
    await using _worker = startWorker(60_000);
    await until(() => held.length === 1);
    const leasedUntil = async (): Promise<number> => {
      const { rows } = await database.pool.query<{ lease_until: Date }>(
        'select lease_until from invocations where id = $1',
        [id],
      );
      return rows[0]?.lease_until.getTime() ?? 0;
    };
    const leased = await leasedUntil();
    await until(async () => (await leasedUntil()) > leased);
    assert.equal(held.length, 1);
    const [first] = held;
    assert.ok(first);
    const closed = once(first.response, 'close');
    // As another server does it.
    await database.pool.query('update invocations set attempt = attempt + 1 where id = $1', [id]);
    gateway.answer = (call) => handled(call);
    await closed;
    assert.equal(first.response.writableFinished, false, 'the call of the replaced attempt is cut off');
    // That server ends. Half of the patience of a test would go by until its lease does.
    await database.pool.query('update invocations set lease_until = now() where id = $1', [id]);
    await assertEndedOnce(fn, [id]);
  });
});

it('what is to be tried again is not kept by a renewal of its lease that was under way', async () => {
  const fn = await newCalled();
  const [answered, retried] = [Promise.withResolvers<void>(), Promise.withResolvers<void>()];
  gateway.answer = async (call) => {
    await answered.promise;
    refused(call, 502, 'the instance has ended');
  };
  /** Statements that renew leases, in order. */
  const renewals: Promise<unknown>[] = [];
  const run = database.pool.query.bind(database.pool) as (...of: unknown[]) => Promise<unknown>;
  const query = (...of: unknown[]): Promise<unknown> => {
    if ((of[0] as { name?: string }).name !== 'invocations-renew') return run(...of);
    // The first one comes last, if others do not wait for it.
    const isFirst = renewals.length === 0;
    const renewal = isFirst
      ? retried.promise.then(() => Promise.all(renewals.slice(1))).then(() => run(...of))
      : run(...of);
    renewals.push(renewal);
    return renewal;
  };
  await using disposables = new AsyncDisposableStack();
  const sender = createSender();
  disposables.defer(() => sender.close());
  await using worker = createWorker({
    database: { ...database, pool: { query } as unknown as Database['pool'] },
    prices: PRICES,
    send: sender.send,
    gatewayOf: () => Promise.resolve(gateway.url),
    tokenFor: () => Promise.resolve('token'),
    log: pino({}, { write: (line) => void (line.includes('is retried') && setImmediate(retried.resolve)) }),
    leaseMs: 3_600_000,
    retryMs: 10,
  });
  const [id = ''] = await spawnMany(fn, 1);
  worker.kick();
  await until(() => gateway.calls.length === 1);
  const renewed = worker.renewLeases();
  answered.resolve();
  await renewed;
  gateway.answer = (call) => handled(call);
  await until(async () => {
    await worker.sweep();
    return gateway.callsOf(id).length === 2;
  });
  await assertEndedOnce(fn, [id]);
});

it('what a worker runs is not taken for left behind by itself after it stalled for longer than a lease', async () => {
  const fn = await newCalled();
  const held: Parameters<typeof handled>[0][] = [];
  gateway.answer = (call) => void held.push(call);
  const [id = ''] = await spawnMany(fn, 1);
  await using worker = startWorker(3_600_000);
  await until(() => held.length === 1);
  await database.pool.query(
    `update invocations set lease_until = now() - interval '1 second' where id = $1`,
    [id],
  );
  await worker.sweep();
  const [row] = await rowsOf([id]);
  assert.deepEqual([row?.status, row?.attempt], ['running', 1]);
  for (const call of held) handled(call);
  await assertEndedOnce(fn, [id]);
});

it('the call of an attempt that its worker has lost and leased again is cut off', async () => {
  const fn = await newCalled();
  const held: Parameters<typeof handled>[0][] = [];
  gateway.answer = (call) => void held.push(call);
  const [id = ''] = await spawnMany(fn, 1);
  await using worker = startWorker(3_600_000);
  await until(() => held.length === 1);
  // As another server returns it to the queue.
  await database.pool.query(`update invocations set status = 'pending', lease_until = null where id = $1`, [
    id,
  ]);
  worker.kick();
  await until(() => held.length === 2 && held[0]?.response.closed === true);
  for (const call of held) handled(call);
  await assertEndedOnce(fn, [id]);
});

describe('a function', () => {
  it('does not wait behind the backlog of another', async () => {
    const [busy, other] = [await newCalled({ maxInstances: 1 }), await newCalled()];
    const held: Parameters<typeof handled>[0][] = [];
    gateway.answer = (call) => (call.name === busy.name ? void held.push(call) : handled(call));
    const backlog = await spawnMany(busy, 1000);
    await using worker = startWorker(60_000);
    await until(() => held.length > 0);
    const quick = await spawnMany(other, 10);
    worker.kick();
    await assertEndedOnce(other, quick);
    await until(() => held.length >= 16);
    assert.equal(held.length, 16, 'of one with few instances no more is sent than they need');
    gateway.answer = (call) => handled(call);
    for (const call of held) handled(call);
    await assertEndedOnce(busy, backlog);
  });

  it('of another organization is served while one floods the server with many functions', async () => {
    const { projectId } = await newOrg(database);
    const flood = await Promise.all(Array.from({ length: 8 }, () => newFunction(database, projectId)));
    const other = await newCalled();
    const held: Parameters<typeof handled>[0][] = [];
    gateway.answer = (call) => (call.name === other.name ? handled(call) : void held.push(call));
    const backlog = (await Promise.all(flood.map((fn) => spawnMany(fn, 10)))).flat();
    await using worker = startWorker(60_000, undefined, 20);
    await until(() => held.length === 10);
    const quick = await spawnMany(other, 10);
    worker.kick();
    await assertEndedOnce(other, quick);
    assert.equal(held.length, 10, 'the flood has half of the places, and its backlog waits');
    gateway.answer = (call) => handled(call);
    for (const call of held) handled(call);
    await until(isDone(backlog));
  });

  it('with large payloads gets all of them', async () => {
    const fn = await newCalled();
    const held: Parameters<typeof handled>[0][] = [];
    const body = Buffer.alloc(5 * 1024 * 1024, 'x');
    gateway.answer = (call) => void held.push(call);
    const ids: string[] = [];
    // One at a time: no request stores more.
    for (let n = 0; n < 8; n += 1) ids.push(...(await spawnMany(fn, 1, body)));
    await using _worker = startWorker(60_000);
    await until(() => held.length === ids.length);
    assert.ok(held.every((call) => call.body.equals(body)));
    for (const call of held) handled(call);
    await assertEndedOnce(fn, ids);
  });

  it('whose instances end while they serve is tried five times, then the invocation fails with the reason', async () => {
    const fn = await newCalled();
    gateway.answer = (call) => refused(call, 502, 'the instance has ended');
    const ids = await spawnMany(fn, 3);
    await using _worker = startWorker(60_000);
    await until(isDone(ids));
    for (const { status, attempt, error } of await rowsOf(ids)) {
      assert.deepEqual([status, attempt], ['failed', ATTEMPTS_MAX]);
      assert.equal(error, 'it was tried 5 times: the instance has ended');
    }
    for (const id of ids) assert.equal(gateway.callsOf(id).length, ATTEMPTS_MAX);
  });

  it('costs the time of each attempt, also of those whose connection the handler broke', async () => {
    const fn = await newCalled();
    const broken = {
      'x-rlp-duration-ms': '1000',
      'x-rlp-cold': '0',
      'x-rlp-fn-version': '1',
      'x-rlp-fn-broken': '1',
    };
    let last = 502;
    gateway.answer = (call) =>
      gateway.callsOf(call.id).length < 3
        ? refused(call, 502, 'the handler closed the connection', broken)
        : refused(call, last, 'no', last === 502 ? broken : {});
    const [failing = ''] = await spawnMany(fn, 1);
    await using _worker = startWorker(60_000);
    await until(isDone([failing]));
    last = 404;
    const [deleted = ''] = await spawnMany(fn, 1);
    await until(isDone([deleted]));
    const { rows } = await database.pool.query<{ id: string; billed: string }>(
      'select id, billed from invocations where id = any($1)',
      [[failing, deleted]],
    );
    const billed = new Map(rows.map((row) => [row.id, BigInt(row.billed)]));
    assert.equal(billed.get(failing), functionCost(fn, 5_000_000n, PRICES));
    assert.equal(billed.get(deleted), functionCost(fn, 2_000_000n, PRICES));
  });

  it('that a proxy in front of the gateway answers is tried again, and no timeout of the proxy is charged', async () => {
    const fn = await newCalled();
    gateway.answer = (call) => {
      const statuses = [504, 404, 503, 429];
      const status = statuses[gateway.callsOf(call.id).length - 1];
      if (status === undefined) handled(call, '1', { durationMs: 0 });
      else call.response.writeHead(status, { 'content-type': 'text/html' }).end('<h1>nginx</h1>');
    };
    const ids = await spawnMany(fn, 1);
    await using _worker = startWorker(60_000);
    await until(isDone(ids));
    const [row] = await rowsOf(ids);
    assert.deepEqual([row?.status, row?.attempt], ['succeeded', 5]);
  });

  it('that no gateway takes fails when it is a day old', async () => {
    const fn = await newCalled();
    gateway.answer = (call) => refused(call, 503, 'functions cannot be looked up now');
    const ids = await spawnMany(fn, 1);
    await database.pool.query(
      `update invocations set queued_at = queued_at - interval '25 hours' where id = any($1)`,
      [ids],
    );
    await using _worker = startWorker(60_000);
    await until(isDone(ids));
    const [row] = await rowsOf(ids);
    assert.equal(row?.status, 'failed');
    assert.match(row.error ?? '', /no gateway took it within a day: functions cannot be looked up now/);
  });

  it('whose handler has answered, but not with HTTP, is run once', async () => {
    const fn = await newCalled();
    gateway.answer = (call) =>
      refused(call, 502, 'the handler did not answer with HTTP', {
        'x-rlp-duration-ms': '12.5',
        'x-rlp-cold': '1',
        'x-rlp-fn-version': '1',
      });
    const ids = await spawnMany(fn, 1);
    await using _worker = startWorker(60_000);
    await until(isDone(ids));
    const [row] = await rowsOf(ids);
    assert.deepEqual(
      [row?.status, row?.attempt, row?.error],
      ['failed', 1, 'the handler did not answer with HTTP'],
    );
    const { rows } = await database.pool.query(
      'select cold, version, duration_ms >= 12.5 as measured from invocations where id = $1',
      [ids[0]],
    );
    assert.deepEqual(rows, [{ cold: true, version: 1, measured: true }]);
    assert.equal(gateway.calls.length, 1);
  });

  it('whose servers die each time is tried five times', async () => {
    const fn = await newCalled();
    const ids = await spawnMany(fn, 2);
    await database.pool.query(
      `update invocations set status = 'running', attempt = $2, lease_until = now() - interval '1 second' where id = any($1)`,
      [ids, ATTEMPTS_MAX],
    );
    await using _worker = startWorker();
    await until(isDone(ids));
    for (const { status, error } of await rowsOf(ids))
      assert.deepEqual(
        [status, error],
        ['failed', 'it was tried 5 times: the servers that ran it have ended before it had'],
      );
    assert.equal(gateway.calls.length, 0);
  });
});

it('large payloads of one function take a share of the memory, and those of all a bounded part', async () => {
  const MIB = 1024 * 1024;
  const budget = new PayloadBudget();
  const end = new AbortController();
  const held = new Map<string, (() => void)[]>();
  const take = (key: string): Promise<void> =>
    budget.take(key, 6 * MIB, end.signal).then((release) => {
      held.set(key, [...(held.get(key) ?? []), release]);
    });
  const names = Array.from({ length: 12 }, (_, n) => `f${n}`);
  const taken = Promise.allSettled(names.flatMap((key) => [take(key), take(key), take(key)]));
  const sizes = (): number[] => names.map((key) => held.get(key)?.length ?? 0);
  await sleep(0);
  assert.deepEqual(
    sizes(),
    [2, 2, 2, 2, 2, 0, 0, 0, 0, 0, 0, 0],
    '12 of 16 MiB each, and 60 of 64 MiB in total',
  );
  const [release] = held.get('f0') ?? [];
  release?.();
  release?.();
  await sleep(0);
  assert.deepEqual(sizes(), [3, 2, 2, 2, 2, 0, 0, 0, 0, 0, 0, 0], 'the one that waits longest is next, once');
  for (const one of held.get('f1') ?? []) one();
  await sleep(0);
  assert.deepEqual(sizes(), [3, 3, 2, 2, 2, 1, 0, 0, 0, 0, 0, 0]);
  end.abort(new Error('stopped'));
  const outcomes = await taken;
  assert.equal(outcomes.filter(({ status }) => status === 'rejected').length, 36 - 13);
});
