import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import {
  internalOperations,
  operations,
  operatorOperations,
  SANDBOX_STATUSES,
  type Operation,
} from '@releap/contract';
import { METRICS_TOKEN } from '@releap/testing/credentials';
import { caller, create, startWorld, until, waitFor } from '@releap/testing/world';
import { CONTROL_LIMITS, EVENTS } from '../src/index.ts';
import { SNAPSHOT_MACHINE } from '../src/compute/snapshots/transitions.ts';

interface Sample {
  name: string;
  labels: Record<string, string>;
  value: number;
}

const world = await startWorld({
  modules: [
    () => ({
      name: 'broken',
      tasks: [
        {
          name: 'always-fails',
          everyMs: 60_000,
          leased: false,
          run: () => Promise.reject(new Error('always')),
        },
      ],
    }),
  ],
});
await world.runner();

async function scrape(): Promise<Sample[]> {
  const answer = await world.operator('GET', '/metrics');
  assert.equal(answer.status, 200, answer.text);
  return answer.text
    .split('\n')
    .filter((line) => line !== '' && !line.startsWith('#'))
    .map((line) => {
      const [, name = '', labels = '', value] = /^([a-z0-9_]+)(?:\{(.*)\})? (\S+)$/.exec(line) ?? [];
      assert.notEqual(name, '', line);
      const pairs = [...labels.matchAll(/([a-z_]+)="((?:[^"\\]|\\.)*)"/g)].map((pair): [string, string] => [
        pair[1] ?? '',
        pair[2] ?? '',
      ]);
      return { name, labels: Object.fromEntries(pairs), value: Number(value) };
    });
}

const find = (samples: Sample[], name: string, labels: Record<string, string> = {}): number | undefined =>
  samples.find(
    (one) =>
      one.name === name && Object.entries(labels).every(([label, value]) => one.labels[label] === value),
  )?.value;

