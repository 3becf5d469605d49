/** The invocation log of functions, the series and the report over it, compared with a plain model of the same rows. */
import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import {
  formatAmount,
  INVOCATIONS_PATH,
  newUuid,
  type FunctionReport,
  type FunctionSeries,
  type InvocationLog,
  type ServedInvocation,
} from '@releap/contract';
import { quiet } from '@releap/testing/postgres';
import { startWorld, until, type Caller } from '@releap/testing/world';
import { FUNCTION_SCALE } from '../src/tenancy/billing/function-charges.ts';
import { DEFAULT_PRICES } from '../src/tenancy/billing/prices.ts';
import { dropInvocations } from '../src/functions/invocations/log-module.ts';
import { chargeRunning } from '../src/functions/invocations/running.ts';
import { recordFinished, type FinishedInvocation } from '../src/functions/invocations/store.ts';
import { functionCost } from './support/billing.ts';
import { finished, newFunction, newVersion, type FunctionRow } from './support/functions.ts';

const HOUR_MS = 3_600_000;
const DAY_MS = 24 * HOUR_MS;
const at = (ms: number): string => new Date(ms).toISOString();
/** A whole hour, three hours ago. */
const hour = Math.floor(Date.now() / HOUR_MS) * HOUR_MS - 3 * HOUR_MS;

/** All rows of both functions. */
const rows: FinishedInvocation[] = [];

const world = await startWorld();
const { database } = world;
await database.pool.query(`insert into regions (id, name) values ('here', 'here') on conflict do nothing`);
const project = await database.pool.query<{ id: string }>(
  'select id from projects order by created_at limit 1',
);
const projectId = project.rows[0]?.id ?? '';
const resize = await newFunction(database, projectId, { name: 'resize', vcpus: 2, memMib: 1024 });
const other = await newFunction(database, projectId, { name: 'other' });
const idle = await newFunction(database, projectId, { name: 'idle' });
const versionTwo = await newVersion(database, resize, { version: 2, vcpus: 2, memMib: 1024 });
const outcomes = ['succeeded', 'succeeded', 'failed', 'timeout', 'shed'] as const;
for (let index = 0; index < 57; index += 1) {
  const status = outcomes[index % outcomes.length] ?? 'failed';
  const second = index % 3 === 0;
  const queuedAt = new Date(hour + (index % 7) * (HOUR_MS / 4) + index * 1_000);
  rows.push(
    finished(resize, {
      queuedAt,
      status,
      version: second ? 2 : 1,
      versionId: second ? versionTwo : resize.versionId,
      durationMs: ((index * 7919) % 1000) + index / 1000,
      cold: index % 4 === 0,
      finishedAt: new Date(queuedAt.getTime() + 5_000),
      error: status === 'succeeded' ? null : `${status} ${index}`,
      ...(status === 'shed'
        ? { durationMs: null, cold: null, startedAt: null, version: null, versionId: null }
        : {}),
    }),
  );
}
rows.push(finished(other, { queuedAt: new Date(hour + 1), durationMs: 12.5, cold: true }));
rows.push(
  finished(other, { queuedAt: new Date(hour - DAY_MS), durationMs: 1, status: 'shed', versionId: null }),
);
await recordFinished(database.pool, DEFAULT_PRICES, rows);
// One that has not ended. No worker leases it meanwhile, as it would one that waits.
await database.pool.query(
  `insert into invocations (id, queued_at, project_id, function_id, source, status, lease_until)
   values ($1, $2, $3, $4, 'spawn', 'running', now() + interval '1 day')`,
  [newUuid(), new Date(hour + 2 * HOUR_MS), projectId, other.id],
);

async function get<T>(path: string, call: Caller = world.call): Promise<T> {
  const answer = await call('GET', path);
  assert.equal(answer.status, 200, answer.text);
  return answer.body as T;
}
const log = (query = '', name = 'resize') => get<InvocationLog>(`/fns/${name}/invocations${query}`);
const newest = (of: FunctionRow): FinishedInvocation[] =>
  rows
    .filter((row) => row.functionId === of.id)
    .toSorted((a, b) => b.queuedAt.getTime() - a.queuedAt.getTime() || (a.id < b.id ? 1 : -1));
