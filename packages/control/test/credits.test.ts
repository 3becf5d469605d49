/**
 * "At zero balance, create, start and resume are refused with 402; already running sandboxes get a small grace
 * overdraft, and once the overdraft limit is crossed the platform force-deletes the organization's running sandboxes"
 * (Limits), and what operators do about it.
 */
import assert from 'node:assert/strict';
import { after, before, describe, it } from 'node:test';
import { formatAmount, parseAmount } from '@releap/contract';
import { accounts, PRICES } from './support/billing.ts';
import { Stage } from './support/lifecycle.ts';
import { inspectLedger, inspectMeters, inspectReading } from '@releap/testing/inspect';
import {
  caller,
  create,
  startWorld,
  until,
  waitFor,
  type Answer,
  type Created,
  type World,
  refusalOf,
} from '@releap/testing/world';
import { OPERATOR_TOKEN } from '@releap/testing/credentials';

let world: World;
let stage: Stage;
let orgId: string;
let operator: (
  method: string,
  path: string,
  body?: unknown,
  headers?: Record<string, string>,
) => Promise<Answer>;

before(async () => {
  world = await startWorld({
    // A host is charged up to the last time it was heard of, which is a quarter of this ago at most.
    limits: { runnerLostAfterMs: 8_000 },
    billing: { mode: 'enforce', prices: PRICES, meterMs: 1_000, passMs: 50 },
  });
  stage = await Stage.on(world);
  ({ orgId } = world);
  const call = caller(() => world.internalUrl, OPERATOR_TOKEN, '');
  operator = (method, path, body, headers) =>
    call(method, path, body, headers === undefined ? {} : { headers });
});
after(async () => world[Symbol.asyncDispose]());

const grants = (): string => `/operator/orgs/${orgId}/grants`;

async function grant(amount: string, kind?: string): Promise<Answer> {
  const answer = await operator('POST', grants(), {
    amount,
    note: 'a test',
    ...(kind === undefined ? {} : { kind }),
  });
  assert.equal(answer.status, 200, answer.text);
  return answer;
}

async function setBalance(wanted: string): Promise<void> {
  const { body } = await operator('GET', grants());
  const missing = (parseAmount(wanted) ?? 0n) - (parseAmount(body.balance) ?? 0n);
  if (missing !== 0n) await grant(formatAmount(missing), 'adjustment');
}

/** Number of charges of its use. */
const charges = async (vm: Created): Promise<number> =>
  (await inspectLedger(world.database, { sandbox_id: vm.uuid })).length;

