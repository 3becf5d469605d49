import assert from 'node:assert/strict';
import { randomUUID } from 'node:crypto';
import { describe, it } from 'node:test';
import { RUNNER_LINK_PATH } from '@releap/contract';
import { inspectSandboxes } from '@releap/testing/inspect';
import type { Assignment } from '@releap/testing/runner-messages';
import * as fc from 'fast-check';
import { WebSocket } from 'ws';
import { create, FACTS, silent, startWorld, until, waitFor } from '@releap/testing/world';
import { credentialOf, joinAs } from '@releap/testing/credentials';
import { closedByServer } from '@releap/testing/half-open';
import { propertyRuns } from '@releap/testing/repetitions';

const world = await startWorld({ builtinImages: ['busybox'] });

const status = async (id: string): Promise<string> => (await world.call('GET', `/vms/${id}`)).body.status;

describe('the link of a runner', () => {
  it('sends a runner all of its assignments when it connects, and only those', async () => {
    await using runner = await world.runner({ script: silent });
    const vm = await create(world.call, world);
    await runner.assigned(vm.uuid);
    runner.drop();
    runner.assignments.clear();
    await runner.connect();
    assert.deepEqual([...runner.assignments.keys()], [vm.uuid]);
    await using other = await world.runner({ script: silent });
    assert.deepEqual([...other.assignments.keys()], []);
    await world.call('DELETE', `/vms/${vm.id}`);
    await runner.observed(await runner.assigned(vm.uuid, (one) => one.desired === 'deleted'), {
      status: 'deleted',
    });
    runner.drop();
    runner.assignments.clear();
    await runner.connect();
    assert.deepEqual([...runner.assignments.keys()], []);
  });

  it('ignores observations of an older generation, of another runner, and repeated ones, and acknowledges all', async () => {
    await using runner = await world.runner({ script: silent });
    await using other = await world.runner({ script: silent, ready: false });
    const vm = await create(world.call, world);
    const assignment = await runner.assigned(vm.uuid);
    await other.observed(assignment, { status: 'running' });
    assert.equal(await status(vm.id), 'assigned');
    await runner.observed({ ...assignment, generation: assignment.generation + 1 }, { status: 'running' });
    assert.equal(await status(vm.id), 'assigned');
    for (let i = 0; i < 3; i++) await runner.observed(assignment, { status: 'running', vm_ip: '172.16.0.2' });
    assert.equal(await status(vm.id), 'running');
    await runner.observed(assignment, { status: 'booting' });
    assert.equal(await status(vm.id), 'running');
    await world.call('DELETE', `/vms/${vm.id}`);
    await runner.observed(assignment, { status: 'running' });
    await runner.observed(assignment, { status: 'deleted' });
    assert.equal(await status(vm.id), 'deleting');
    const gone = await runner.assigned(vm.uuid, (one) => one.desired === 'deleted');
    assert.equal(gone.generation, assignment.generation + 1);
    assert.deepEqual(gone.spec.env, {});
    await runner.observed(gone, { status: 'deleted' });
    await runner.observed(gone, { status: 'running' });
    assert.equal(await status(vm.id), 'deleted');
  });

  it('turns a failure into failed with its reason, and has the host release its resources', async () => {
    await using runner = await world.runner({ script: silent });
    const vm = await create(world.call, world);
    const assignment = await runner.assigned(vm.uuid);
    await runner.observed(assignment, { status: 'running', vm_ip: '172.16.0.2', host_ip: '10.0.0.1' });
    await runner.observed(assignment, { status: 'failed', error: 'the VMM died of SIGKILL\0' });
    const record = (await world.call('GET', `/vms/${vm.id}`)).body;
    assert.deepEqual(
      [record.status, record.error, record.vm_ip],
      ['failed', 'the VMM died of SIGKILL', undefined],
    );
    await runner.assigned(vm.uuid, (one) => one.desired === 'deleted');
  });

  it('keeps the disk of a persistent sandbox that failed after it had run', async () => {
    await using runner = await world.runner({ script: silent });
    const vm = await create(world.call, world, { persistent: true });
    const assignment = await runner.assigned(vm.uuid);
    await runner.observed(assignment, { status: 'running', manifest_name: 'sha256:x' });
    await runner.observed(assignment, { status: 'failed', error: 'x' });
    const next = await runner.assigned(vm.uuid, (one) => one.generation > assignment.generation);
    assert.equal(next.desired, 'stopped');
  });

  it('cuts a reason that is too long, instead of refusing it', async () => {
    await using runner = await world.runner({ script: silent });
    const vm = await create(world.call, world);
    await runner.observed(await runner.assigned(vm.uuid), { status: 'failed', error: 'x'.repeat(1_000_000) });
    assert.equal((await world.call('GET', `/vms/${vm.id}`)).body.error.length, 4001);
  });

  it('cuts a reason between characters: half of one would be refused for ever, with all reports of its message', async () => {
    await using runner = await world.runner({ script: silent });
    const vm = await create(world.call, world);
    const error = `${'x'.repeat(3_999)}🙂 and more`;
    await runner.observed(await runner.assigned(vm.uuid), { status: 'failed', error });
    const failed = await waitFor(world.call, vm.id, 'failed');
    assert.match(failed.error ?? '', /^x{3999}\S?…$/);
    assert.equal(runner.closeCode, undefined);
  });

  it('lets the newest connection of a runner win', async () => {
    await using first = await world.runner({ script: silent });
    await using second = await world.runner({ script: silent, id: first.id });
    await until(() => first.closeCode !== undefined);
    assert.equal(first.closeCode, 4000);
    const vm = await create(world.call, world);
    await second.observed(await second.assigned(vm.uuid), { status: 'running' });
    assert.equal(await status(vm.id), 'running');
  });

  it('places nothing on a runner that is connected and not ready', async () => {
    await using runner = await world.runner({ script: silent, ready: false });
    const vm = await create(world.call, world);
    assert.equal(
      (await world.call('GET', `/vms/${vm.id}?wait=assigned&timeout_ms=300`)).body.status,
      'pending',
    );
    runner.heartbeat(true);
    await runner.assigned(vm.uuid);
    runner.heartbeat(false);
    await until(async () => (await world.call('GET', '/healthz')).status === 503);
    assert.match((await world.call('GET', '/healthz')).body.error, /no host is connected and ready/);
  });

  it('gives up a refused connection whose client keeps its end open', async () => {
    const { host, port } = new URL(world.internalUrl);
    const handshake = `GET ${RUNNER_LINK_PATH} HTTP/1.1\r\nHost: ${host}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n`;
    assert.match(await closedByServer(Number(port), handshake), /^HTTP\/1\.1 401 /);
  });

  it('refuses a runner without the token, an unknown region, and a first message that is no hello', async () => {
    const dial = (headers: Record<string, string>): Promise<number> =>
      new Promise((resolve, reject) => {
        const socket = new WebSocket(world.internalUrl.replace('http', 'ws') + RUNNER_LINK_PATH, { headers });
        socket.on('unexpected-response', (_request, response) => resolve(response.statusCode ?? 0));
        socket.on('open', () => reject(new Error('opened')));
        socket.on('error', () => undefined);
      });
    assert.equal(await dial({}), 401);
    assert.equal(await dial({ authorization: 'Bearer wrong' }), 401);
    assert.equal(await dial({ authorization: `Bearer ${world.call.key}` }), 401);
    await using lost = await world.runner({ region: 'atlantis' });
    await until(() => lost.closeCode !== undefined);
    assert.equal(lost.closeCode, 4002);
    await using rude = await world.runner({ connect: false });
    assert.equal((await joinAs(world.internalUrl, rude.id)).status, 200);
    const socket = new WebSocket(world.internalUrl.replace('http', 'ws') + RUNNER_LINK_PATH, {
      headers: { authorization: `Bearer ${credentialOf(rude.id)}` },
    });
    const closed = new Promise<number>((resolve) => socket.on('close', resolve));
    socket.on('open', () => socket.send(JSON.stringify({ type: 'heartbeat', ready: true })));
    assert.equal(await closed, 4001);
    assert.ok(rude);
  });

  it('closes on a message that is not JSON with a type, and stores nothing of it', async () => {
    await using runner = await world.runner({ script: silent });
    const vm = await create(world.call, world);
    await runner.assigned(vm.uuid);
    for (const bad of ['no json', 'null', '[]', '7', '{"seq":1}']) {
      runner.sendRaw(bad);
      await until(() => runner.closeCode !== undefined);
      assert.equal(runner.closeCode, 4001, bad);
      await runner.connect();
    }
    assert.equal(await status(vm.id), 'assigned');
  });

  it('ignores a message that it cannot read, stores nothing of it, and keeps the link', async () => {
    await using runner = await world.runner({ script: silent });
    const vm = await create(world.call, world);
    const { vm_id: id, generation } = await runner.assigned(vm.uuid);
    const report = (item: object): string => JSON.stringify({ type: 'report', seq: 1, items: [item] });
    const item = { kind: 'sandbox', id, generation, status: 'running', detail: {} };
    for (const bad of [
      '{"type":"dance"}',
      report({ ...item, status: 'happy' }),
      report({ ...item, id: 'x' }),
      report({ ...item, detail: { port_map: 'x' } }),
      report({ ...item, kind: 'tunnel' }),
      '{"type":"report","seq":"x","items":[]}',
      '{"type":"heartbeat"}',
    ]) {
      runner.sendRaw(bad);
      const seq = runner.report();
      await until(() => runner.acked >= seq);
      assert.equal(runner.closeCode, undefined, bad);
    }
    assert.equal(await status(vm.id), 'assigned');
  });

  it('names in its acknowledgement what it could not read of a report, and stores the rest', async () => {
    await using runner = await world.runner({ script: silent });
    const vm = await create(world.call, world);
    const { vm_id: id, generation } = await runner.assigned(vm.uuid);
    const other = randomUUID();
    const seq = ++runner.seq;
    runner.sendRaw(
      JSON.stringify({
        type: 'report',
        seq,
        items: [
          { kind: 'tunnel', id: other, generation: 1, status: 'attached', detail: {} },
          { kind: 'sandbox', id, generation, status: 'running', detail: { vm_ip: '172.16.0.2' } },
        ],
      }),
    );
    await until(() => runner.acked >= seq);
    assert.equal(await status(vm.id), 'running');
    const ack = runner.received.find((message) => message.type === 'ack' && message.seq === seq);
    assert.deepEqual(ack, {
      type: 'ack',
      seq,
      unsupported: [{ kind: 'tunnel', id: other, generation: 1, error: 'the kind tunnel is not known' }],
    });
  });

  it('survives any JSON at all', async () => {
    await using runner = await world.runner({ script: silent });
    await fc.assert(
      fc.asyncProperty(fc.json(), async (text) => {
        runner.sendRaw(text);
        const seq = runner.report();
        await until(() => runner.closeCode !== undefined || runner.acked >= seq);
        if (runner.closeCode === undefined) return;
        assert.equal(runner.closeCode, 4001);
        await runner.connect();
      }),
      { numRuns: propertyRuns(20) },
    );
  });

  it('takes a thousand observations in one message, in their order', async () => {
    await using runner = await world.runner({ script: silent });
    const made = await Promise.all(Array.from({ length: 20 }, () => create(world.call, world)));
    const assignments: Assignment[] = await Promise.all(made.map((vm) => runner.assigned(vm.uuid)));
    const reports = assignments.flatMap((one) => [
      ...(['building', 'booting', 'running'] as const).map((status) => ({
        kind: 'sandbox' as const,
        id: one.vm_id,
        generation: one.generation,
        status,
        detail: {},
      })),
      ...Array.from({ length: 47 }, () => ({
        kind: 'sandbox' as const,
        id: randomUUID(),
        generation: 1,
        status: 'running' as const,
        detail: {},
      })),
    ]);
    const seq = runner.report(...reports);
    await until(() => runner.acked >= seq);
    for (const vm of made) assert.equal(await status(vm.id), 'running');
  });

  it('syncs no faster than its runner reads, however many assignments there are', async () => {
    await using runner = await world.runner({ script: silent });
    const vm = await create(world.call, world);
    await runner.assigned(vm.uuid);
    // As large as environments may be, and as many of them as fit on a machine.
    const { rowCount } = await world.database.pool.query(
      `with copies as (
         insert into sandboxes
         select (jsonb_populate_record(s, jsonb_build_object('id', gen_random_uuid(), 'env_bytes', 1000000))).*
           from sandboxes s, generate_series(1, 90) where s.id = $1 returning id
       )
       insert into sandbox_env select c.id, e.env from copies c,
              (select jsonb_object_agg('V' || n, repeat('x', 60000)) as env from generate_series(1, 17) n) e`,
      [vm.uuid],
    );
    assert.equal(rowCount, 90);
    runner.drop();
    runner.assignments.clear();
    await runner.connect();
    assert.deepEqual([runner.assignments.size, runner.closeCode], [91, undefined]);
    await world.database.pool.query('delete from sandboxes where job_id = $1', [vm.jobId]);
  });

  it('splits a sync that would be too large to send', async () => {
    await using runner = await world.runner({
      script: silent,
      facts: { ...FACTS, cores: 64, mem_mib: 1_000_000, disk_mib: 1_000_000 },
    });
    const env = Object.fromEntries(
      Array.from({ length: 14 }, (_, index) => [`V${index}`, 'x'.repeat(65_000)]),
    );
    const made = await Promise.all(Array.from({ length: 12 }, () => create(world.call, world, { env })));
    await Promise.all(made.map((vm) => runner.assigned(vm.uuid)));
    runner.drop();
    runner.assignments.clear();
    await runner.connect();
    const syncs = runner.received.filter((message) => message.type === 'sync');
    assert.ok(syncs.length > 1);
    assert.deepEqual(
      syncs.map((message) => message.more ?? false),
      [...syncs.slice(1).map(() => true), false],
    );
    for (const vm of made) assert.deepEqual(runner.assignments.get(vm.uuid)?.spec.env, env);
  });
});

