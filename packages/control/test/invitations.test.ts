import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { refused, startPeople, UNKNOWN } from './support/management.ts';

const { world, owner, member, stranger } = await startPeople();

describe('invitations', () => {
  test('the whole way: invited, listed on both sides, accepted, gone', async () => {
    const { orgId } = await world.tenant(owner, 'Inviting');
    const invited = await owner('POST', `/orgs/${orgId}/invitations`, { email: 'Member@EXAMPLE.org' });
    const { id } = invited.body;
    assert.deepEqual(invited.body, { id, org_id: orgId, email: 'Member@EXAMPLE.org', role: 'member' });
    assert.deepEqual((await owner('GET', `/orgs/${orgId}/invitations`)).body, {
      invitations: [{ id, email: 'Member@EXAMPLE.org', role: 'member' }],
    });
    const mine = (await member('GET', '/invitations')).body.invitations;
    assert.deepEqual(
      mine.filter((one: { id: string }) => one.id === id),
      [{ id, org_id: orgId, org_name: 'Inviting', role: 'member' }],
    );
    assert.ok(!(await stranger('GET', '/invitations')).text.includes(id));
    refused(await stranger('POST', `/invitations/${id}/accept`), 403, /a different e-mail address/);
    assert.deepEqual((await member('POST', `/invitations/${id}/accept`)).body, {
      org_id: orgId,
      role: 'member',
    });
    refused(await member('POST', `/invitations/${id}/accept`), 404);
    refused(await stranger('POST', `/invitations/${id}/accept`), 404);
    refused(await member('POST', `/invitations/${UNKNOWN}/accept`), 404);
    refused(await member('POST', `/invitations/nothing/accept`), 404);
    assert.deepEqual((await owner('GET', `/orgs/${orgId}/invitations`)).body, { invitations: [] });
  });

  test('400: role not owner or member, and what is no address', async () => {
    const { orgId } = await world.tenant(owner);
    refused(
      await owner('POST', `/orgs/${orgId}/invitations`, { email: 'a@b.example', role: 'admin' }),
      400,
      /role/,
    );
    for (const email of [
      '',
      'nobody',
      'a b@c',
      '@',
      'a@',
      `${'x'.repeat(300)}@b`,
      'a@b\u0000',
      'a@b\nc',
      7,
      null,
    ]) {
      refused(await owner('POST', `/orgs/${orgId}/invitations`, { email }), 400);
    }
  });

  test('inviting the same address again refreshes the pending one: its role and its 14 days', async () => {
    const { orgId } = await world.tenant(owner);
    const first = await owner('POST', `/orgs/${orgId}/invitations`, { email: member.email });
    await world.database.pool.query(
      `update invitations set expires_at = now() + interval '1 day' where id = $1`,
      [first.body.id],
    );
    const again = await owner('POST', `/orgs/${orgId}/invitations`, {
      email: member.email.toUpperCase(),
      role: 'owner',
    });
    assert.equal(again.body.id, first.body.id);
    assert.equal(again.body.role, 'owner');
    const { rows } = await world.database.pool.query<{ days: number }>(
      'select extract(epoch from expires_at - now())::float8 / 86400 as days from invitations where org_id = $1',
      [orgId],
    );
    assert.equal(rows.length, 1);
    assert.ok(Math.abs((rows[0]?.days ?? 0) - 14) < 0.01);
    assert.equal((await member('POST', `/invitations/${again.body.id}/accept`)).body.role, 'owner');
  });

  test('many at the same time for one address are one invitation', async () => {
    const { orgId } = await world.tenant(owner);
    const answers = await Promise.all(
      Array.from({ length: 8 }, () =>
        owner('POST', `/orgs/${orgId}/invitations`, { email: 'one@example.org' }),
      ),
    );
    assert.equal(new Set(answers.map((answer) => answer.body.id)).size, 1);
  });

  test('after 14 days: not listed, 404 on accept, and a new invitation brings it back', async () => {
    const { orgId } = await world.tenant(owner);
    const { id } = (await owner('POST', `/orgs/${orgId}/invitations`, { email: member.email })).body;
    await world.database.pool.query('update invitations set expires_at = now() where id = $1', [id]);
    refused(await member('POST', `/invitations/${id}/accept`), 404);
    refused(await stranger('POST', `/invitations/${id}/accept`), 404);
    assert.ok(!(await member('GET', '/invitations')).text.includes(id));
    assert.deepEqual((await owner('GET', `/orgs/${orgId}/invitations`)).body.invitations, []);
    const again = await owner('POST', `/orgs/${orgId}/invitations`, { email: member.email });
    assert.equal((await member('POST', `/invitations/${again.body.id}/accept`)).status, 200);
  });

  test('an address that the issuer says is not verified: not listed, 403 on accept', async () => {
    const { orgId } = await world.tenant(owner);
    const { id } = (await owner('POST', `/orgs/${orgId}/invitations`, { email: 'claimed@example.org' })).body;
    const liar = await world.as('liar', { email: 'claimed@example.org', email_verified: false });
    assert.deepEqual((await liar('GET', '/invitations')).body, { invitations: [] });
    refused(await liar('POST', `/invitations/${id}/accept`), 403, /not verified/);
    // Nor does a token without any address make it a verified one.
    const silent = await world.as('liar', { email: undefined });
    refused(await silent('POST', `/invitations/${id}/accept`), 403);
    // A token that does not say that the address is verified: the issuer may let users choose it.
    const unsaid = await world.as('unsaid', { email: 'claimed@example.org', email_verified: undefined });
    assert.deepEqual((await unsaid('GET', '/invitations')).body, { invitations: [] });
    refused(await unsaid('POST', `/invitations/${id}/accept`), 403, /not verified/);
    const honest = await world.as('honest', { email: 'claimed@example.org', email_verified: true });
    assert.equal((await honest('POST', `/invitations/${id}/accept`)).status, 200);
  });

  test('accepting twice at the same time joins once; an owner who accepts less stays owner', async () => {
    const { orgId } = await world.tenant(owner);
    const { id } = (await owner('POST', `/orgs/${orgId}/invitations`, { email: member.email })).body;
    const answers = await Promise.all(
      Array.from({ length: 5 }, () => member('POST', `/invitations/${id}/accept`)),
    );
    assert.deepEqual(
      answers.map((answer) => answer.status).sort((a, b) => a - b),
      [200, 404, 404, 404, 404],
    );
    const self = (await owner('POST', `/orgs/${orgId}/invitations`, { email: owner.email })).body;
    assert.deepEqual((await owner('POST', `/invitations/${self.id}/accept`)).body, {
      org_id: orgId,
      role: 'owner',
    });
  });

  test('can be taken back', async () => {
    const { orgId } = await world.tenant(owner);
    const { id } = (await owner('POST', `/orgs/${orgId}/invitations`, { email: member.email })).body;
    assert.deepEqual((await owner('DELETE', `/orgs/${orgId}/invitations/${id}`)).body, { deleted: id });
    refused(await owner('DELETE', `/orgs/${orgId}/invitations/${id}`), 404);
    refused(await member('POST', `/invitations/${id}/accept`), 404);
  });
});
