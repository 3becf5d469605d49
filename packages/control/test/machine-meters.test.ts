/**
 * Machines that are no sandboxes of tenants are charged too: builds of Dockerfiles, trials of versions of functions, and starts of
 * instances that serve.
 */
import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { HANDLER_LISTEN_MS, newUuid } from '@releap/contract';
import { openFresh } from '@releap/testing/postgres';
import { chargeMeters, METER_SCALE } from '../src/tenancy/billing/charge-meters.ts';
import { organizationsCrossing } from '../src/tenancy/billing/unbilled.ts';
import { closeStarts } from '../src/functions/instances/listening.ts';
import { newOrg, newRunner, newSandbox, PRICES, setStatus } from './support/billing.ts';
import { newFunction, type FunctionRow } from './support/functions.ts';

const database = await openFresh();
await newOrg(database);
// Nothing is charged beyond its last heartbeat, however long the tests take.
const runnerId = await newRunner(database, new Date(Date.now() + 86_400_000));

interface Meter {
  kind: string;
  metered_until: Date;
  closed_at: Date | null;
  /** Microseconds between these two. */
  micros: string | null;
}
/** Meters of a job or a sandbox, oldest first. */
async function metersOf(id: string): Promise<Meter[]> {
  const { rows } = await database.pool.query<Meter>(
    `select kind, metered_until, closed_at, (extract(epoch from closed_at - metered_until) * 1000000)::bigint::text as micros
       from sandbox_meters where sandbox_id = $1 order by id`,
    [id],
  );
  return rows;
}
/** Prices at which no test takes long enough for a start to cost anything by itself. */
const LONG_FREE = { ...PRICES, startFreeMs: HANDLER_LISTEN_MS - 10_000 };
/** As if it had begun so long ago. */
const backdate = (id: string, seconds: number) =>
  database.pool.query(
    `update sandbox_meters set metered_until = metered_until - $2 * interval '1 second' where sandbox_id = $1 and closed_at is null`,
    [id, seconds],
  );
async function ledger(orgId: string, prices = PRICES) {
  await chargeMeters(database.pool, prices, { meterMs: 0, orgs: [orgId] });
  const { rows } = await database.pool.query<{
    amount: string;
    note: string | null;
    sandbox_id: string | null;
    function_id: string | null;
    micros: string;
  }>(
    `select amount, note, sandbox_id, function_id, trunc(extract(epoch from period_to - period_from) * 1000000)::text as micros
       from credit_usage where org_id = $1 order by id`,
    [orgId],
  );
  return rows;
}
const costOf = (micros: string, vcpus: bigint, memMib: bigint, cpu: bigint, mem: bigint): bigint =>
  (BigInt(micros) * (vcpus * 1_000n * 1_024n * cpu + memMib * 1_000n * mem) * 100n) / METER_SCALE;

async function newBuild(projectId: string, type = 'dockerfile'): Promise<string> {
  const id = newUuid();
  await database.pool.query(
    `insert into jobs (id, project_id, kind, status, payload) values ($1, $2, 'build', 'queued', $3)`,
    [id, projectId, { root: { type } }],
  );
  return id;
}
/** As a lease of the build queue does it. */
const takeBuild = (id: string, host = runnerId) =>
  database.pool.query(
    `update jobs set status = 'running', attempts = attempts + 1, runner_id = $2, lease_until = now() + interval '1 minute' where id = $1`,
    [id, host],
  );

