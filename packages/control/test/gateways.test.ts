/** The control plane's end of the gateway link: decisions, and their revocation. */
import assert from 'node:assert/strict';
import { after, describe, it } from 'node:test';
import { COMPAT_PREFIX, newToken, TOOLBOX_KEY } from '@releap/contract';
import { GatewayClient } from '@releap/testing/gateway-client';
import { AUDIENCE, TestIssuer } from '@releap/testing/issuer';
import { JOIN_TOKEN, OPERATOR_TOKEN } from '@releap/testing/credentials';
import { create, startWorld, until, waitFor } from '@releap/testing/world';
import { mintApiKey, revokeApiKey } from '../src/index.ts';

const world = await startWorld();
await world.runner();
const gateway = await new GatewayClient(world.internalUrl).open();
after(() => gateway[Symbol.dispose]());

async function running(body: object = {}): Promise<Awaited<ReturnType<typeof create>>> {
  const vm = await create(world.call, world, body);
  await waitFor(world.call, vm.id, 'running');
  return vm;
}

describe('a decision on the toolbox of a sandbox', () => {
  it('says where a running sandbox is, to its project and to its own token', async () => {
    const vm = await running();
    for (const token of [world.call.key, vm.token]) {
      for (const id of [vm.id, vm.uuid]) {
        const { vm_id, data_url, ttl_ms } = await gateway.grant(id, token);
        assert.equal(vm_id, vm.uuid);
        assert.match(data_url, /^http:\/\/127\.0\.0\.1:\d+$/);
        assert.ok(ttl_ms > 0);
      }
    }
  });

  it('is the same for SSH to it', async () => {
    const vm = await running();
    const ask = (token: string) => gateway.ask({ kind: 'ssh', sandbox: vm.id }, token);
    for (const token of [world.call.key, vm.token])
      assert.partialDeepStrictEqual(await ask(token), { type: 'grant', vm_id: vm.uuid });
    assert.partialDeepStrictEqual(await ask(newToken('apiKey')), { type: 'refusal', status: 401 });
  });

  it('opens to the preview token that the facade issues for port 1 until its endpoint is removed, and to no other', async () => {
    const vm = await running();
    const preview = async (port: number): Promise<string> =>
      (await world.call('GET', `${COMPAT_PREFIX}/sandbox/${vm.id}/ports/${port}/preview-url`)).body.token;
    const token = await preview(TOOLBOX_KEY.port);
    const { id, vm_id } = await gateway.grant(vm.id, token);
    assert.equal(vm_id, vm.uuid);
    const target = { kind: 'preview', sandbox: vm.id, port: TOOLBOX_KEY.port };
    assert.equal((await gateway.ask(target, token)).type, 'grant');

    const { body: link } = await world.call('POST', `/vms/${vm.id}/preview-links`, { port: 1 });
    const other = await running();
    for (const [sandbox, wrong] of [
      [vm.id, link.token],
      [vm.id, await preview(3000)],
      [other.id, token],
    ] as const)
      assert.partialDeepStrictEqual(await gateway.resolve(sandbox, wrong), { type: 'refusal', status: 401 });
    const ssh = await gateway.ask({ kind: 'ssh', sandbox: vm.id }, token);
    assert.partialDeepStrictEqual(ssh, { type: 'refusal', status: 401 });

    const { body } = await world.call('GET', `/vms/${vm.id}/endpoints`);
    await world.call('DELETE', `/vms/${vm.id}/endpoints/${body.endpoints[0].id}`);
    await until(() => gateway.revokedAs(id) === true);
    assert.partialDeepStrictEqual(await gateway.resolve(vm.id, token), { type: 'refusal', status: 401 });
  });

  it("is made with the gateway's credential; no other one opens the link", async () => {
    for (const credential of ['wrong', world.call.key, newToken('sandbox'), OPERATOR_TOKEN, JOIN_TOKEN]) {
      using client = new GatewayClient(world.internalUrl, credential);
      await assert.rejects(client.open());
    }
    using outside = new GatewayClient(world.url);
    await assert.rejects(outside.open(), 'not on the public listener');
  });

  it('401 on bad credentials, whether or not the sandbox exists', async () => {
    const vm = await create(world.call, world);
    for (const token of ['', 'x', newToken('apiKey'), newToken('sandbox'), newToken('secretPlaceholder')]) {
      const real = await gateway.resolve(vm.id, token);
      const unknown = await gateway.resolve('nothing', token);
      assert.deepEqual({ ...real, id: 0 }, { ...unknown, id: 0 });
      assert.equal((real as { status?: number }).status, 401);
    }
  });

  it("404 on a missing id and on another project's, in the same words; a token opens its own sandbox alone", async () => {
    const vm = await create(world.call, world);
    const other = await create(world.call, world);
    const stranger = await world.stranger();
    for (const id of [vm.id, vm.uuid, 'malformed', `here-${'b'.repeat(26)}`]) {
      const answer = await gateway.resolve(id, stranger.key);
      assert.deepEqual(
        { ...answer, id: 0 },
        {
          type: 'refusal',
          id: 0,
          status: 404,
          error: `sandbox ${JSON.stringify(id)} not found`,
          code: 'sandbox_not_found',
        },
      );
    }
    const wrong = await gateway.resolve(other.id, vm.token);
    assert.equal((wrong as { status?: number }).status, 401);
  });

  it('409 with the status when it does not run, 404 when it is deleted', async () => {
    const vm = await create(world.call, world, { region: 'here', gpu_host: 1 });
    await waitFor(world.call, vm.id, 'failed');
    const failed = await gateway.resolve(vm.id, vm.token);
    assert.match(JSON.stringify(failed), /"status":409,.*is failed, and must be running/);
    await world.call('DELETE', `/vms/${vm.id}`);
    assert.match(JSON.stringify(await gateway.resolve(vm.id, vm.token)), /"status":404/);
  });

  it('501 on a target of an unknown kind; messages that are unknown or malformed are ignored', async () => {
    gateway.send({ type: 'something-newer' });
    gateway.send({ type: 'resolve', id: 'x', target: 7 });
    const answer = await gateway.ask({ kind: 'hologram', sandbox: 'x' }, world.call.key);
    assert.match(JSON.stringify(answer), /"status":501,.*hologram/);
    const ticks = gateway.ticks;
    await until(() => gateway.ticks > ticks);
  });
});