describe('an organization without credits', () => {
  it('is refused create, start, resume and builds with 402, and succeeds as soon as it is granted some', async () => {
    await grant('1000');
    const stopped = await stage.stopped();
    const paused = await stage.paused();
    await setBalance('0');
    const refusals = [
      await world.call('POST', '/vms', { image: 'busybox' }),
      await stage.do(stopped, 'start'),
      await stage.do(paused, 'resume'),
      await world.call('POST', '/images', {
        name: 'built',
        source: { type: 'dockerfile', dockerfile: 'FROM busybox\n' },
      }),
    ];
    const snapshot = { name: 'built', imageName: 'localhost:5000/app' };
    assert.equal((await world.call('POST', '/compat/snapshots', snapshot)).status, 402);
    for (const answer of refusals) {
      assert.deepEqual(
        [answer.status, Object.keys(refusalOf(answer) as object)],
        [402, ['error', 'code', 'retryable']],
        answer.text,
      );
      assert.match(answer.body.error, /out of credits: its balance is (0|-0\.\d+), and must be above 0$/);
    }
    assert.equal(
      (await world.call('POST', '/vms', { image: 'busybox', mode: 'fast' })).status,
      400,
      'what is wrong comes first',
    );
    assert.equal(
      (await world.call('POST', '/vms/here-aaaaaaaaaaaaaaaaaaaaaaaaaa/start')).status,
      404,
      'and what does not exist',
    );
    assert.equal((await world.call('GET', '/vms')).status, 200);
    assert.equal((await world.call('POST', `/vms/${stopped.id}/stop`)).status, 200, 'stopping costs nothing');
    await grant('1');
    assert.equal((await stage.do(stopped, 'start')).status, 200);
    assert.equal((await stage.do(paused, 'resume')).status, 200);
    for (const vm of [stopped, paused])
      assert.equal((await world.call('DELETE', `/vms/${vm.id}`)).status, 200);
  });

  it('is refused a fork with 402, also one whose first try was cut off before it wrote anything', async () => {
    await grant('1000');
    const source = await stage.paused();
    const headers = { 'idempotency-key': 'cut-off' };
    const fork = (): Promise<Answer> => world.call('POST', `/vms/${source.id}/fork`, undefined, { headers });
    const made = await fork();
    assert.equal(made.status, 200, made.text);
    await waitFor(world.call, made.body.vm_id, 'paused');
    // As a server leaves it that dies before its transaction is committed.
    const { rows } = await world.database.pool.query(
      'delete from sandboxes where forked_from = $1 returning job_id',
      [source.uuid],
    );
    await world.database.pool.query('delete from jobs where id = $1', [rows[0].job_id]);
    await world.database.pool.query('update idempotency_keys set sealed = null, lease_until = now()');
    await setBalance('0');
    assert.equal((await fork()).status, 402, 'the second try is no better than the first');
    assert.equal((await world.call('POST', `/vms/${source.id}/fork`)).status, 402);
    await grant('1');
    assert.equal((await fork()).body.vm_id, made.body.vm_id);
    await world.call('DELETE', `/vms/${source.id}`);
  });

  it('may use up its overdraft; beyond it what runs is deleted, and the reason is in the ledger and in the sandbox', async () => {
    await setBalance('1');
    const limit = await operator('PUT', `/operator/orgs/${orgId}/overdraft-limit`, {
      overdraft_limit: '0.5',
    });
    assert.deepEqual(
      [limit.body.overdraft_limit, limit.body.overdraft_limit_source],
      ['0.5', 'organization'],
    );
    const vm = await stage.running();
    const stopped = await stage.stopped();
    stage.left.delete(vm.uuid);
    await setBalance('-0.4');
    // Charged again, and still within its grace.
    const before = await charges(vm);
    await until(async () => (await charges(vm)) !== before);
    assert.equal((await stage.row(vm)).status, 'running');
    await setBalance('-0.5');
    await waitFor(world.call, vm.id, 'deleted').catch(() => undefined);
    await until(async () => (await stage.row(vm)).status === 'deleted');
    const { error } = await stage.row(vm);
    assert.match(
      error ?? '',
      /^deleted because its organization is out of credits: the balance of -0\.5\d* is beyond the overdraft limit of 0\.5$/,
    );
    const deletion = { sandbox_id: vm.uuid, kind: 'deletion' };
    assert.deepEqual(await inspectLedger(world.database, deletion), [
      { ...deletion, amount: '0', note: error, org_id: orgId },
    ]);
    assert.equal((await stage.row(stopped)).status, 'stopped', 'what costs nothing is left alone');
    const none = await operator('PUT', `/operator/orgs/${orgId}/overdraft-limit`, { overdraft_limit: null });
    assert.equal(none.body.overdraft_limit_source, 'global');
    await setBalance('1000');
  });

  it('is charged for a sandbox from its placement to its end, and the sum of the ledger is the balance', async () => {
    const vm = await create(world.call, world);
    await waitFor(world.call, vm.id, 'running');
    await until(
      async () => (await inspectLedger(world.database, { sandbox_id: vm.uuid, kind: 'usage' })).length !== 0,
    );
    await world.call('DELETE', `/vms/${vm.id}`);
    await until(async () => (await inspectMeters(world.database, { sandbox_id: vm.uuid })).length === 0);
    for (const { balance, sum } of await accounts(world.database)) assert.equal(balance, sum);
  });
});

describe('burst', () => {
  it('is charged from the CPU counters that a host reports over its link; an invalid reading is ignored', async () => {
    const vm = await stage.running();
    const tell = (age: number, cpu: number): void =>
      stage.runner.send({
        type: 'usage',
        readings: [{ vm_id: vm.uuid, incarnation: 'one', cpu_usec: cpu, age_usec: age }],
      });
    const told = async (age: number): Promise<void> =>
      until(async () => (await inspectReading(world.database, vm.uuid))?.age_usec === String(age));
    tell(1_000_000, 9_000_000);
    await told(1_000_000);
    // A minute, of which an eighth of a core is guaranteed, and all of one was used.
    tell(61_000_000, 69_000_000);
    await told(61_000_000);
    const burst = { sandbox_id: vm.uuid, kind: 'burst' };
    assert.deepEqual(await inspectLedger(world.database, burst), [
      {
        ...burst,
        org_id: orgId,
        amount: String(-525n * (PRICES.burstCpuSecond / 10_000n)),
        note: '52.5 core-seconds above the guarantee in 60 s',
      },
    ]);
    await world.call('DELETE', `/vms/${vm.id}`);
    stage.runner.sendRaw(
      JSON.stringify({
        type: 'usage',
        readings: [{ vm_id: vm.uuid, incarnation: 'one', cpu_usec: -1, age_usec: 0 }],
      }),
    );
    // An impossible reading is ignored, and the link stays open.
    const seq = stage.runner.report();
    await until(() => stage.runner.acked >= seq);
    assert.equal(stage.runner.closeCode, undefined);
    assert.notEqual((await inspectReading(world.database, vm.uuid))?.age_usec, '0');
  });
});

