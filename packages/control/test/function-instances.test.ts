/** Functions on the gateway link: who may call them, and the leases of their instances. */
import assert from 'node:assert/strict';
import { after, beforeEach, describe, it } from 'node:test';
import { newToken, newUuid, tokenDigest } from '@releap/contract';
import { GatewayClient, type GatewayAnswer } from '@releap/testing/gateway-client';
import { create, obedient, silent, startWorld, until, waitFor, type Script } from '@releap/testing/world';
import { mintApiKey, revokeApiKey } from '../src/index.ts';
import { insertFunction, insertVersion } from './support/function-versions.ts';

/** Longer than a busy machine stops a process: leases are renewed four times in it. */
const LEASE_MS = 5_000;

/** What the runner does with sandboxes. */
let script: Script = obedient;
const ids = { one: newUuid(), two: newUuid() };

const world = await startWorld({
  // The grace ends when tests say so: on a busy machine it would end before another gateway has asked.
  limits: { functionLeaseMs: LEASE_MS, functionGraceMs: 600_000, sweepMs: 100 },
});
const runner = await world.runner({ script: (assignment, self) => script(assignment, self) });
/** Two gateways, as of two machines. */
const one = await new GatewayClient(world.internalUrl).open(ids.one);
let two = await new GatewayClient(world.internalUrl).open(ids.two);
beforeEach(() => {
  script = obedient;
});
after(async () => {
  one[Symbol.dispose]();
  two[Symbol.dispose]();
});

const refused = (answer: GatewayAnswer): { status: number; error: string } => {
  if (answer.type !== 'refusal') assert.fail(JSON.stringify(answer));
  return answer;
};
/** Sandboxes of the function that are not deleted. */
async function live(functionId: string): Promise<string[]> {
  const { rows } = await world.database.pool.query<{ id: string }>(
    `select s.id from function_instances i join sandboxes s on s.id = i.sandbox_id
      where i.function_id = $1 and s.status not in ('deleting', 'deleted') order by s.created_at`,
    [functionId],
  );
  return rows.map(({ id }) => id);
}
/** The grace of its instances that were released is over. */
async function endGrace(functionId: string): Promise<void> {
  await world.database.pool.query(
    `update function_instances set lease_until = now() - interval '1 hour' where function_id = $1 and gateway_id is null`,
    [functionId],
  );
}
const isGone = (functionId: string) =>
  until(async () => {
    await endGrace(functionId);
    return (await live(functionId)).length === 0;
  });