describe('GET /metrics', () => {
  it('is text of version 0.0.4, for the operator and the holder of the token of metrics alone', async () => {
    const answer = await world.operator('GET', '/metrics');
    assert.equal(answer.status, 200);
    assert.match(answer.headers.get('content-type') ?? '', /^text\/plain; version=0\.0\.4/);
    for (const key of ['', 'nonsense', world.call.key]) {
      const refused = await caller(() => world.internalUrl, key, '')('GET', '/metrics');
      assert.equal(refused.status, 401, refused.text);
    }
    assert.equal((await world.gateway('GET', '/metrics')).status, 401);
    const scraper = caller(() => world.internalUrl, METRICS_TOKEN, '');
    assert.match((await scraper('GET', '/metrics')).text, /^releap_runner_links 1$/m);
  });

  it('is not on the public listener, and a scrape is not an entry of the audit log', async () => {
    const { key } = world.operator;
    assert.equal((await caller(() => world.url, key, '')('GET', '/metrics')).status, 404);
    await scrape();
    const { rows } = await world.database.pool.query(
      `select 1 from operator_audit where operation in ('getMetrics', 'GET /metrics')`,
    );
    assert.equal(rows.length, 0);
  });

  it('has the requests, transitions and placement of a create, and what was refused', async () => {
    const { id } = await create(world.call, world);
    await waitFor(world.call, id, 'running');
    assert.equal((await caller(() => world.url, 'nonsense', '')('GET', `/vms/${id}`)).status, 401);
    assert.equal((await world.call('GET', '/vms/nothing-of-that-name')).status, 404);
    // An answer is counted after it has been sent.
    const get = { plane: 'workload', operation: 'GET /vms/:id' };
    await until(
      async () => (find(await scrape(), 'releap_http_requests_total', { ...get, status: '4xx' }) ?? 0) >= 2,
    );
    const samples = await scrape();
    const post = { plane: 'workload', operation: 'POST /vms' };
    assert.equal(find(samples, 'releap_http_requests_total', { ...post, status: '2xx' }), 1);
    assert.equal(find(samples, 'releap_http_request_duration_seconds_count', post), 1);
    assert.equal(find(samples, 'releap_http_requests_total', { ...get, status: '4xx' }), 2);
    assert.equal(find(samples, 'releap_transitions_total', { resource: 'sandbox', event: 'place' }), 1);
    assert.equal(find(samples, 'releap_placement_duration_seconds_count'), 1);
    assert.equal(find(samples, 'releap_runner_links'), 1);
    assert.equal(find(samples, 'releap_gateway_links'), 0);
    assert.equal(find(samples, 'releap_gateway_grants'), 0);
    for (const what of ['message_type', 'message', 'item'])
      assert.equal(find(samples, 'releap_runner_ignored_total', { what }), 0);
    assert.equal(find(samples, 'releap_create_queue_limit_sandboxes'), CONTROL_LIMITS.createQueue);
    assert.ok((find(samples, 'releap_database_pool_connections', { pool: 'main' }) ?? 0) > 0);
    assert.equal(find(samples, 'releap_billing_parked_meters'), 0);
    assert.ok((find(samples, 'releap_process_resident_memory_bytes') ?? 0) > 0);
  });

  it('reads sandboxes by status and the ledger from the database', async () => {
    // Values are cached for a while: another server has none yet.
    await using other = await world.another();
    await world.database.pool.query(
      `update sandbox_meters set metered_until = now() - interval '100 seconds', parked_until = now() + interval '1 hour'`,
    );
    const read = caller(() => other.internalUrl, world.operator.key, '');
    const { text } = await read('GET', '/metrics');
    assert.match(text, /^releap_sandboxes\{status="running"\} 1$/m);
    assert.match(text, /^releap_sandboxes\{status="paused"\} 0$/m);
    assert.match(text, /^releap_billing_parked_meters 1$/m);
    const lag = Number(/^releap_billing_ledger_lag_seconds (\S+)$/m.exec(text)?.[1]);
    assert.ok(lag >= 100, String(lag));
  });

  it('has the outcomes of periodic tasks', async () => {
    await world.control.runTask('always-fails');
    const samples = await scrape();
    const runs = (task: string, outcome: string): number =>
      find(samples, 'releap_task_runs_total', { task, outcome }) ?? 0;
    assert.ok(runs('always-fails', 'failed') >= 1);
    assert.equal(runs('always-fails', 'ok'), 0);
    assert.equal(
      find(samples, 'releap_task_last_success_timestamp_seconds', { task: 'always-fails' }),
      undefined,
    );
    assert.ok(runs('placement', 'ok') >= 1);
    assert.ok((find(samples, 'releap_task_duration_seconds_count', { task: 'placement' }) ?? 0) >= 1);
  });

  it('gets no new series from unknown paths, methods and ids, in any number', async () => {
    const series = async (): Promise<Set<string>> =>
      new Set(
        (await scrape())
          .filter(({ name }) => name.startsWith('releap_http_'))
          .map(({ name, labels }) => `${name} ${JSON.stringify(labels)}`),
      );
    const requests = async (from: number): Promise<void> => {
      for (let i = from; i < from + 20; i++) {
        await world.call('GET', `/unknown-${i}/path-${i}?query-${i}=${i}`);
        await world.call('GET', `/vms/unknown-${i}`);
        await world.call('PATCH', `/vms/unknown-${i}`);
        await world.operator('GET', `/operator/unknown-${i}`);
      }
    };
    await requests(0);
    const before = await series();
    await requests(20);
    assert.deepEqual(
      [...(await series())].filter((one) => !before.has(one)),
      [],
    );
  });

  it('has names that begin with releap_ and label values from tables alone', async () => {
    for (const path of [
      '/vms/a-tenants-own-words',
      '/a-tenants-own-words',
      '/vms?cursor=a-tenants-own-words',
    ])
      await world.call('GET', path);
    const samples = await scrape();
    const table = Object.values<Operation>({ ...operations, ...operatorOperations, ...internalOperations });
    const allowed: Record<string, ReadonlySet<string>> = {
      operation: new Set(table.map(({ method, path }) => `${method} ${path}`)),
      plane: new Set(table.map(({ security }) => security)),
      resource: new Set(['sandbox', 'snapshot']),
      event: new Set<string>([...EVENTS, ...SNAPSHOT_MACHINE.events]),
      outcome: new Set(['ok', 'failed', 'timeout', 'busy', 'not-leader']),
      what: new Set(['message_type', 'message', 'item']),
      pool: new Set(['main', 'heartbeat']),
    };
    const statuses = new Set<string>([...SANDBOX_STATUSES, '1xx', '2xx', '3xx', '4xx', '5xx']);
    for (const { name, labels } of samples) {
      assert.match(name, /^releap_/);
      assert.ok(!JSON.stringify(labels).includes('own-words'), JSON.stringify(labels));
      for (const [label, value] of Object.entries(labels)) {
        if (label === 'status') assert.ok(statuses.has(value), `${name} ${value}`);
        const values = allowed[label];
        if (values !== undefined) assert.ok(values.has(value), `${name} ${label} ${value}`);
        else assert.match(value, /^[A-Za-z0-9_.+-]{1,60}$/, `${name} ${label} ${value}`);
      }
    }
  });
});