const shown = (row: FinishedInvocation) => ({
  id: row.id,
  version: row.version,
  status: row.status,
  source: row.source,
  queued_at: row.queuedAt.toISOString(),
  finished_at: row.finishedAt.toISOString(),
  duration_ms: row.durationMs,
  cold: row.cold,
  error: row.error,
});

describe('GET /fns/:name/invocations', () => {
  it('"newest first", with every field of the record', async () => {
    assert.deepEqual(await log(), { invocations: newest(resize).map(shown), limit: 100, offset: 0 });
    const [running] = (await log('?status=running', 'other')).invocations;
    assert.deepEqual(
      [running?.finished_at, running?.duration_ms, running?.cold, running?.version],
      [null, null, null, null],
    );
    assert.deepEqual((await log('', 'idle')).invocations, []);
  });

  it('filters by status and version, and pages with "limit (default 100, clamped [1,1000])" and offset', async () => {
    const all = newest(resize);
    for (const status of ['succeeded', 'failed', 'timeout', 'shed', 'running']) {
      const expected = all.filter((row) => row.status === status && row.version === 2);
      assert.deepEqual((await log(`?status=${status}&version=2`)).invocations, expected.map(shown), status);
    }
    assert.deepEqual((await log('?source=spawn')).invocations, []);
    assert.deepEqual((await log('?source=spawn', 'other')).invocations.length, 1);
    const [latest, middle] = [all[0], all[2]];
    assert.ok(latest !== undefined && middle !== undefined);
    const query = `?from=${middle.queuedAt.toISOString()}&to=${latest.queuedAt.toISOString()}`;
    assert.deepEqual(
      (await log(query)).invocations,
      all.filter((row) => row.queuedAt >= middle.queuedAt && row.queuedAt < latest.queuedAt).map(shown),
    );
    for (const wrong of ['?source=cron', '?from=yesterday', '?to=2026-02-30T00:00:00Z'])
      assert.equal((await world.call('GET', `/fns/resize/invocations${wrong}`)).status, 400, wrong);
    assert.deepEqual(await log('?limit=5&offset=3'), {
      invocations: all.slice(3, 8).map(shown),
      limit: 5,
      offset: 3,
    });
    assert.equal((await log('?limit=0')).limit, 1);
    assert.equal((await log('?limit=5000')).limit, 1000);
    assert.deepEqual((await log('?offset=1000')).invocations, []);
    for (const bad of [
      'status=done',
      'version=x',
      'version=99999999999',
      'limit=x',
      'offset=-1',
      'offset=1e3',
    ])
      assert.equal((await world.call('GET', `/fns/resize/invocations?${bad}`)).status, 400, bad);
  });
});

describe('GET /fns/:name/usage/series', () => {
  const series = (query: string, name = 'resize') =>
    get<FunctionSeries>(`/fns/${name}/usage/series?${query}`);
  const model = (of: FunctionRow, from: number, to: number, width: number) => {
    const buckets = Map.groupBy(
      rows.filter(({ functionId, queuedAt }) => functionId === of.id && +queuedAt >= from && +queuedAt < to),
      ({ queuedAt }) => Math.floor(+queuedAt / width) * width,
    );
    return [...buckets]
      .toSorted(([a], [b]) => a - b)
      .map(([bucket, given]) => {
        const times = given.flatMap(({ durationMs }) => (durationMs === null ? [] : [durationMs]));
        const count = (test: (row: FinishedInvocation) => boolean): number => given.filter(test).length;
        return {
          bucket: at(bucket),
          total: given.length,
          succeeded: count(({ status }) => status === 'succeeded'),
          errors: count(({ status }) => status === 'failed' || status === 'timeout'),
          shed: count(({ status }) => status === 'shed'),
          cold: count(({ cold }) => cold === true),
          warm: count(({ cold }) => cold === false),
          avg_ms: times.reduce((sum, ms) => sum + ms, 0) / times.length,
        };
      });
  };
  const close = (found: FunctionSeries['points'], expected: ReturnType<typeof model>): void => {
    const parts = (points: FunctionSeries['points']) => points.map((point) => ({ ...point, avg_ms: null }));
    assert.deepEqual(parts(found), parts(expected));
    for (const [index, point] of found.entries())
      assert.ok(Math.abs((point.avg_ms ?? 0) - (expected[index]?.avg_ms ?? 0)) < 1e-6, point.bucket);
  };

  it('counts by hour, from inclusive and to exclusive, and leaves empty buckets out', async () => {
    // Second hours are cut where an invocation was received.
    const cut = rows[2]?.queuedAt.getTime() ?? 0;
    for (const [from, to] of [
      [hour - DAY_MS, hour + DAY_MS],
      [hour, hour + HOUR_MS],
      [cut, cut + 1],
      [cut + 1, hour + HOUR_MS],
      [hour - 2 * HOUR_MS, hour],
    ] as const) {
      const answer = await series(`from=${at(from)}&to=${at(to)}`);
      assert.deepEqual([answer.resolution, answer.from, answer.to], ['h', at(from), at(to)]);
      close(answer.points, model(resize, from, to, HOUR_MS));
    }
    assert.deepEqual((await series('resolution=h', 'idle')).points, []);
  });

  it('counts by day, and those that have not ended only in the total', async () => {
    const { points, from, to } = await series('resolution=d', 'other');
    assert.equal(Date.parse(to) - Date.parse(from), 30 * DAY_MS);
    const [first] = points;
    assert.deepEqual([first?.total, first?.shed, first?.cold, first?.avg_ms], [1, 1, 0, 1]);
    assert.equal(
      points.reduce((sum, point) => sum + point.total, 0),
      3,
    );
    const hours = await series('', 'resize');
    assert.equal(Date.parse(hours.to) - Date.parse(hours.from), DAY_MS, 'the default of hours');
  });
});