describe('a function for a gateway', () => {
  const ask = (name: string, token?: string, project?: string): Promise<GatewayAnswer> =>
    one.ask({ kind: 'function', function: name, ...(project && { project }) }, token);

  it('is the current version, for a key of its project and for a server of the control plane', async () => {
    const fn = await insertFunction(world, { maxInstances: 3 });
    const expected = {
      id: fn.id,
      project_id: world.call.projectId,
      org_id: world.orgId,
      name: fn.name,
      version_id: fn.versionId,
      version: 1,
      port: 8080,
      timeout_s: 300,
      scaledown_window_s: 60,
      max_concurrency: 1,
      max_instances: 3,
      revision: 1,
    };
    const answer = await ask(fn.name, world.call.key);
    if (answer.type !== 'function') assert.fail(JSON.stringify(answer));
    assert.deepEqual(answer.function, expected);
    assert.ok(answer.ttl_ms > 0);
    for (const token of [undefined, '', 'x', newToken('apiKey'), newToken('function'), newToken('sandbox')])
      assert.equal(refused(await ask(fn.name, token)).status, 401);
  });

  it('404 for unknown names, other projects, and without a version that can serve', async () => {
    const { key } = await world.stranger();
    const fn = await insertFunction(world);
    assert.deepEqual(
      { ...(await ask(fn.name, key)), id: 0 },
      {
        type: 'refusal',
        id: 0,
        status: 404,
        error: `function "${fn.name}" not found`,
        code: 'function_not_found',
      },
    );
    for (const unknown of ['nothing', 'a\0b', '', 'ü', 'x'.repeat(128)]) {
      assert.equal(refused(await ask(unknown, world.call.key)).status, 404, unknown);
      assert.equal(refused(await ask(unknown, undefined, world.call.projectId)).status, 404, unknown);
    }
    const building = await insertFunction(world, { current: false, state: 'building' });
    assert.match(refused(await ask(building.name, world.call.key)).error, /has no current version/);
  });

  it('hides at the public endpoint what is not public, and asks for the token of what is', async () => {
    const { projectId } = world.call;
    const [hidden, open] = [await insertFunction(world), await insertFunction(world, { public: true })];
    const token = newToken('function');
    const secured = await insertFunction(world, { public: true, tokenHash: tokenDigest(token) });
    for (const project of [projectId, newUuid(), 'malformed'])
      assert.deepEqual(
        { ...(await ask(hidden.name, world.call.key, project)), id: 0 },
        {
          type: 'refusal',
          id: 0,
          status: 404,
          error: `function "${hidden.name}" not found`,
          code: 'function_not_found',
        },
      );
    assert.equal((await ask(open.name, undefined, projectId)).type, 'function');
    assert.equal((await ask(secured.name, token, projectId)).type, 'function');
    for (const wrong of [undefined, newToken('function'), world.call.key])
      assert.equal(refused(await ask(secured.name, wrong, projectId)).status, 401);
    assert.equal(refused(await ask(secured.name, token)).status, 401, 'it opens nothing else');
  });

  it('is revoked when it changes, on every server, and when the key is', async () => {
    const fn = await insertFunction(world);
    const key = await mintApiKey(world.database.pool, world.call.projectId, 'short-lived');
    const [changed, withKey] = [await ask(fn.name, world.call.key), await ask(fn.name, key.token)];
    await revokeApiKey(world.database.pool, key.id);
    await until(() => one.revokedAs(withKey.id) === true);
    assert.equal(one.revokedAs(changed.id), undefined);
    await insertVersion(world, fn.id, 2);
    await until(() => one.revokedAs(changed.id) === false);
    const newer = await ask(fn.name, world.call.key);
    assert.partialDeepStrictEqual(newer, { function: { version: 2, revision: 2 } });
    await world.database.pool.query('delete from functions where id = $1', [fn.id]);
    await until(() => one.revokedAs(newer.id) === false);
  });
});

