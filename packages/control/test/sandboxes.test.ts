import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { randomUUID } from 'node:crypto';
import { setTimeout as sleep } from 'node:timers/promises';
import { LIMITS, SandboxList, SandboxRecord, SANDBOX_STATUSES } from '@releap/contract';
import { Compile } from 'typebox/compile';
import {
  create,
  silent,
  startWorld,
  until,
  waitFor,
  hosts,
  refusalOf,
  type Created,
} from '@releap/testing/world';
import { GatewayClient } from '@releap/testing/gateway-client';
import { inspect } from '@releap/testing/inspect';

const world = await startWorld();
let runner = await world.runner();
const stranger = await world.stranger();

async function running(body: object = {}): Promise<Created> {
  const vm = await create(world.call, world, body);
  await waitFor(world.call, vm.id, 'running');
  return vm;
}

describe('GET /vms', () => {
  it('lists newest first, in pages, each sandbox once, with a null cursor on the last page', async () => {
    const call = await world.stranger();
    const made: string[] = [];
    for (let i = 0; i < 7; i++) made.push((await create(call, world)).id);
    const seen: string[] = [];
    let cursor: string | null = '';
    const sizes: number[] = [];
    while (cursor !== null) {
      const page = await call('GET', `/vms?limit=3&cursor=${cursor}`);
      assert.equal(page.status, 200, page.text);
      assert.ok(Compile(SandboxList).Check(page.body), page.text);
      sizes.push(page.body.vms.length);
      seen.push(...page.body.vms.map((vm: SandboxRecord) => vm.id));
      cursor = page.body.next_cursor;
    }
    assert.deepEqual(sizes, [3, 3, 1]);
    assert.deepEqual(seen, made.reverse());
  });

  it('clamps limit to 1..200 and takes 100 by default', async () => {
    const call = await world.stranger();
    await create(call, world);
    await create(call, world);
    for (const [limit, expected] of [
      ['0', 1],
      ['-5', 1],
      ['1', 1],
      ['999999999999', 2],
    ] as const) {
      assert.equal((await call('GET', `/vms?limit=${limit}`)).body.vms.length, expected, limit);
    }
  });

  it('shows only the sandboxes of the project, and none that is deleted', async () => {
    const call = await world.stranger();
    assert.deepEqual((await call('GET', '/vms')).body, { vms: [], next_cursor: null });
    const vm = await create(call, world);
    await waitFor(call, vm.id, 'running');
    await call('DELETE', `/vms/${vm.id}`);
    await waitFor(call, vm.id, 'deleted');
    assert.deepEqual((await call('GET', '/vms')).body, { vms: [], next_cursor: null });
  });

  for (const cursor of ['x', '%20', 'AAAA', '%00', 'a'.repeat(400)]) {
    it(`GET /vms 400: malformed cursor ${cursor.slice(0, 10)}`, async () => {
      const answer = await world.call('GET', `/vms?cursor=${cursor}`);
      assert.equal(answer.status, 400, answer.text);
      assert.match(answer.body.error, /cursor/);
    });
  }
  it('GET /vms 400: limit is no integer', async () => {
    assert.equal((await world.call('GET', '/vms?limit=many')).status, 400);
  });
});