describe('a runner that is silent for too long', () => {
  it('loses its sandboxes, which say so; delete works; persistent ones return with it', async () => {
    await using mine = await startWorld({ limits: { runnerLostAfterMs: 3_000 } });
    const runner = await mine.runner();
    const ephemeral = await create(mine.call, mine);
    const persistent = await create(mine.call, mine, { persistent: true });
    const doomed = await create(mine.call, mine);
    for (const vm of [ephemeral, persistent, doomed]) await waitFor(mine.call, vm.id, 'running');
    const before = runner.assignments.get(persistent.uuid) as Assignment;
    runner.drop();
    const lost = await waitFor(mine.call, ephemeral.id, 'lost');
    assert.match(lost.error ?? '', /has not been heard from for/);
    await waitFor(mine.call, persistent.id, 'lost');
    await mine.call('DELETE', `/vms/${doomed.id}`);
    assert.equal((await mine.call('GET', `/vms/${doomed.id}`)).body.status, 'deleted');
    assert.equal((await mine.call('GET', '/healthz')).status, 503);

    await runner.connect();
    assert.equal(runner.assignments.get(ephemeral.uuid)?.desired, 'deleted');
    assert.equal(runner.assignments.get(doomed.uuid)?.desired, 'deleted');
    const again = runner.assignments.get(persistent.uuid) as Assignment;
    assert.deepEqual([again.desired, again.generation], ['running', before.generation + 1]);
    await until(async () => (await mine.call('GET', `/vms/${persistent.id}`)).body.status === 'running');
    assert.equal((await mine.call('GET', `/vms/${ephemeral.id}`)).body.status, 'lost');
    await until(async () => {
      const rows = await inspectSandboxes(mine.database);
      return rows.filter((row) => row.assigned_to_runner).length === 1;
    });
  });

  it('is not lost while it sends messages, for any length of time', async () => {
    await using mine = await startWorld({ limits: { runnerLostAfterMs: 3_000, linkSilentMs: 60_000 } });
    await mine.runner();
    const vm = await create(mine.call, mine);
    await waitFor(mine.call, vm.id, 'running');
    assert.equal((await mine.call('GET', `/vms/${vm.id}?wait=lost&timeout_ms=5000`)).body.status, 'running');
  });

  it('keeps its connection when the server stalled, and has not read yet what it has sent', async () => {
    await using mine = await startWorld({ limits: { linkSilentMs: 3_000 } });
    const runner = await mine.runner();
    Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, 3_500);
    await mine.control.runTask('runner-heartbeat');
    const seq = runner.report();
    await until(() => runner.acked >= seq || runner.closeCode !== undefined);
    assert.equal(runner.closeCode, undefined);
  });

  it('is disconnected when its connection is open and silent', async () => {
    await using mine = await startWorld({ limits: { runnerLostAfterMs: 3_000, linkSilentMs: 1_000 } });
    const runner = await mine.runner({ mute: true });
    await until(() => runner.closeCode !== undefined);
    assert.equal(runner.closeCode, 4003);
  });
});