describe('an instance of a function', () => {
  it('is a sandbox of the service with the handler, its port and environment, hidden from tenants', async () => {
    const fn = await insertFunction(world, { handler: ['/bin/serve', '-x'], env: { A: '1' } });
    const grant = await one.instance(fn.versionId);
    const { spec } = await runner.assigned(grant.vm_id);
    assert.partialDeepStrictEqual(spec, {
      env: { A: '1', RLP_FN_PORT: '8080' },
      entrypoint: ['/bin/serve', '-x'],
      mode: 'burstable',
      cpu: 0.125,
      vcpus: 1,
      mem_mib: 256,
      persistent: false,
    });
    assert.equal((await world.call('GET', '/vms')).body.vms.length, 0);
    assert.equal((await world.call('GET', `/vms/${grant.vm_id}`)).status, 404);
    assert.equal(refused(await one.resolve(grant.vm_id, world.call.key)).status, 404, 'no toolbox');
    assert.equal(refused(await one.ask({ kind: 'ssh', sandbox: grant.vm_id }, world.call.key)).status, 404);
    one.release([grant.id]);
    await isGone(fn.id);
  });

  it('is leased to one gateway: each request gets another, and max_instances bounds all gateways', async () => {
    const fn = await insertFunction(world, { maxInstances: 3 });
    const first = [one, two, one].map((gateway) => gateway.instance(fn.versionId));
    const grants = await Promise.all(first);
    assert.equal(new Set(grants.map(({ vm_id }) => vm_id)).size, 3);
    const fourth = two.begin({ kind: 'function-instance', version_id: fn.versionId });
    await until(() => one.pressed.includes(fn.id) && two.pressed.includes(fn.id));
    assert.equal((await live(fn.id)).length, 3);
    // What one gateway gives up the other gets.
    one.release([grants[0]?.id ?? 0]);
    assert.partialDeepStrictEqual(await fourth.answer, { type: 'grant', vm_id: grants[0]?.vm_id });
    assert.equal((await live(fn.id)).length, 3);
    one.release([grants[2]?.id ?? 0]);
    two.release([grants[1]?.id ?? 0, fourth.id]);
    await isGone(fn.id);
  });

  it('is renewed under its id, and stays beyond the lease while it is held', async () => {
    const fn = await insertFunction(world);
    const grant = await one.instance(fn.versionId);
    const target = { kind: 'function-instance', version_id: fn.versionId, instance: grant.vm_id };
    const renewed = await one.begin(target, undefined, grant.id).answer;
    assert.partialDeepStrictEqual(renewed, { type: 'grant', id: grant.id, vm_id: grant.vm_id });
    assert.equal(refused(await two.ask(target)).status, 409, 'it is not of the other gateway');
    const renewals = async (): Promise<number> => {
      const { rows } = await world.database.pool.query<{ left: number }>(
        `select extract(epoch from lease_until - created_at)::double precision * 1000 as left from function_instances where sandbox_id = $1`,
        [grant.vm_id],
      );
      return rows[0]?.left ?? 0;
    };
    await until(async () => (await renewals()) > 2 * LEASE_MS);
    assert.deepEqual(await live(fn.id), [grant.vm_id]);
    one.release([grant.id], true);
    await until(async () => (await live(fn.id)).length === 0);
  });

  it('is there for its gateway after a reconnect, for another one after the lease, and for none after the grace', async () => {
    const fn = await insertFunction(world);
    const gatewayId = newUuid();
    let client = await new GatewayClient(world.internalUrl).open(gatewayId);
    const { vm_id } = await client.instance(fn.versionId);
    client[Symbol.dispose]();
    client = await new GatewayClient(world.internalUrl).open(gatewayId);
    assert.equal((await client.instance(fn.versionId, vm_id)).vm_id, vm_id);
    client[Symbol.dispose]();
    // Its lease has run out when this is asked for: a request that waits is not needed to get it.
    await world.database.pool.query(
      'update function_instances set lease_until = now() where sandbox_id = $1',
      [vm_id],
    );
    const adopted = await two.instance(fn.versionId);
    assert.equal(adopted.vm_id, vm_id);
    client = await new GatewayClient(world.internalUrl).open(gatewayId);
    const late = await client.ask({ kind: 'function-instance', version_id: fn.versionId, instance: vm_id });
    assert.equal(refused(late).status, 409);
    client[Symbol.dispose]();
    two[Symbol.dispose]();
    two = await new GatewayClient(world.internalUrl).open(ids.two);
    // Of a connection that has closed nothing is renewed.
    const lapsed = `update function_instances set lease_until = now() - interval '1 hour'
                     where sandbox_id = $1 and lease_until < now()`;
    await until(async () => (await world.database.pool.query(lapsed, [vm_id])).rowCount === 1);
    await until(async () => (await live(fn.id)).length === 0);
  });

  it('is not left over by a request that is cancelled while it starts', async () => {
    script = silent;
    const fn = await insertFunction(world);
    const { id } = one.begin({ kind: 'function-instance', version_id: fn.versionId });
    await until(async () => (await live(fn.id)).length === 1);
    one.release([id]);
    await until(async () => {
      await endGrace(fn.id);
      const { rows } = await world.database.pool.query<{ desired: string }>(
        'select s.desired from function_instances i join sandboxes s on s.id = i.sandbox_id where i.function_id = $1',
        [fn.id],
      );
      return rows.every(({ desired }) => desired === 'deleted');
    });
  });

  it('says why it could not start, and leaves nothing', async () => {
    script = (assignment, self) => {
      if (assignment.desired === 'running')
        self.observe(assignment, { status: 'failed', error: 'no such image' });
      else return obedient(assignment, self);
    };
    const fn = await insertFunction(world);
    const target = { kind: 'function-instance', version_id: fn.versionId };
    const failed = refused(await one.ask(target));
    assert.deepEqual([failed.status, failed.error], [502, 'the instance does not run: no such image']);
    await isGone(fn.id);
    const unable = await insertFunction(world, { state: 'failed', error: 'nothing listens on port 8080' });
    const why = refused(await one.ask({ ...target, version_id: unable.versionId }));
    assert.equal(why.status, 502);
    assert.match(why.error, /version 1 of function .* cannot serve: nothing listens on port 8080/);
    assert.equal(refused(await one.ask({ ...target, version_id: newUuid() })).status, 404);
    assert.equal((await world.call('DELETE', `/fns/${fn.name}`)).status, 204);
    assert.equal(refused(await one.ask(target)).status, 404, 'its function is deleted');
    using nameless = await new GatewayClient(world.internalUrl).open();
    assert.equal(refused(await nameless.ask(target)).status, 400);
  });

  it('is revoked when its sandbox ends', async () => {
    const fn = await insertFunction(world);
    const grant = await one.instance(fn.versionId);
    const assignment = await runner.assigned(grant.vm_id);
    runner.observe(assignment, { status: 'failed', error: 'the VMM died' });
    await until(() => one.revokedAs(grant.id) === false);
    await isGone(fn.id);
  });

  it('is marked once it has ended: what looks for those that live reads its row no more', async () => {
    const fn = await insertFunction(world);
    const grant = await one.instance(fn.versionId);
    const read = async (): Promise<{ status: string; ended: boolean } | undefined> =>
      (
        await world.database.pool.query<{ status: string; ended: boolean }>(
          `select s.status, i.ended_at is not null as ended from function_instances i join sandboxes s on s.id = i.sandbox_id
            where i.sandbox_id = $1`,
          [grant.vm_id],
        )
      ).rows[0];
    assert.equal((await read())?.ended, false);
    one.release([grant.id], true);
    await until(async () => (await read())?.status === 'deleted');
    assert.equal((await read())?.ended, true);
  });

  it('of an older version makes way for the newer one where the cap is reached', async () => {
    const fn = await insertFunction(world, { maxInstances: 1 });
    const old = await one.instance(fn.versionId);
    const newer = await insertVersion(world, fn.id, 2, { maxInstances: 1 });
    one.pressed.length = 0;
    const { answer, id } = one.begin({ kind: 'function-instance', version_id: newer });
    await until(() => one.pressed.includes(fn.id));
    one.release([old.id]);
    const grant = await answer;
    assert.equal(grant.type, 'grant');
    assert.deepEqual(await live(fn.id), [(grant as { vm_id: string }).vm_id]);
    one.release([id]);
    await isGone(fn.id);
  });

  it('is given up on a host that is drained, and taken by no other gateway', async (t) => {
    const fn = await insertFunction(world);
    const grant = await one.instance(fn.versionId);
    // As one that was restored from memory.
    await world.database.pool.query('update sandboxes set persistent = true where id = $1', [grant.vm_id]);
    await world.database.pool.query('update runners set draining_since = now()');
    const undrain = () => world.database.pool.query('update runners set draining_since = null');
    t.after(undrain);
    await until(() => one.retired.includes(grant.vm_id) && two.retired.includes(grant.vm_id));
    await world.control.runTask('host-drain');
    const { rows } = await world.database.pool.query('select status from sandboxes where id = $1', [
      grant.vm_id,
    ]);
    assert.deepEqual(rows, [{ status: 'running' }], 'it may serve requests');
    one.release([grant.id]);
    const { answer, id } = two.begin({ kind: 'function-instance', version_id: fn.versionId });
    await until(async () => {
      await endGrace(fn.id);
      return !(await live(fn.id)).includes(grant.vm_id);
    });
    await undrain();
    await world.control.runTask('placement');
    const other = await answer;
    assert.equal(other.type, 'grant');
    two.release([id]);
    await isGone(fn.id);
  });

  it('makes way for a sandbox that waits for a host, if it serves nothing', async (t) => {
    const fn = await insertFunction(world);
    const grant = await one.instance(fn.versionId);
    await world.database.pool.query('update runners set draining_since = now()');
    t.after(() => world.database.pool.query('update runners set draining_since = null'));
    const waits = async (values: object): Promise<string> => {
      const { body } = await world.call('POST', '/vms', { image: 'busybox', mem_mib: 1_024, ...values });
      await world.database.pool.query(
        `update sandboxes set created_at = now() - interval '10 seconds' where status = 'pending'`,
      );
      return body.vm_id as string;
    };
    one.wanted.length = 0;
    const vms = [await waits({ spot: true })];
    await world.control.runTask('function-shortages');
    assert.deepEqual(one.wanted, []);
    vms.push(await waits({ cpu: 0.25 }));
    await until(() => one.wanted.length > 0);
    // As many as have the memory of the sandbox.
    assert.deepEqual(one.wanted[0], { instances: [grant.vm_id], most: 4 });
    for (const id of vms) await world.call('DELETE', `/vms/${id}`);
    one.release([grant.id], true);
    await isGone(fn.id);
  });

  it('is metered as a start until its gateway says that the handler listens, and not as a sandbox', async () => {
    const fn = await insertFunction(world);
    const grants = [await one.instance(fn.versionId), await one.instance(fn.versionId)];
    const ids = grants.map(({ vm_id: id }) => id);
    const metered = async (): Promise<string[]> => {
      const { rows } = await world.database.pool.query<{ sandbox_id: string; kind: string }>(
        'select sandbox_id, kind from sandbox_meters where sandbox_id = any($1) and closed_at is null',
        [ids],
      );
      assert.equal(
        rows.every(({ kind }) => kind === 'start'),
        true,
      );
      return rows.map(({ sandbox_id: id }) => id);
    };
    assert.deepEqual((await metered()).toSorted(), ids.toSorted());
    const [first = '', second = ''] = ids;
    // Not its gateway, and no instance.
    two.send({ type: 'listening', instances: [{ id: first, for_ms: 0 }] });
    one.send({
      type: 'listening',
      instances: [
        { id: 'x', for_ms: 0 },
        { id: second, for_ms: 5 },
      ],
    });
    await until(async () => (await metered()).length === 1);
    assert.deepEqual(await metered(), [first]);
    one.send({ type: 'listening', instances: [{ id: first, for_ms: Number.MAX_SAFE_INTEGER }] });
    await until(async () => (await metered()).length === 0);
    one.release(grants.map(({ id }) => id));
    await isGone(fn.id);
  });
});

