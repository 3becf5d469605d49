import assert from 'node:assert/strict';
import { randomBytes } from 'node:crypto';
import { mock, test } from 'node:test';
import { DATA_TOKEN_SKEW_MS, DATA_TOKEN_TTL_MS } from '@releap/contract';
import { SignJWT } from 'jose';
import { dataTokenVerifier } from '../src/identity/data-token.ts';

const RUNNER = 'runner-1';

test('a data token opens its sandbox alone, until it expires or its key is replaced, however often it was used', async () => {
  let present = { id: 'first', key: new Uint8Array(randomBytes(32)) };
  const former = present;
  const verify = dataTokenVerifier({
    runnerId: RUNNER,
    knownKey: (id) => (id === present.id ? present.key : undefined),
    fetchKey: async () => present,
  });
  const token = (subject: string, { id, key } = present, audience = RUNNER): Promise<string> =>
    new SignJWT()
      .setProtectedHeader({ alg: 'HS256', kid: id })
      .setSubject(subject)
      .setAudience(audience)
      .setExpirationTime(Math.floor((Date.now() + DATA_TOKEN_TTL_MS) / 1000))
      .sign(key);

  mock.timers.enable({ apis: ['Date'], now: 1_800_000_000_000 });
  try {
    const one = await token('one');
    for (const _again of [1, 2]) {
      assert.equal(await verify(one, 'one'), true);
      assert.equal(await verify(one, 'two'), false);
      assert.equal(await verify(await token('one', present, 'runner-2'), 'one'), false);
      assert.equal(await verify(await token('one', { id: 'first', key: new Uint8Array(32) }), 'one'), false);
      assert.equal(await verify(`${one}x`, 'one'), false);
    }
    // More than are remembered: they are verified again.
    for (let at = 0; at < 1_100; at++) assert.equal(await verify(await token(`${at}`), `${at}`), true);
    assert.equal(await verify(one, 'one'), true);

    mock.timers.tick(DATA_TOKEN_TTL_MS + DATA_TOKEN_SKEW_MS - 1_000);
    assert.equal(await verify(one, 'one'), true);
    mock.timers.tick(2_000);
    assert.equal(await verify(one, 'one'), false);

    const two = await token('one');
    assert.equal(await verify(two, 'one'), true);
    present = { id: 'second', key: new Uint8Array(randomBytes(32)) };
    assert.equal(await verify(two, 'one'), false);
    assert.equal(await verify(await token('one', former), 'one'), false);
    assert.equal(await verify(await token('one'), 'one'), true);
  } finally {
    mock.timers.reset();
  }
});
