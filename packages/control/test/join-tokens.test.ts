/** Join tokens of the operator: who joins with them, how often and until when. */
import assert from 'node:assert/strict';
import { createHash, randomUUID } from 'node:crypto';
import { describe, it } from 'node:test';
import type { JoinTokenCreated } from '@releap/contract';
import { credentialOf, dataKeyOf, joinAs } from '@releap/testing/credentials';
import { host, startWorld } from '@releap/testing/world';

const world = await startWorld();

async function created(body: object = {}): Promise<JoinTokenCreated> {
  const { status, body: answer, text } = await world.operator('POST', '/operator/join-tokens', body);
  assert.equal(status, 201, text);
  return answer as JoinTokenCreated;
}
const listed = async (id: string) =>
  (await world.operator('GET', '/operator/join-tokens')).body.join_tokens.find(
    (one: { id: string }) => one.id === id,
  );
const join = (token: string, id: string = randomUUID(), credential = credentialOf(id)): Promise<Response> =>
  joinAs(world.internalUrl, id, { token, credential });
async function refusal(answer: Promise<Response>): Promise<string> {
  const response = await answer;
  const { error } = (await response.json()) as { error: string };
  return `${response.status} ${error}`;
}

describe('a join token of the operator', () => {
  it('lets one host join within an hour, and no more', async () => {
    const { id, token, ...made } = await created();
    assert.deepEqual([made.uses, made.uses_left, made.status, made.name], [1, 1, 'valid', null]);
    assert.equal(Date.parse(made.expires_at) - Date.parse(made.created_at), 3_600_000);
    const runner = randomUUID();
    assert.equal((await join(token, runner)).status, 200);
    await dataKeyOf(world.internalUrl, credentialOf(runner));
    assert.match(await refusal(join(token)), /^401 this join token is used up/);
    const { status, uses_left } = await listed(id);
    assert.deepEqual([status, uses_left], ['used_up', 0]);
  });

  it('is not used again by a host whose answer was lost, and lets no other credential of that host in', async () => {
    const { id, token } = await created({ uses: 2 });
    const runner = randomUUID();
    for (let i = 0; i < 3; i++) assert.equal((await join(token, runner)).status, 200);
    assert.equal((await listed(id)).uses_left, 1);
    // A refused join uses nothing either.
    assert.match(await refusal(join(token, runner, 'another')), /^409 .*is already registered/);
    assert.match(
      await refusal(join(token, randomUUID(), credentialOf(runner))),
      /^409 this credential was registered before/,
    );
    assert.equal((await listed(id)).uses_left, 1);
    assert.equal((await join(token)).status, 200);
    assert.equal((await join(token, runner)).status, 200);
    assert.equal((await listed(id)).uses_left, 0);
  });

  it('that many hosts use at the same time lets as many join as it has uses', async () => {
    const { id, token } = await created({ uses: 3 });
    const answers = await Promise.all(Array.from({ length: 8 }, () => join(token)));
    const statuses = answers.map(({ status }) => status).toSorted((a, b) => a - b);
    assert.deepEqual(statuses, [200, 200, 200, 401, 401, 401, 401, 401]);
    assert.equal((await listed(id)).uses_left, 0);
  });

  it('that has expired or was revoked is refused with the reason, and one that does not exist like any other', async () => {
    const expired = await created({ name: 'rack 4' });
    await world.database.pool.query('update join_tokens set expires_at = now() where id = $1', [expired.id]);
    assert.match(await refusal(join(expired.token)), /^401 this join token expired at \d{4}-/);
    assert.equal((await listed(expired.id)).status, 'expired');

    const revoked = await created({ uses: 2 });
    const runner = randomUUID();
    assert.equal((await join(revoked.token, runner)).status, 200);
    for (let i = 0; i < 2; i++)
      assert.equal((await world.operator('DELETE', `/operator/join-tokens/${revoked.id}`)).status, 204);
    assert.match(await refusal(join(revoked.token)), /^401 this join token was revoked/);
    assert.equal((await listed(revoked.id)).status, 'revoked');
    // Its credential is its own.
    await dataKeyOf(world.internalUrl, credentialOf(runner));

    for (const token of [`${revoked.token}x`, `rlpj_${'x'.repeat(43)}`])
      assert.equal(await refusal(join(token)), '401 missing or invalid join token');
    for (const id of [randomUUID(), 'x']) {
      const { status, body } = await world.operator('DELETE', `/operator/join-tokens/${id}`);
      assert.deepEqual([status, body.code], [404, 'join_token_not_found']);
    }
  });

  it('is known by its digest alone, opens nothing else, and is in no record of the audit', async () => {
    const { id, token } = await created({ name: 'secret' });
    const { rows } = await world.database.pool.query(
      'select digest, to_jsonb(t)::text as row from join_tokens t where id = $1',
      [id],
    );
    assert.deepEqual(rows[0].digest, createHash('sha256').update(token).digest());
    assert.ok(!(rows[0].row as string).includes(token));
    assert.equal('token' in (await listed(id)), false);
    await assert.rejects(dataKeyOf(world.internalUrl, token), /401/);
    const audit = await world.operator('GET', '/operator/audit');
    assert.ok(!audit.text.includes(token));
    const entry = audit.body.entries.find(
      (one: { operation: string; request: { name?: string } }) =>
        one.operation === 'createJoinToken' && one.request.name === 'secret',
    );
    assert.equal(entry.outcome, 'done');
  });

  it('is shown with the hosts that have joined with it, and they with it', async () => {
    const { id, token, hosts, host_count } = await created({ uses: 20, name: 'rack 5' });
    assert.deepEqual([hosts, host_count], [[], 0]);
    const runners = Array.from({ length: 12 }, () => randomUUID());
    for (const runner of runners) assert.equal((await join(token, runner)).status, 200);
    const [first = '', second = '', third = ''] = runners;
    // Repeated by a host whose answer was lost, also with another token: it is the first one that let it join.
    assert.equal((await join((await created()).token, first)).status, 200);
    await world.runner({ id: first, facts: { name: 'rack-5-1' } });
    await world.runner({ id: second, facts: { name: 'rack-5-2' } });
    await world.operator('PUT', `/operator/hosts/${second}/name`, { name: 'left' });
    await world.runner({ id: third });
    const shown = async (): Promise<unknown[]> => {
      const one = await listed(id);
      return [one.host_count, one.hosts];
    };
    const all = runners.map((runner) => ({ id: runner, name: null as string | null }));
    Object.assign(all[0] ?? {}, { name: 'rack-5-1' });
    Object.assign(all[1] ?? {}, { name: 'left' });
    assert.deepEqual(await shown(), [12, all.slice(0, 10)]);
    assert.deepEqual((await host(world, first))?.join_token, { id, name: 'rack 5' });
    // A renewal of its credential and a permission of the operator change nothing of how it joined.
    const renewed = await joinAs(world.internalUrl, second, {
      token: credentialOf(second),
      credential: 'renewed',
    });
    assert.equal(renewed.status, 200);
    await dataKeyOf(world.internalUrl, 'renewed');
    const permission = await world.operator('POST', `/operator/hosts/${third}/join-permission`, {});
    assert.equal((await join(permission.body.token, third, 'permitted')).status, 200);
    for (const runner of [second, third])
      assert.deepEqual((await host(world, runner))?.join_token, { id, name: 'rack 5' });
    assert.deepEqual(await shown(), [12, all.slice(0, 10)]);
    await world.database.pool.query('update runners set forgotten_at = now() where id = $1', [first]);
    assert.deepEqual(await shown(), [11, all.slice(1, 11)]);
    // Its row is purged some time after it has expired.
    await world.database.pool.query('delete from join_tokens where id = $1', [id]);
    assert.deepEqual((await host(world, second))?.join_token, { id, name: null });
    const shared = await world.runner();
    assert.equal((await host(world, shared.id))?.join_token, null);
  });

  it('is created within its bounds', async () => {
    for (const body of [
      { uses: 0 },
      { uses: 1001 },
      { expires_in_s: 59 },
      { expires_in_s: 30 * 24 * 3600 + 1 },
      { name: '' },
      { name: 'a\nb' },
    ])
      assert.equal((await world.operator('POST', '/operator/join-tokens', body)).status, 400);
  });
});