describe('GET /fns/usage/report', () => {
  const report = (query = '', call?: Caller) => get<FunctionReport>(`/fns/usage/report${query}`, call);
  /** As PostgreSQL's percentile_cont and everybody's spreadsheet. */
  const percentile = (sorted: number[], share: number): number => {
    const place = share * (sorted.length - 1);
    const below = sorted[Math.floor(place)] ?? 0;
    return below + ((sorted[Math.ceil(place)] ?? 0) - below) * (place % 1);
  };

  it('has exact counts, percentiles and cost', async () => {
    const { from, to, billed_credits: billed, functions } = await report();
    assert.equal(Date.parse(to) - Date.parse(from), DAY_MS);
    const given = newest(resize);
    const times = given
      .flatMap(({ durationMs }) => (durationMs === null ? [] : [durationMs]))
      .toSorted((a, b) => a - b);
    const sum = times.reduce((a, b) => a + b, 0);
    const count = (test: (row: FinishedInvocation) => boolean): number => given.filter(test).length;
    assert.deepEqual(
      functions.map(({ name }) => name),
      ['other', 'resize'],
    );
    const item = functions[1];
    assert.ok(item);
    const cold = count((row) => row.cold === true);
    const warm = count((row) => row.cold === false);
    const { avg_ms: avg, p50_ms: p50, p95_ms: p95, p99_ms: p99, sum_ms: total, ...counts } = item;
    assert.deepEqual(counts, {
      name: 'resize',
      total: given.length,
      succeeded: count(({ status }) => status === 'succeeded'),
      failed: count(({ status }) => status === 'failed'),
      timeout: count(({ status }) => status === 'timeout'),
      shed: count(({ status }) => status === 'shed'),
      cold,
      warm,
      cold_ratio: cold / (cold + warm),
    });
    const expected = [
      sum / times.length,
      percentile(times, 0.5),
      percentile(times, 0.95),
      percentile(times, 0.99),
      sum,
    ];
    for (const [index, value] of [avg, p50, p95, p99, total].entries())
      assert.ok(
        Math.abs((value ?? 0) - (expected[index] ?? 0)) < 1e-6,
        `${index}: ${value} of ${expected[index]}`,
      );
    const micros = times.reduce((all, ms) => all + BigInt(Math.round(ms * 1000)), 0n);
    const cost = functionCost(resize, micros, DEFAULT_PRICES) + functionCost(other, 12_500n, DEFAULT_PRICES);
    assert.equal(billed, formatAmount(cost / FUNCTION_SCALE));
  });

  it('filters by function and range, and shows nothing of what was not called', async () => {
    const one = await report('?fn=other');
    assert.deepEqual(
      one.functions.map(({ name, total, p99_ms: p99, cold_ratio: ratio }) => [name, total, p99, ratio]),
      [['other', 2, 12.5, 1]],
    );
    assert.equal(
      one.billed_credits,
      formatAmount(functionCost(other, 12_500n, DEFAULT_PRICES) / FUNCTION_SCALE),
    );
    for (const query of ['?fn=idle', '?fn=unknown', `?to=${at(hour - 10 * DAY_MS)}`]) {
      const { billed_credits: billed, functions } = await report(query);
      assert.deepEqual([billed, functions], ['0', []], query);
    }
  });
});