describe('the build of a Dockerfile', () => {
  it('is charged from its lease by a host to its end, at the prices of builds', async () => {
    const { orgId, projectId } = await newOrg(database);
    const id = await newBuild(projectId);
    assert.deepEqual(await metersOf(id), [], 'the wait for a host');
    await takeBuild(id);
    await backdate(id, 90);
    await database.pool.query(`update jobs set status = 'failed', lease_until = null where id = $1`, [id]);
    const [entry, ...others] = await ledger(orgId);
    assert.ok(entry);
    assert.deepEqual(others, []);
    assert.deepEqual([entry.note, entry.sandbox_id, entry.function_id], [`build ${id}`, null, null]);
    assert.ok(BigInt(entry.micros) >= 90_000_000n);
    assert.equal(
      -BigInt(entry.amount),
      costOf(entry.micros, 2n, 2_048n, PRICES.buildCpuSecond, PRICES.buildMemGibSecond),
    );
    assert.deepEqual(await metersOf(id), []);
  });

  it('of a host that is lost is charged to the end of its lease, and by the next host anew', async () => {
    const { projectId } = await newOrg(database);
    const id = await newBuild(projectId);
    await takeBuild(id);
    await backdate(id, 100);
    const end = new Date(Date.now() - 60_000);
    await database.pool.query('update jobs set lease_until = $2 where id = $1', [id, end]);
    const [before] = (await database.pool.query<{ now: Date }>('select now()')).rows;
    await takeBuild(id);
    const meters = await metersOf(id);
    assert.deepEqual(
      meters.map(({ kind, closed_at }) => [kind, closed_at]),
      [
        ['build', end],
        ['build', null],
      ],
    );
    assert.ok(before !== undefined && (meters[1]?.metered_until ?? end) >= before.now);
  });

  it('of a host that is lost while its lease lies ahead is charged to the last heartbeat', async () => {
    const { projectId } = await newOrg(database);
    const seen = new Date(Date.now() - 70_000);
    const dead = await newRunner(database, seen);
    const id = await newBuild(projectId);
    await takeBuild(id, dead);
    await backdate(id, 100);
    await database.pool.query(`update runners set status = 'lost' where id = $1`, [dead]);
    await database.pool.query(`update jobs set status = 'failed' where id = $1`, [id]);
    const { rows } = await database.pool.query<{ closed_at: Date }>(
      'select closed_at from sandbox_meters where sandbox_id = $1',
      [id],
    );
    assert.deepEqual(rows, [{ closed_at: seen }]);
  });

  it('is no pull of an image, and no build of the service', async () => {
    const { projectId } = await newOrg(database);
    const pull = await newBuild(projectId, 'registry');
    await takeBuild(pull);
    const own = newUuid();
    await database.pool.query(
      `insert into jobs (id, kind, status, payload) values ($1, 'build', 'queued', '{"root": {"type": "dockerfile"}}')`,
      [own],
    );
    await takeBuild(own);
    assert.deepEqual([await metersOf(pull), await metersOf(own)], [[], []]);
  });
});

const gatewayId = newUuid();
async function newInstance(fn: FunctionRow, purpose: 'probe' | 'serve'): Promise<string> {
  const { id: functionId, versionId, projectId, vcpus, memMib } = fn;
  const id = await newSandbox(database, projectId, { status: 'pending', runnerId, vcpus, memMib });
  await database.pool.query(
    `update sandboxes set owner_kind = 'service', owner_service = 'functions' where id = $1`,
    [id],
  );
  await database.pool.query(
    `insert into function_instances (sandbox_id, function_id, version_id, project_id, purpose, gateway_id) values ($1, $2, $3, $4, $5, $6)`,
    [id, functionId, versionId, projectId, purpose, gatewayId],
  );
  await setStatus(database, id, 'assigned');
  return id;
}