describe('GET /vms/:id', () => {
  it('gives the record, by the id and by the bare UUID, with forked_from', async () => {
    const vm = await running();
    const byId = await world.call('GET', `/vms/${vm.id}`);
    assert.deepEqual((await world.call('GET', `/vms/${vm.uuid}`)).body, byId.body);
    assert.equal(byId.body.forked_from, null);
    assert.ok(Compile(SandboxRecord).Check(byId.body), byId.text);
  });

  it('wakes a wait when the status comes, and answers 200 with the present state when it does not', async () => {
    const vm = await running();
    const late = await world.call('GET', `/vms/${vm.id}?wait=paused&timeout_ms=50`);
    assert.deepEqual([late.status, late.body.status], [200, 'running']);
    const waiting = world.call('GET', `/vms/${vm.id}?wait_exact=deleted&timeout_ms=60000`);
    await sleep(50);
    await world.call('DELETE', `/vms/${vm.id}`);
    assert.equal((await waiting).body.status, 'deleted');
  });

  it('returns a wait for running on deleting too, and a wait_exact only on its own status', async (t) => {
    const quiet = await world.runner({ region: 'here', script: silent });
    t.after(async () => {
      await quiet[Symbol.asyncDispose]();
      runner = await world.runner();
    });
    await runner[Symbol.asyncDispose]();
    await until(async () => (await hosts(world)).filter((one) => one.ready).length === 1);
    const vm = await create(world.call, world);
    const assignment = await quiet.assigned(vm.uuid);
    const wait = world.call('GET', `/vms/${vm.id}?wait=running&timeout_ms=60000`);
    const exact = world.call('GET', `/vms/${vm.id}?wait_exact=deleted&timeout_ms=60000`);
    // wait_exact takes precedence.
    const both = world.call('GET', `/vms/${vm.id}?wait=deleting&wait_exact=deleted&timeout_ms=60000`);
    await quiet.observed(assignment, { status: 'booting' });
    await world.call('DELETE', `/vms/${vm.id}`);
    assert.equal((await wait).body.status, 'deleting');
    const gone = await quiet.assigned(vm.uuid, (one) => one.desired === 'deleted');
    await quiet.observed(gone, { status: 'deleted' });
    assert.equal((await exact).body.status, 'deleted');
    assert.equal((await both).body.status, 'deleted');

    const doomed = await create(world.call, world);
    const failing = world.call('GET', `/vms/${doomed.id}?wait_exact=running&timeout_ms=60000`);
    await quiet.observed(await quiet.assigned(doomed.uuid), { status: 'failed', error: 'registry says no' });
    assert.deepEqual(
      [(await failing).body.status, (await failing).body.error],
      ['failed', 'registry says no'],
    );
  });

  it('lets hundreds wait for one sandbox, and wakes all of them', async () => {
    const vm = await running();
    const waits = Array.from({ length: 300 }, () =>
      world.call('GET', `/vms/${vm.id}?wait_exact=deleted&timeout_ms=60000`),
    );
    await sleep(100);
    await world.call('DELETE', `/vms/${vm.id}`);
    for (const answer of await Promise.all(waits)) assert.equal(answer.body.status, 'deleted');
  });

  it('clamps timeout_ms, and refuses what is no number or no status with 400', async () => {
    const vm = await running();
    assert.equal((await world.call('GET', `/vms/${vm.id}?wait=paused&timeout_ms=-1`)).status, 200);
    assert.equal((await world.call('GET', `/vms/${vm.id}?wait=paused&timeout_ms=soon`)).status, 400);
    const answer = await world.call('GET', `/vms/${vm.id}?wait=happy`);
    assert.equal(answer.status, 400);
    for (const status of SANDBOX_STATUSES) assert.match(answer.body.error, new RegExp(status));
  });

  it('ends a wait whose client has disconnected', async () => {
    const vm = await running();
    const leaving = new AbortController();
    const wait = world.call('GET', `/vms/${vm.id}?wait=paused&timeout_ms=60000`, undefined, {
      signal: leaving.signal,
    });
    await sleep(50);
    leaving.abort();
    await assert.rejects(wait);
    assert.equal((await world.call('GET', `/vms/${vm.id}`)).status, 200);
  });
});

describe('a long poll', () => {
  it('through any number of changes listens once for its caller to leave', async () => {
    const vm = await running({ persistent: true });
    const warnings: string[] = [];
    const note = (warning: Error): number => warnings.push(warning.message);
    process.on('warning', note);
    try {
      const wait = world.call('GET', `/vms/${vm.id}?wait_exact=deleted&timeout_ms=${LIMITS.waitMsMax}`);
      for (let n = 0; n < 8; n++) {
        await world.call('POST', `/vms/${vm.id}/stop`);
        await waitFor(world.call, vm.id, 'stopped');
        await world.call('POST', `/vms/${vm.id}/start`);
        await waitFor(world.call, vm.id, 'running');
      }
      await world.call('DELETE', `/vms/${vm.id}`);
      // On a slow machine it has ended with its time.
      if ((await wait).body.status !== 'deleted') await waitFor(world.call, vm.id, 'deleted');
    } finally {
      process.off('warning', note);
    }
    assert.deepEqual(warnings, []);
  });
});

