import assert from 'node:assert/strict';
import { test } from 'node:test';
import { newUuid } from '@releap/contract';
import { SignJWT } from 'jose';
import type { ServiceKeys } from '../src/platform/credentials/service-keys.ts';
import { createDispatchTokens } from '../src/functions/versions/dispatch-token.ts';

const keys = (value = 'k'.repeat(43)): ServiceKeys => ({
  get: (name) => {
    assert.equal(name, 'dispatch');
    return Promise.resolve(value);
  },
  update: () => assert.fail('tokens replace no keys'),
});
const MINUTE = 60_000;

function clock(): { now: number; read: () => Date } {
  const state = { now: 1_800_000_000_000, read: (): Date => new Date(state.now) };
  return state;
}

void test('a token names its project to all servers, for at least seven minutes', async () => {
  const time = clock();
  const [one, other] = [createDispatchTokens(keys(), time.read), createDispatchTokens(keys(), time.read)];
  const project = newUuid();
  // The worst moment: a period that is nearly over.
  time.now += 3 * MINUTE - 1000;
  const token = await one.issue(project);
  assert.deepEqual(await other.verify(token), { projectId: project });
  time.now += 7 * MINUTE;
  assert.deepEqual(await other.verify(token), { projectId: project });
  time.now += 5 * MINUTE;
  assert.equal(await other.verify(token), undefined);
});

void test('all servers issue the same token for some minutes, then another one', async () => {
  const time = clock();
  const [one, other] = [createDispatchTokens(keys(), time.read), createDispatchTokens(keys(), time.read)];
  const project = newUuid();
  const token = await one.issue(project);
  time.now += 2 * MINUTE;
  assert.equal(await one.issue(project), token);
  assert.equal(await other.issue(project), token);
  assert.notEqual(await one.issue(newUuid()), token);
  time.now += 2 * MINUTE;
  assert.notEqual(await one.issue(project), token);
});

void test('other credentials are refused', async () => {
  const tokens = createDispatchTokens(keys());
  const project = newUuid();
  const forged = await createDispatchTokens(keys('x'.repeat(43))).issue(project);
  const sign = (change: (jwt: SignJWT) => SignJWT): Promise<string> =>
    change(
      new SignJWT()
        .setProtectedHeader({ alg: 'HS256' })
        .setAudience('releap-functions')
        .setSubject(project)
        .setExpirationTime('5m'),
    ).sign(Buffer.from('k'.repeat(43)));
  assert.deepEqual(await tokens.verify(await sign((jwt) => jwt)), { projectId: project });
  const unsigned = `${Buffer.from('{"alg":"none"}').toString('base64url')}.${forged.split('.')[1]}.`;
  for (const refused of [
    '',
    'rlp_abc',
    'a.b.c',
    forged,
    unsigned,
    await sign((jwt) => jwt.setAudience('other')),
    await sign((jwt) => jwt.setSubject('not-a-uuid')),
    await sign((jwt) => jwt.setExpirationTime('-5m')),
  ])
    assert.equal(await tokens.verify(refused), undefined, refused);
});