describe('the start of an instance', () => {
  const begin = async (): Promise<{ orgId: string; fn: FunctionRow; id: string }> => {
    const { orgId, projectId } = await newOrg(database);
    const fn = await newFunction(database, projectId, { vcpus: 2, memMib: 512 });
    const id = await newInstance(fn, 'serve');
    assert.deepEqual(await metersOf(id), [], 'while its image is fetched');
    await setStatus(database, id, 'booting');
    await setStatus(database, id, 'running');
    return { orgId, fn, id };
  };
  const listens = (id: string, forMs = 0, by = gatewayId): Promise<void> =>
    closeStarts(database.pool, [{ id, gatewayId: by, forMs }]);

  it('is charged as its function until the handler listens, but for the first ten seconds', async () => {
    const { orgId, fn, id } = await begin();
    await backdate(id, 40);
    await listens(id);
    const [meter] = await metersOf(id);
    await setStatus(database, id, 'deleting');
    const [entry, ...others] = await ledger(orgId);
    assert.ok(entry);
    assert.deepEqual(others, []);
    const { note, sandbox_id: sandboxId, function_id: functionId, micros, amount } = entry;
    assert.deepEqual(
      [note, sandboxId, functionId],
      [`function ${fn.name}: start of an instance`, null, fn.id],
    );
    assert.equal(BigInt(micros), BigInt(meter?.micros ?? 0) - 10_000_000n);
    assert.ok(BigInt(micros) >= 30_000_000n, micros);
    assert.equal(
      -BigInt(amount),
      costOf(micros, 2n, 512n, PRICES.functionCpuSecond, PRICES.functionMemGibSecond),
    );
    assert.deepEqual(await metersOf(id), []);
  });

  it('costs nothing if the handler listens in time, whatever the instance does later', async () => {
    const { orgId, id } = await begin();
    await backdate(id, 3);
    await listens(id);
    assert.deepEqual(await ledger(orgId, LONG_FREE), []);
    await listens(id);
    await setStatus(database, id, 'deleting');
    assert.deepEqual(await metersOf(id), []);
  });

  it('ends with the instance, and for gateways that do not say that it listens at the deadline of the handler', async () => {
    const { orgId, id } = await begin();
    await backdate(id, 86_400);
    await setStatus(database, id, 'deleting');
    assert.deepEqual(
      (await ledger(orgId)).map(({ micros }) => Number(micros)),
      [HANDLER_LISTEN_MS * 1_000 - PRICES.startFreeMs * 1_000],
    );
  });

  it('is ended by the gateway that has the instance, and not before what was charged', async () => {
    const { orgId, id } = await begin();
    await listens(id, 0, newUuid());
    assert.deepEqual(
      (await metersOf(id)).map(({ closed_at }) => closed_at),
      [null],
      'by another one',
    );
    await backdate(id, 60);
    const [charged] = await ledger(orgId);
    await listens(id, Number.MAX_SAFE_INTEGER / 1_000);
    assert.deepEqual(
      (await metersOf(id)).map(({ kind, micros }) => [kind, micros]),
      [['start', '0']],
    );
    assert.deepEqual(await ledger(orgId), [charged]);
  });

  it('is charged beside another one of its function, whose meter is as old', async () => {
    const { orgId, fn, id } = await begin();
    const other = await newInstance(fn, 'serve');
    await setStatus(database, other, 'running');
    const opened = new Date();
    await database.pool.query(
      `update sandbox_meters set metered_until = $2, runner_id = null where sandbox_id = any($1)`,
      [[id, other], opened],
    );
    for (const seconds of [40, 70]) {
      const now = new Date(opened.getTime() + seconds * 1_000);
      const { parked } = await chargeMeters(database.pool, PRICES, { meterMs: 0, orgs: [orgId], now });
      assert.deepEqual(parked, []);
    }
    assert.deepEqual(
      (await ledger(orgId)).map(({ micros }) => Number(micros) / 1e6),
      [30, 30, 30, 30],
    );
  });

  it('counts for the limits of its organization before it is charged', async () => {
    const { orgId, id } = await begin();
    const crossing = async (): Promise<boolean> =>
      (await organizationsCrossing(database.pool, LONG_FREE, 0n)).includes(orgId);
    await backdate(id, 5);
    assert.equal(await crossing(), false);
    await backdate(id, 86_400);
    assert.equal(await crossing(), true);
  });
});

it('the trial of a version is charged as its function', async () => {
  const { orgId, projectId } = await newOrg(database);
  const fn = await newFunction(database, projectId, { vcpus: 2, memMib: 512 });
  const trial = await newInstance(fn, 'probe');
  await setStatus(database, trial, 'running');
  await backdate(trial, 30);
  await setStatus(database, trial, 'deleting');
  const [entry, ...others] = await ledger(orgId);
  assert.ok(entry);
  assert.deepEqual(others, []);
  assert.deepEqual(
    [entry.note, entry.sandbox_id, entry.function_id],
    [`function ${fn.name}: trial of a version`, null, fn.id],
  );
  assert.equal(
    -BigInt(entry.amount),
    costOf(entry.micros, 2n, 512n, PRICES.functionCpuSecond, PRICES.functionMemGibSecond),
  );
});