describe('a server that does not enforce credits', () => {
  it('refuses nothing and deletes nothing, however deep the balance is, and says that credits are not enabled', async () => {
    await setBalance('-1000000');
    await world.restart({ billing: { mode: 'meter', prices: PRICES, meterMs: 1_000, passMs: 50 } });
    await stage.runner.connect();
    const vm = await create(world.call, world);
    await waitFor(world.call, vm.id, 'running');
    await until(async () => (await charges(vm)) !== 0);
    assert.equal((await stage.row(vm)).status, 'running');
    const { body } = await operator('PUT', `/operator/orgs/${orgId}/overdraft-limit`, {
      overdraft_limit: null,
    });
    assert.equal(body.enabled, false);
    await world.call('DELETE', `/vms/${vm.id}`);
    await world.restart();
    await stage.runner.connect();
    await setBalance('1000');
  });
});

describe('grants', () => {
  it('are written once, whole and readable', async () => {
    const before = (await operator('GET', grants())).body;
    const answer = await grant('12.340000001');
    assert.deepEqual(
      [
        answer.body.org_id,
        answer.body.entry.amount,
        answer.body.entry.kind,
        answer.body.entry.note,
        answer.body.entry.vm_id,
      ],
      [orgId, '12.340000001', 'grant', 'a test', null],
    );
    const after = (await operator('GET', `${grants()}?limit=1`)).body;
    assert.deepEqual(after.grants, [answer.body.entry]);
    assert.ok((parseAmount(after.balance) ?? 0n) > (parseAmount(before.balance) ?? 0n));
    const { rows } = await world.database.pool.query(
      `select actor_kind, action, details from audit_log where org_id = $1 order by created_at desc limit 1`,
      [orgId],
    );
    assert.deepEqual(rows, [
      {
        actor_kind: 'operator',
        action: 'credits.grant',
        details: { amount: '12.340000001', note: 'a test' },
      },
    ]);
  });

  it('under one Idempotency-Key are given once, also by twenty requests at the same time', async () => {
    const headers = { 'idempotency-key': 'grant-of-the-month' };
    const given = async (): Promise<number> =>
      (await inspectLedger(world.database, { kind: 'grant' })).length;
    const before = await given();
    // A server waits for the first of them for seconds, which are not enough on a busy machine.
    const grantOnce = async (): Promise<Answer> => {
      for (;;) {
        const answer = await operator('POST', grants(), { amount: '3' }, headers);
        if (answer.body.code !== 'idempotency_in_progress') return answer;
      }
    };
    const answers = await Promise.all(Array.from({ length: 20 }, grantOnce));
    assert.equal(new Set(answers.map((answer) => `${answer.status} ${answer.text}`)).size, 1);
    assert.equal(
      answers.filter((answer) => answer.headers.get('idempotency-replayed') === 'true').length,
      19,
    );
    assert.equal(await given(), before + 1);
    const other = await operator('POST', grants(), { amount: '4' }, headers);
    assert.equal(other.status, 409);
    assert.match(other.body.error, /"grant-of-the-month" was used for another request/);
  });

  it('need the operator token, an existing organization, and a valid amount', async () => {
    const withKey = caller(() => world.internalUrl, world.call.key, '');
    assert.equal((await withKey('POST', grants(), { amount: '1' })).status, 401);
    assert.equal((await withKey('GET', grants())).status, 401);
    for (const id of ['00000000-0000-4000-8000-000000000000', 'x', 'a'.repeat(300)])
      assert.equal((await operator('POST', `/operator/orgs/${id}/grants`, { amount: '1' })).status, 404);
    for (const amount of ['0', '-1', '', '1e3', 'NaN', '0.0000000001', '1000000001', 1, null, undefined]) {
      const answer = await operator('POST', grants(), { amount });
      assert.equal(answer.status, 400, `${amount}: ${answer.text}`);
      assert.match(answer.body.error, /amount/);
    }
    assert.equal((await operator('POST', grants(), { amount: '1', note: 'x'.repeat(501) })).status, 400);
    assert.equal((await operator('POST', grants(), { amount: '0', kind: 'adjustment' })).status, 400);
  });

  it('that would overflow the balance are refused, and change nothing', async () => {
    await world.database.pool.query(
      `insert into credit_ledger (org_id, amount, kind) values ($1, 9000000000000000000, 'adjustment')`,
      [orgId],
    );
    const answer = await operator('POST', grants(), { amount: '1000000000' });
    assert.deepEqual(
      [answer.status, answer.body.error],
      [400, 'amount "1000000000" gives a balance that is out of range'],
    );
    for (const { balance, sum } of await accounts(world.database)) assert.equal(balance, sum);
  });
});