it('402 without credits', async () => {
  await using own = await startWorld({ billing: { mode: 'enforce' } });
  using gateway = await new GatewayClient(own.internalUrl).open(newUuid());
  await own.database.pool.query('update credit_accounts set balance = 0');
  const fn = await insertFunction(own, { public: true });
  const target = { kind: 'function', function: fn.name };
  assert.equal(refused(await gateway.ask(target, own.call.key)).status, 402);
  assert.equal(refused(await gateway.ask({ ...target, project: own.call.projectId })).status, 402);
  const instance = { kind: 'function-instance', version_id: fn.versionId };
  assert.equal(refused(await gateway.ask(instance)).status, 402);
});

it('an instance that is released, or waited for, revokes no grant of its function at the gateways of other servers', async () => {
  const fn = await insertFunction(world, { maxInstances: 1 });
  const second = await world.another();
  try {
    using client = await new GatewayClient(second.internalUrl).open();
    const held = client.begin({ kind: 'function', function: fn.name }, world.call.key);
    assert.equal((await held.answer).type, 'function');
    const vm = await create(world.call, world);
    await waitFor(world.call, vm.id, 'running');
    const marker = await client.grant(vm.id, world.call.key);

    const target = { kind: 'function-instance', version_id: fn.versionId };
    await one.instance(fn.versionId);
    const waiting = two.begin(target);
    await until(() => client.pressed.includes(fn.id));
    one.release([...Array(200).keys()]);
    assert.equal((await waiting.answer).type, 'grant');
    two.release([waiting.id]);
    await world.call('DELETE', `/vms/${vm.id}`);
    await until(() => client.revokedAs(marker.id) !== undefined);
    assert.equal(client.revokedAs(held.id), undefined);
  } finally {
    await second.close();
  }
});
