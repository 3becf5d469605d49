import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { newToken } from '@releap/contract';
import fastify, { type FastifyReply, type FastifyRequest } from 'fastify';
import { mintApiKey } from '../src/index.ts';
import { createRateLimiter } from '../src/platform/http/rate-limits.ts';
import { caller, startWorld, type Answer, type Caller } from '@releap/testing/world';
import { GatewayClient } from '@releap/testing/gateway-client';

const world = await startWorld({ rateLimits: { perKey: 5, perOrg: 12, perAddress: 3 } });

const headersOf = (answer: Answer): (string | null)[] =>
  ['ratelimit-limit', 'ratelimit-remaining', 'retry-after'].map((name) => answer.headers.get(name));

async function key(projectId = world.call.projectId): Promise<Caller> {
  return caller(
    () => world.url,
    (await mintApiKey(world.database.pool, projectId, `key ${Math.random()}`)).token,
    projectId,
  );
}

describe('rate limits', () => {
  it('of a key are in every response, and one request too many is refused with 429 and the time to wait', async () => {
    const call = await key();
    for (let left = 4; left >= 0; left--) {
      const answer = await call('GET', '/regions');
      assert.deepEqual([answer.status, ...headersOf(answer)], [200, '5', String(left), null]);
      assert.match(answer.headers.get('ratelimit-reset') ?? '', /^([1-9]|[1-5]\d|60)$/);
    }
    const refused = await call('POST', '/vms', { image: 'busybox' });
    assert.deepEqual([refused.status, refused.headers.get('ratelimit-remaining')], [429, '0']);
    assert.match(
      refused.body.error,
      /^too many requests: one API key or user may make 5 in 60 s; try again in \d+ s$/,
    );
    assert.equal(refused.headers.get('retry-after'), String(refused.body.retry_after_secs));
    assert.equal((await (await key())('GET', '/regions')).status, 200, 'another key is not meant');
  });

  it('let through exactly as many of one moment as of one after another', async () => {
    const limiter = createRateLimiter({ perKey: 5, perOrg: 0, perAddress: 0 });
    await using app = fastify();
    await app.register(limiter.plugin);
    await app.ready();
    const count = () =>
      limiter.known(
        { routeOptions: {} } as FastifyRequest,
        { headers: () => undefined } as unknown as FastifyReply,
        { key: 'one' },
      );
    const outcomes = await Promise.allSettled(Array.from({ length: 8 }, count));
    assert.deepEqual(
      outcomes.map(({ status }) => status),
      [...Array(5).fill('fulfilled'), ...Array(3).fill('rejected')],
    );
  });

  it('of an organization hold for its keys together, and not for another organization', async () => {
    const second = await world.stranger();
    await world.database.pool.query(
      `with one as (insert into organizations (id, name) values (gen_random_uuid(), 'other') returning id)
      update projects set org_id = one.id from one where projects.id = $1`,
      [second.projectId],
    );
    const calls = [await key(second.projectId), await key(second.projectId), await key(second.projectId)];
    const statuses: number[] = [];
    for (let i = 0; i < 13; i++) statuses.push((await (calls[i % 3] as Caller)('GET', '/regions')).status);
    assert.deepEqual([statuses.filter((status) => status === 200).length, statuses.at(-1)], [12, 429]);
    const last = await (await key(second.projectId))('GET', '/regions');
    assert.match(last.body.error, /one organization may make 12/);
    assert.deepEqual(headersOf(last).slice(0, 2), ['12', '0']);
  });

  it('of an address hold for requests without valid credentials; those with them, health and the internal listener continue to work', async () => {
    const bad = caller(() => world.url, newToken('apiKey'), '');
    const nobody = caller(() => world.url, '', '');
    const statuses = [
      await bad('GET', '/vms'),
      await nobody('GET', '/vms'),
      await nobody('GET', '/openapi.json'),
      await nobody('GET', '/openapi.json'),
      await bad('GET', '/vms'),
    ].map((answer) => answer.status);
    assert.deepEqual(statuses, [401, 401, 200, 429, 429]);
    assert.notEqual((await nobody('GET', '/healthz')).status, 429);
    using gateway = await new GatewayClient(world.internalUrl).open();
    for (let i = 0; i < 10; i++) assert.equal((await gateway.refusal('x', 'y')).status, 401);
    assert.equal((await (await key((await world.stranger()).projectId))('GET', '/regions')).status, 200);
  });

  it('are off where none are set: no header, no refusal', async () => {
    await world.restart({ rateLimits: { perKey: 0, perOrg: 0, perAddress: 0 } });
    const call = await key();
    for (let i = 0; i < 20; i++) {
      const answer = await call('GET', '/regions');
      assert.deepEqual([answer.status, ...headersOf(answer)], [200, null, null, null]);
    }
  });
});
