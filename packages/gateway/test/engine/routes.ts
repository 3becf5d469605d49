/** How long a route is used. */
import assert from 'node:assert/strict';
import { once } from 'node:events';
import { test } from 'node:test';
import { eventually } from '@releap/testing/eventually';
import { key, token } from '../support/preview-world.ts';
import { ENGINE, world, ports, call, withToken, route, openRouted } from '../support/engine-world.ts';

test('a revocation removes the route, and ends what is open by that credential alone', async () => {
  const host = world.hostOf('private-revoked');
  const byKey = { authorization: `Bearer ${key}` };
  await route(host, { headers: withToken });
  await route(host, { headers: byKey });
  const [ended, staying] = [await openRouted(host, withToken), await openRouted(host, byKey)];
  const isGone = once(ended, 'close');
  // A gateway that was stopped for a moment asks again about the other one.
  const { decide } = world.control;
  world.control.decide = (question) =>
    question.token === token ? { status: 401, error: 'revoked' } : decide(question);
  const ids = world.control.asked.filter(({ token: shown }) => shown === token).map(({ id }) => id);
  world.control.push({ type: 'revoke', ids, disconnect: true });
  await isGone;
  assert.equal((await call(ports.engine, host, { headers: withToken })).status, 401);
  staying.send('still there');
  assert.equal(String((await once(staying, 'message'))[0]), 'still there');
  assert.equal((await call(ports.engine, host, { headers: byKey })).status, 200);

  // The sandbox is about to lose its address.
  const isEnded = once(staying, 'close');
  world.addresses.end('private-revoked');
  await isEnded;
  assert.equal(
    (await call(ports.engine, host, { headers: byKey })).status,
    200,
    'the gateway still has the grant',
  );
});

test('the host of a link needs no credential, is routed, and its revocation ends what is open', async () => {
  const link = 'q2'.repeat(13);
  const host = world.hostOf(link);
  const { decide } = world.control;
  world.control.decide = async (question) => {
    if (question.target.sandbox !== link) return decide(question);
    assert.equal(question.token, undefined, 'the host is the credential');
    return { ...(await decide(question)), public: false };
  };
  // Other credentials, and none, have the same route. Guests get none of them.
  const headers = { ...withToken, cookie: `a=b; rlp_preview=${token}` };
  await route(host, { path: '/a?b=c' });
  world.seen = [];
  assert.equal((await call(ports.engine, host, { headers, path: '/a?b=c' })).status, 200);
  assert.deepEqual(
    [world.seen[0]?.url, world.seen[0]?.headers.cookie, world.seen[0]?.headers['x-service-preview-token']],
    ['/a?b=c', 'a=b', undefined],
  );
  const socket = await openRouted(host, {});
  const isGone = once(socket, 'close');
  const ids = world.control.asked.filter(({ target }) => target.sandbox === link).map(({ id }) => id);
  world.control.decide = () => ({ status: 401, error: 'it has expired' });
  world.control.push({ type: 'revoke', ids, disconnect: true });
  await isGone;
  assert.equal((await call(ports.engine, host)).status, 401);
});

test('a grant that is not valid any more is asked for again, and open connections remain', async () => {
  const host = world.hostOf('public-moved');
  await route(host);
  const socket = await openRouted(host, {});
  const asked = world.control.asked.filter(({ target }) => target.sandbox === 'public-moved');
  world.control.decide = () => ({ status: 409, error: 'it is paused, and must be running' });
  world.control.push({ type: 'revoke', ids: asked.map(({ id }) => id), disconnect: false });
  await eventually('409', async () => (await call(ports.engine, host)).status === 409);
  socket.send('still there');
  assert.equal(String((await once(socket, 'message'))[0]), 'still there');
  socket.terminate();
});

test('without news from the control plane no route is used', async () => {
  const host = world.hostOf('public-silent');
  await route(host);
  world.control.talking = false;
  const before = await eventually('no routed request', async () => {
    const earlier = await world.routed(ENGINE);
    void call(ports.engine, host).catch(() => undefined);
    await new Promise((resolve) => setTimeout(resolve, 200));
    return (await world.routed(ENGINE)) === earlier && earlier;
  });
  assert.ok(before > 0);
  world.control.talking = true;
  world.control.disconnect();
  await route(host);
});
