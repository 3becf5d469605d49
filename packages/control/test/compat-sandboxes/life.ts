/** Stops, starts, deletions and previews. */
import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { isLinkToken } from '@releap/contract';
import { create as createNative, until, waitFor } from '@releap/testing/world';
import { facade, refused } from '../support/compat.ts';
import { call, create, ids, native, world } from '../support/compat-sandboxes.ts';

describe('the life of a sandbox', () => {
  it('stops for good, is shown as stopped until it is deleted, and frees its name then', async () => {
    const { id } = await create({ name: 'short', labels: { a: 'b' } });
    // What the SDK sends: no body, and the content type of a form.
    const form = { headers: { 'content-type': 'application/x-www-form-urlencoded' } };
    const { status, body: stopped } = await call('POST', `/sandbox/${id}/stop?force=false`, undefined, form);
    assert.deepEqual([status, stopped.state, stopped.desiredState], [200, 'stopped', 'stopped']);
    assert.deepEqual((await call('GET', '/sandbox/short')).body.labels, { a: 'b' });
    assert.deepEqual(await ids('states=stopped&name=short'), [id]);
    assert.equal((await call('POST', `/sandbox/${id}/stop`)).body.state, 'stopped');
    assert.match(
      await refused(call('POST', `/sandbox/${id}/start`, undefined, form), 501),
      /start of a stopped sandbox/,
    );
    assert.equal((await call('GET', `/sandbox/${id}`)).body.state, 'stopped');
    assert.match(await refused(call('POST', '/sandbox', { name: 'short' }), 409), /"short"/);
    assert.equal((await call('DELETE', '/sandbox/short')).status, 200);
    assert.match(await refused(call('GET', `/sandbox/${id}`), 404), /not found/);
    assert.match(await refused(call('DELETE', `/sandbox/${id}`), 404), /not found/);
    await create({ name: 'short' });
  });

  it('starts one that runs, records activity, and says where the toolbox is', async () => {
    const { id, lastActivityAt } = await create();
    assert.equal((await call('POST', `/sandbox/${id}/start`)).body.state, 'started');
    const touched = await call('POST', `/sandbox/${id}/last-activity`);
    assert.deepEqual([touched.status, touched.body.lastActivityAt > lastActivityAt], [201, true]);
    assert.deepEqual((await call('GET', `/sandbox/${id}/toolbox-proxy-url`)).body, {
      url: 'http://127.0.0.1:1',
    });
    assert.equal((await call('DELETE', `/sandbox/${id}`)).body.state, 'destroyed');
    await until(async () => (await call('GET', `/sandbox/${id}`)).status === 404);
  });

  it("shows sandboxes of the API, and stops and starts persistent ones; another project's are unknown", async () => {
    const { id } = await createNative(world.call, world, { persistent: true, name: 'native' });
    await waitFor(world.call, id, 'running');
    const mine = facade(world.call);
    const { body } = await mine('GET', '/sandbox/native');
    assert.deepEqual([body.id, body.labels, body.cpu], [id, {}, 1]);
    assert.equal((await mine('POST', '/sandbox/native/stop')).body.state, 'stopped');
    assert.equal((await mine('POST', '/sandbox/native/start')).body.state, 'started');
    await world.call('POST', `/vms/${id}/pause`);
    await until(async () => (await mine('GET', '/sandbox/native')).body.state === 'paused');
    assert.equal((await mine('POST', '/sandbox/native/start')).body.state, 'started');
    for (const [method, path] of [
      ['GET', ''],
      ['DELETE', ''],
      ['POST', '/stop'],
      ['POST', '/start'],
    ] as const)
      assert.match(await refused(call(method, `/sandbox/${id}${path}`), 404), /not found/);
  });

  it('gives preview URLs of a private endpoint, and signed ones', async () => {
    const { id } = await create();
    const { body: plain } = await call('GET', `/sandbox/${id}/ports/3000/preview-url`);
    // Without a slash: clients write `url + '/path'`.
    assert.deepEqual([plain.sandboxId, plain.url], [id, `https://3000-${id}.preview.test`]);
    const { body: signed } = await call(
      'GET',
      `/sandbox/${id}/ports/3000/signed-preview-url?expiresInSeconds=60`,
    );
    assert.deepEqual(
      [signed.sandboxId, signed.port, signed.url],
      [id, 3000, `https://3000-${signed.token}.preview.test`],
    );
    assert.ok(isLinkToken(signed.token), signed.token);
    const { body: endpoints } = await native('GET', `/vms/${id}/endpoints`);
    assert.deepEqual(
      endpoints.endpoints.map(({ port, public: open }: { port: number; public: boolean }) => [port, open]),
      [[3000, false]],
    );
    for (const port of ['0', '65536', 'x'])
      assert.match(await refused(call('GET', `/sandbox/${id}/ports/${port}/preview-url`), 400), /port/);
    await call('POST', `/sandbox/${id}/stop`);
    assert.match(await refused(call('GET', `/sandbox/${id}/ports/3000/preview-url`), 409), /is stopped/);
  });
});
