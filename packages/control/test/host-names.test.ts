/** Names of hosts: the operator's wins over the one that a runner declares. */
import assert from 'node:assert/strict';
import { randomUUID } from 'node:crypto';
import { after, before, it } from 'node:test';
import { host, startWorld, type Answer, type World } from '@releap/testing/world';

let world: World;
before(async () => {
  world = await startWorld();
});
after(() => world[Symbol.asyncDispose]());

const rename = (id: string, name: unknown): Promise<Answer> =>
  world.operator('PUT', `/operator/hosts/${id}/name`, { name });
async function nameOf(id: string): Promise<unknown[]> {
  const record = await host(world, id);
  return [record?.name, record?.renamed, record?.facts.name];
}

it('the name of the operator wins over the declared one, until it is cleared, and survives a new connection', async () => {
  const runner = await world.runner({ facts: { name: 'declared' } });
  const { id } = runner;
  assert.deepEqual(await nameOf(id), ['declared', false, 'declared']);
  const renamed = await rename(id, '  rack 4, left ');
  assert.deepEqual([renamed.status, renamed.body.host.name], [200, 'rack 4, left'], renamed.text);
  assert.deepEqual(await nameOf(id), ['rack 4, left', true, 'declared']);
  runner.drop();
  await world.runner({ id, facts: { name: 'otherwise' } });
  assert.deepEqual(await nameOf(id), ['rack 4, left', true, 'otherwise']);
  assert.equal((await rename(id, null)).status, 200);
  assert.deepEqual(await nameOf(id), ['otherwise', false, 'otherwise']);
});

it('a host that declares none has none, and several may have the same', async () => {
  const hosts = [await world.runner(), await world.runner()];
  for (const { id } of hosts) {
    assert.deepEqual(await nameOf(id), [null, false, undefined]);
    assert.equal((await rename(id, 'twin')).status, 200);
    assert.deepEqual(await nameOf(id), ['twin', true, undefined]);
  }
});

it('what is no name, and an unknown or forgotten host, are refused; each call is in the audit', async () => {
  const { id } = await world.runner();
  for (const name of ['', '   ', 'a\nb', 'a\u001b[2Jb', 'a\u202eb', 'x'.repeat(65), 7, undefined])
    assert.equal((await rename(id, name)).status, 400, JSON.stringify(name));
  assert.equal((await host(world, id))?.renamed, false);
  assert.equal((await rename(id, 'ž'.repeat(64))).status, 200);
  await world.database.pool.query('update runners set forgotten_at = now() where id = $1', [id]);
  for (const unknown of [id, randomUUID(), 'x']) {
    const { status, body } = await rename(unknown, 'name');
    assert.deepEqual([status, body.code], [404, 'host_not_found']);
  }
  const { body } = await world.operator('GET', '/operator/audit');
  const entry = body.entries.find(
    (one: { subject: string; outcome: string }) => one.subject === id && one.outcome === 'done',
  );
  assert.deepEqual([entry.operation, entry.request], ['setHostName', { name: 'ž'.repeat(64) }]);
});