describe('the numbers of functions', () => {
  it('are of the own project: "404: unknown function or another project\'s"', async () => {
    const stranger = await world.stranger();
    for (const name of ['resize', 'nonsense', '%00', 'Aa'])
      for (const path of ['invocations', 'usage/series']) {
        const call = name === 'resize' ? stranger : world.call;
        assert.equal((await call('GET', `/fns/${name}/${path}`)).status, 404, `${name}/${path}`);
      }
    const theirs = await get<FunctionReport>('/fns/usage/report', stranger);
    assert.deepEqual([theirs.billed_credits, theirs.functions], ['0', []]);
    assert.deepEqual((await get<FunctionReport>('/fns/usage/report?fn=resize', stranger)).functions, []);
  });

  it('400: times that are none, and ranges that are empty or too long', async () => {
    for (const path of ['/fns/resize/usage/series', '/fns/usage/report'])
      for (const bad of [
        'from=yesterday',
        'to=2026-02-30T00:00:00Z',
        `from=${at(hour)}&to=${at(hour)}`,
        `from=${at(hour - 421 * DAY_MS)}`,
      ])
        assert.equal((await world.call('GET', `${path}?${bad}`)).status, 400, `${path}?${bad}`);
    assert.equal((await world.call('GET', '/fns/resize/usage/series?resolution=m')).status, 400);
  });

  it('go with their partition after the retention, with the bodies of what never ended', async () => {
    const { database } = world;
    const names = async (): Promise<string[]> =>
      (
        await database.pool.query<{ name: string }>(
          `select inhrelid::regclass::text as name from pg_inherits where inhparent = 'invocations'::regclass order by 1`,
        )
      ).rows.map(({ name }) => name);
    const day = Math.floor(Date.now() / DAY_MS) * DAY_MS - 40 * DAY_MS;
    await database.pool.query(`select make_usage_partition('invocations', $1::date, $1::date + 1)`, [
      at(day).slice(0, 10),
    ]);
    const old = `invocations_${at(day).slice(0, 10).replaceAll('-', '_')}`;
    const ids = [newUuid(), newUuid()];
    // The second one is of a day that has no partition.
    for (const [index, id] of ids.entries()) {
      await database.pool.query(
        `insert into invocations (id, queued_at, project_id, function_id, source, status) values ($1, $2, $3, $4, 'spawn', 'pending')`,
        [id, new Date(day - index * DAY_MS), idle.projectId, idle.id],
      );
      await database.pool.query(`insert into invocation_payloads values ($1, 'text/plain', 'x')`, [id]);
    }
    await database.pool.query(
      'insert into invocation_result_bytes values ($1, $2::date, 5), ($1, now()::date, 7)',
      [idle.projectId, at(day).slice(0, 10)],
    );
    const kept = (await names()).filter((name) => name !== old);
    assert.equal((await log('', 'idle')).invocations.length, 2);
    await dropInvocations(database, 41, quiet);
    assert.equal((await log('', 'idle')).invocations.length, 1, 'the other one is still of use');
    await world.control.runTask('invocation-partitions');
    assert.deepEqual(await names(), kept);
    assert.equal((await log('', 'idle')).invocations.length, 0);
    const bytes = await database.pool.query(
      'select bytes::integer from invocation_result_bytes where project_id = $1',
      [idle.projectId],
    );
    assert.deepEqual(bytes.rows, [{ bytes: 7 }]);
    const left = await database.pool.query(
      'select 1 from invocation_payloads where invocation_id = any($1)',
      [ids],
    );
    assert.equal(left.rowCount, 0);
    assert.equal((await log()).invocations.length, newest(resize).length);
  });

  it('of clients that waited are recorded once, however often a gateway reports them', async () => {
    const called = await newFunction(world.database, other.projectId);
    const now = new Date().toISOString();
    const report = (values: Partial<ServedInvocation> = {}): ServedInvocation => ({
      id: newUuid(),
      queued_at: now,
      function_id: called.id,
      version_id: called.versionId,
      version: 1,
      source: 'public',
      status: 'succeeded',
      started_at: now,
      finished_at: now,
      duration_ms: 12.5,
      cold: true,
      error: null,
      ...values,
    });
    const shed = report({ status: 'shed', started_at: null, duration_ms: null, cold: null, error: 'full' });
    const invocations = [report(), shed, report({ function_id: newUuid() })];
    for (let time = 0; time < 2; time++)
      assert.equal((await world.gateway('POST', INVOCATIONS_PATH, { invocations })).status, 204);
    const answer = await world.call('GET', `/fns/${called.name}/invocations`);
    const body = answer.body as unknown as InvocationLog;
    assert.deepEqual(
      new Map(
        body.invocations.map(({ id, status, duration_ms: ms, cold, error }) => [
          id,
          [status, ms, cold, error],
        ]),
      ),
      new Map([
        [invocations[0]?.id, ['succeeded', 12.5, true, null]],
        [shed.id, ['shed', null, null, 'full']],
      ]),
    );
    const bad = { invocations: [report({ duration_ms: -1 })] };
    assert.equal((await world.gateway('POST', INVOCATIONS_PATH, bad)).status, 400);
    for (const caller of [world.operator, world.call])
      assert.notEqual((await caller('POST', INVOCATIONS_PATH, { invocations })).status, 204);
  });

  it('go with their project', async () => {
    const { database } = world;
    const projectId = newUuid();
    await database.pool.query('insert into projects (id, org_id, name) values ($1, $2, $3)', [
      projectId,
      world.orgId,
      'gone',
    ]);
    const gone = await newFunction(database, projectId);
    await recordFinished(database.pool, DEFAULT_PRICES, [finished(gone)]);
    await database.pool.query('insert into invocation_result_bytes values ($1, now()::date, 5)', [projectId]);
    // One that runs, and ends after the deletion.
    const late = finished(gone, { durationMs: 70_000, startedAt: new Date() });
    await chargeRunning(database.pool, DEFAULT_PRICES, [
      {
        id: late.id,
        queuedAt: late.queuedAt,
        functionId: gone.id,
        versionId: gone.versionId,
        version: 1,
        source: 'invoke',
        attempt: null,
        startedAt: late.queuedAt,
        elapsedMs: 30_000,
        cold: false,
      },
    ]);
    const count = async (table: string): Promise<number | null> =>
      (await database.pool.query(`select 1 from ${table} where project_id = $1`, [projectId])).rowCount;
    assert.deepEqual([await count('invocations'), await count('function_meters')], [2, 1]);
    await database.pool.query(
      `update projects set deleted_at = now() - interval '1 hour', teardown_after = now() where id = $1`,
      [projectId],
    );
    /** Without the pause between the passes of a teardown. */
    const tornDown = (left: () => Promise<boolean>) =>
      until(async () => {
        await database.pool.query(
          'update projects set teardown_after = now() where id = $1 and teardown_after is not null',
          [projectId],
        );
        return await left();
      });
    await tornDown(async () => (await count('invocations')) === 1);
    await recordFinished(database.pool, DEFAULT_PRICES, [late]);
    for (const table of ['invocations', 'invocation_result_bytes', 'function_meters', 'functions'])
      await tornDown(async () => (await count(table)) === 0);
    const ledger = await database.pool.query<{ amount: string; region: string | null; note: string }>(
      'select amount, region, note from credit_usage where function_id = $1',
      [gone.id],
    );
    assert.equal(
      ledger.rows.reduce((sum, { amount }) => sum - BigInt(amount), 0n),
      functionCost(gone, 70_020_000n, DEFAULT_PRICES) / FUNCTION_SCALE,
    );
    for (const { region, note } of ledger.rows) {
      assert.notEqual(region, null);
      assert.ok(note.startsWith(`function ${gone.name}: `), note);
    }
  });
});