describe('DELETE /vms/:id', () => {
  it('tears down, confirms with deleted, and is idempotent', async () => {
    const vm = await running({ env: { SECRET: 'x' } });
    for (let i = 0; i < 3; i++) {
      const answer = await world.call('DELETE', `/vms/${vm.id}`);
      assert.deepEqual([answer.status, answer.body], [200, { vm_id: vm.id, status: 'deleting' }]);
    }
    await waitFor(world.call, vm.id, 'deleted');
    assert.deepEqual((await world.call('DELETE', `/vms/${vm.uuid}`)).body, {
      vm_id: vm.id,
      status: 'deleting',
    });
    const row = await inspect(world.database, vm);
    assert.deepEqual(
      [row.env, row.env_bytes, row.assigned_to_runner, row.deleted_at !== null],
      [{}, 0, false, true],
    );
  });

  it('deletes at once what has no host yet, and fails its job', async () => {
    await using empty = await startWorld();
    const vm = await create(empty.call, empty);
    await empty.call('DELETE', `/vms/${vm.id}`);
    assert.equal((await empty.call('GET', `/vms/${vm.id}`)).body.status, 'deleted');
    const job = (await empty.call('GET', `/jobs/${vm.jobId}`)).body;
    assert.deepEqual(
      [job.status, job.error, job.attempts],
      ['failed', 'the sandbox was deleted before it ran', 0],
    );
  });

  it('has one outcome when many delete at the same time', async () => {
    const vm = await running();
    const answers = await Promise.all(
      Array.from({ length: 20 }, () => world.call('DELETE', `/vms/${vm.id}`)),
    );
    assert.ok(answers.every((answer) => answer.status === 200));
    await waitFor(world.call, vm.id, 'deleted');
  });

  it('ends in deleted though the host never confirms', async () => {
    await using mute = await startWorld({
      limits: {
        deadlines: {
          pending: 60_000,
          assigned: 60_000,
          building: 60_000,
          booting: 60_000,
          stopping: 60_000,
          pausing: 60_000,
          deleting: 300,
        },
      },
    });
    const host = await mute.runner({ script: silent });
    const vm = await create(mute.call, mute);
    await host.assigned(vm.uuid);
    await mute.call('DELETE', `/vms/${vm.id}`);
    await waitFor(mute.call, vm.id, 'deleted');
    // The host is still told, until it says that nothing is left.
    assert.equal((await host.assigned(vm.uuid, (one) => one.desired === 'deleted')).desired, 'deleted');
  });
});

describe('GET /vms/:id, DELETE /vms/:id, GET /jobs/:id, logs: 404', () => {
  it('an id under the name of another region is unknown to every operation', async () => {
    const vm = await running({ persistent: true });
    const id = vm.id.replace(/^here-/, 'there-');
    for (const [method, tail, body] of [
      ['GET', ''],
      ['GET', '?wait=running'],
      ['GET', '/logs'],
      ['GET', '/entrypoint-logs'],
      ['POST', '/stop'],
      ['POST', '/start'],
      ['POST', '/pause'],
      ['POST', '/resume'],
      ['POST', '/fork'],
      ['POST', '/snapshots', { name: 'there', kind: 'full' }],
      ['DELETE', ''],
    ] as const) {
      const answer = await world.call(method, `/vms/${id}${tail}`, body);
      const refusal = { error: `sandbox "${id}" not found`, code: 'sandbox_not_found', retryable: false };
      assert.deepEqual([answer.status, refusalOf(answer)], [404, refusal], tail);
    }
    using gateway = await new GatewayClient(world.internalUrl).open();
    assert.equal((await gateway.refusal(id, world.call.key)).status, 404);
    assert.equal((await gateway.refusal(id, vm.token)).status, 401);
    assert.equal((await world.call('GET', `/vms/${vm.id}`)).body.status, 'running');
  });

  it('tells an unknown id, a malformed one and one of another project in the same words', async () => {
    const vm = await running();
    const ids = {
      unknown: `here-${'a'.repeat(26)}`,
      uuid: randomUUID(),
      malformed: 'no-id!',
      foreign: vm.id,
      foreignUuid: vm.uuid,
    };
    for (const [method, tail] of [
      ['GET', ''],
      ['DELETE', ''],
      ['GET', '/logs'],
      ['GET', '/entrypoint-logs'],
      ['GET', '?wait=running'],
    ] as const) {
      for (const id of Object.values(ids)) {
        const answer = await stranger(method, `/vms/${encodeURIComponent(id)}${tail}`);
        assert.equal(answer.status, 404, answer.text);
        const error = `sandbox ${JSON.stringify(id)} not found`;
        assert.deepEqual(refusalOf(answer), { error, code: 'sandbox_not_found', retryable: false });
        assert.deepEqual([...answer.headers.keys()].sort(), [
          'connection',
          'content-length',
          'content-type',
          'date',
          'keep-alive',
          'x-request-id',
        ]);
      }
    }
    for (const id of [randomUUID(), 'no-id', vm.jobId]) {
      const answer = await stranger('GET', `/jobs/${id}`);
      const error = `job ${JSON.stringify(id)} not found`;
      const refusal = { error, code: 'job_not_found', retryable: false };
      assert.deepEqual([answer.status, refusalOf(answer)], [404, refusal]);
    }
    assert.equal((await world.call('GET', `/jobs/${vm.jobId}`)).status, 200);
    assert.equal(
      (await world.call('GET', `/vms/${vm.id}`)).body.status,
      'running',
      'the stranger has deleted nothing',
    );
  });
});
