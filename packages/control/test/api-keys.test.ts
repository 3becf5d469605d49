import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import { tablesWith } from '@releap/testing/inspect';
import { startSignedInWorld } from '@releap/testing/issuer';
import { caller } from '@releap/testing/world';
import { refused } from './support/management.ts';

const world = await startSignedInWorld();
const owner = await world.as('owner');

describe('API keys', () => {
  test('the token is shown once and works; lists show its prefix only', async () => {
    const { projectId } = await world.tenant(owner);
    const minted = await owner('POST', `/projects/${projectId}/api-keys`, { name: 'ci' });
    const { id, token, key_prefix: prefix } = minted.body;
    assert.deepEqual(minted.body, { id, name: 'ci', project_id: projectId, key_prefix: prefix, token });
    assert.match(token, /^rlp_[0-9A-Za-z]{43}$/);
    assert.ok(token.startsWith(prefix));
    const listed = await owner('GET', `/projects/${projectId}/api-keys`);
    assert.ok(!listed.text.includes(token));
    const key = listed.body.api_keys.find((one: { id: string }) => one.id === id);
    assert.deepEqual(
      { ...key, created_at: '' },
      {
        id,
        name: 'ci',
        project_id: projectId,
        key_prefix: prefix,
        created_at: '',
        revoked_at: null,
        last_used_at: null,
      },
    );
    assert.equal((await caller(() => world.url, token, '')('GET', '/vms')).status, 200);
    assert.ok((await tablesWith(world.database, prefix)).includes('api_keys'));
    assert.deepEqual(await tablesWith(world.database, token.slice(prefix.length)), []);
  });

  test('last_used_at is written down in batches, and not by the request', async () => {
    const use = async (): Promise<() => Promise<string | null>> => {
      const { projectId, key } = await world.tenant(owner);
      await key('GET', '/vms');
      return async () =>
        (await owner('GET', `/projects/${projectId}/api-keys`)).body.api_keys[0].last_used_at;
    };
    let used = await use();
    let first = await used();
    // A batch may be written right now, though not at each request.
    for (let tries = 0; tries < 3 && first !== null; tries += 1) {
      used = await use();
      first = await used();
    }
    assert.equal(first, null);
    await world.restart();
    assert.ok((await used()) !== null);
  });

  test('minting another default revokes the one before, others stay; in a race one default is left', async () => {
    const { projectId, key } = await world.tenant(owner);
    const other = await owner('POST', `/projects/${projectId}/api-keys`, { name: 'other' });
    const minted = await Promise.all(
      Array.from({ length: 6 }, () => owner('POST', `/projects/${projectId}/api-keys`, {})),
    );
    assert.ok(
      minted.every((answer) => answer.status === 200),
      minted.map((answer) => answer.text).join(),
    );
    const live = (await owner('GET', `/projects/${projectId}/api-keys`)).body.api_keys;
    assert.deepEqual(live.map((one: { name: string }) => one.name).sort(), ['default', 'other']);
    const all = (await owner('GET', `/projects/${projectId}/api-keys?include_revoked=true`)).body.api_keys;
    assert.equal(all.length, 8);
    assert.equal((await key('GET', '/vms')).status, 401);
    assert.equal((await caller(() => world.url, other.body.token, '')('GET', '/vms')).status, 200);
  });

  test('a revoked one stops at once here, and within a second on every other server', async () => {
    const { projectId } = await world.tenant(owner);
    const another = await world.another();
    const minted = await owner('POST', `/projects/${projectId}/api-keys`, { name: 'gone' });
    const here = caller(() => world.url, minted.body.token, '');
    const there = caller(() => another.url, minted.body.token, '');
    assert.equal((await here('GET', '/vms')).status, 200);
    assert.equal((await there('GET', '/vms')).status, 200);
    assert.deepEqual((await owner('DELETE', `/api-keys/${minted.body.id}`)).body, {
      revoked: minted.body.id,
    });
    assert.equal((await here('GET', '/vms')).status, 401);
    await sleep(1_000);
    assert.equal((await there('GET', '/vms')).status, 401);
    // Idempotent, and the time of the first revocation stays.
    const at = async (): Promise<string> =>
      (await owner('GET', `/projects/${projectId}/api-keys?include_revoked=1`)).body.api_keys.find(
        (one: { id: string }) => one.id === minted.body.id,
      ).revoked_at;
    const first = await at();
    assert.equal((await owner('DELETE', `/api-keys/${minted.body.id}`)).status, 200);
    assert.equal(await at(), first);
  });

  test('names of keys: empty, long and unprintable ones are 400; none is `default`', async () => {
    const { projectId } = await world.tenant(owner);
    for (const name of ['', 'x'.repeat(129), 'a\u0007']) {
      refused(await owner('POST', `/projects/${projectId}/api-keys`, { name }), 400);
    }
    assert.equal((await owner('POST', `/projects/${projectId}/api-keys`)).body.name, 'default');
    assert.equal(
      (await owner('POST', `/projects/${projectId}/api-keys`, { name: null })).body.name,
      'default',
    );
  });
});