describe('a grant is revoked', () => {
  it('when its sandbox is paused, and can be had again when it runs', async () => {
    const vm = await running({ persistent: true });
    const { id } = await gateway.grant(vm.id, world.call.key);
    await world.call('POST', `/vms/${vm.id}/pause`);
    await until(() => gateway.revokedAs(id) === false);
    await waitFor(world.call, vm.id, 'paused');
    assert.match(JSON.stringify(await gateway.resolve(vm.id, world.call.key)), /is paused/);
    await world.call('POST', `/vms/${vm.id}/resume`);
    await waitFor(world.call, vm.id, 'running');
    await gateway.grant(vm.id, world.call.key);
  });

  it('when its API key is revoked, with what was opened by it; those of other keys stay', async () => {
    const vm = await running();
    const key = await mintApiKey(world.database.pool, world.call.projectId, 'short-lived');
    const [mine, other] = [await gateway.grant(vm.id, key.token), await gateway.grant(vm.id, world.call.key)];
    await revokeApiKey(world.database.pool, key.id);
    await until(() => gateway.revokedAs(mine.id) === true);
    assert.equal(gateway.revokedAs(other.id), undefined);
    assert.match(JSON.stringify(await gateway.resolve(vm.id, key.token)), /"status":401/);
  });

  it('also after a change had revoked it without ending what was opened by it', async () => {
    const vm = await running({ persistent: true });
    const key = await mintApiKey(world.database.pool, world.call.projectId, 'twice');
    const { id } = await gateway.grant(vm.id, key.token);
    await world.call('POST', `/vms/${vm.id}/pause`);
    await until(() => gateway.revokedAs(id) === false);
    gateway.revoked.length = 0;
    await revokeApiKey(world.database.pool, key.id);
    await until(() => gateway.revokedAs(id) === true);
  });

  it('when its runner answers at another address', async (t) => {
    const vm = await running();
    const { id } = await gateway.grant(vm.id, world.call.key);
    t.after(() => world.database.pool.query(`update runners set data_url = replace(data_url, '/moved', '')`));
    await world.database.pool.query(`update runners set data_url = data_url || '/moved'`);
    await until(() => gateway.revokedAs(id) === false);
  });

  it('when another server has changed its sandbox', async () => {
    const vm = await running({ persistent: true });
    const second = await world.another();
    try {
      using client = await new GatewayClient(second.internalUrl).open();
      const { id } = await client.grant(vm.id, world.call.key);
      await world.call('POST', `/vms/${vm.id}/pause`);
      await until(() => client.revokedAs(id) === false);
    } finally {
      await second.close();
    }
  });

  it('not any more once the gateway has released it', async () => {
    const vm = await running();
    const key = await mintApiKey(world.database.pool, world.call.projectId, 'released');
    const [released, kept] = [await gateway.grant(vm.id, key.token), await gateway.grant(vm.id, key.token)];
    gateway.send({ type: 'release', ids: [released.id] });
    await revokeApiKey(world.database.pool, key.id);
    await until(() => gateway.revokedAs(kept.id) === true);
    assert.equal(gateway.revokedAs(released.id), undefined);
  });
});

it('a deleted project ends its grants', async () => {
  const issuer = await TestIssuer.start();
  const own = await startWorld({ oidc: { issuer: issuer.url, audience: AUDIENCE } });
  try {
    await own.runner();
    using client = await new GatewayClient(own.internalUrl).open();
    const vm = await create(own.call, own);
    await waitFor(own.call, vm.id, 'running');
    const { id } = await client.grant(vm.id, vm.token);
    await own.database.pool.query('update projects set deleted_at = now() where id = $1', [
      own.call.projectId,
    ]);
    await until(() => client.revokedAs(id) === true);
  } finally {
    await own[Symbol.asyncDispose]();
    await issuer.down();
  }
});
