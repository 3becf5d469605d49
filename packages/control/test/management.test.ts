import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import type { Person } from '@releap/testing/issuer';
import { refused, startPeople, UNKNOWN } from './support/management.ts';
import { sharedText } from '@releap/testing/world';

const { world, owner, member, stranger } = await startPeople();

async function join(orgId: string, person: Person, role = 'member'): Promise<void> {
  const invited = await owner('POST', `/orgs/${orgId}/invitations`, { email: person.email, role });
  assert.equal(invited.status, 200, invited.text);
  const accepted = await person('POST', `/invitations/${invited.body.id}/accept`);
  assert.deepEqual(accepted.body, { org_id: orgId, role });
}

describe('organizations', () => {
  test('POST /orgs makes one and the caller its owner; GET lists and reads it, PATCH renames it', async () => {
    const made = await owner('POST', '/orgs', { name: '  Acme  ' });
    assert.equal(made.status, 200, made.text);
    const { id } = made.body;
    assert.deepEqual(made.body, { id, name: 'Acme', personal: false });
    assert.deepEqual((await owner('GET', `/orgs/${id}`)).body, {
      id,
      name: 'Acme',
      personal: false,
      role: 'owner',
    });
    assert.deepEqual((await owner('PATCH', `/orgs/${id}`, { name: 'Acme 2' })).body, { id, name: 'Acme 2' });
    const { organizations } = (await owner('GET', '/orgs')).body;
    assert.equal(organizations[0].personal, true);
    assert.ok(
      organizations.some((org: { id: string; name: string }) => org.id === id && org.name === 'Acme 2'),
    );
  });

  test('names: empty, long, with control characters or half characters are 400; odd Unicode is stored in one form', async () => {
    for (const name of [
      '',
      '   ',
      'x'.repeat(129),
      'a\nb',
      'a\u0000b',
      'a\u202eb',
      '\ud800',
      '\u200b',
      'x'.repeat(100_000),
    ]) {
      refused(await owner('POST', '/orgs', { name }), 400);
    }
    for (const name of [undefined, null, 1, [], {}]) refused(await owner('POST', '/orgs', { name }), 400);
    refused(await owner('POST', '/orgs'), 400);
    const made = await owner('POST', '/orgs', { name: 'Cafe\u0301 👩‍🚀 ' });
    assert.equal(made.body.name, 'Caf\u00e9 👩‍🚀');
    assert.equal((await owner('POST', '/orgs', { name: '👍'.repeat(128) })).status, 200);
  });

  test('non-members get 404 on every route, alike for what is there, is not, and is no id', async () => {
    const { orgId, projectId } = await world.tenant(owner);
    const key = (await owner('GET', `/projects/${projectId}/api-keys`)).body.api_keys[0].id;
    const routes: [string, (id: string) => string, string, unknown?][] = [
      ['GET', (id) => `/orgs/${id}`, orgId],
      ['PATCH', (id) => `/orgs/${id}`, orgId, { name: 'mine' }],
      ['DELETE', (id) => `/orgs/${id}`, orgId],
      ['GET', (id) => `/orgs/${id}/members`, orgId],
      ['DELETE', (id) => `/orgs/${id}/members/${owner.id}`, orgId],
      ['POST', (id) => `/orgs/${id}/invitations`, orgId, { email: 'a@b.example' }],
      ['GET', (id) => `/orgs/${id}/invitations`, orgId],
      ['DELETE', (id) => `/orgs/${id}/invitations/${UNKNOWN}`, orgId],
      ['GET', (id) => `/orgs/${id}/audit`, orgId],
      ['POST', (id) => `/orgs/${id}/projects`, orgId, { name: 'x' }],
      ['GET', (id) => `/orgs/${id}/projects`, orgId],
      ['DELETE', (id) => `/projects/${id}`, projectId],
      ['POST', (id) => `/projects/${id}/api-keys`, projectId, {}],
      ['GET', (id) => `/projects/${id}/api-keys`, projectId],
      ['DELETE', (id) => `/api-keys/${id}`, key],
    ];
    for (const [method, path, real, body] of routes) {
      const answers = await Promise.all(
        [real, UNKNOWN, 'no-id', real.toUpperCase()].map((id) => stranger(method, path(id), body)),
      );
      const shown = answers.map((answer, at) => ({
        status: answer.status,
        text: sharedText(answer).replace([real, UNKNOWN, 'no-id', real.toUpperCase()][at] ?? '', 'ID'),
        headers: [...answer.headers.keys()].filter((name) => name !== 'content-length').sort(),
      }));
      assert.equal(shown[0]?.status, 404, `${method} ${path(real)}: ${answers[0]?.text}`);
      for (const other of shown.slice(1)) assert.deepEqual(other, shown[0]);
    }
    assert.equal((await owner('GET', `/orgs/${orgId}`)).body.name, 'acme');
  });

  test('an id in upper case is the same id', async () => {
    const { orgId } = await world.tenant(owner);
    assert.equal((await owner('GET', `/orgs/${orgId.toUpperCase()}`)).body.id, orgId);
  });

  test('a member reads, and manages projects and keys; what is for owners is 403', async () => {
    const { orgId } = await world.tenant(owner);
    await join(orgId, member);
    assert.equal((await member('GET', `/orgs/${orgId}`)).body.role, 'member');
    assert.equal((await member('GET', `/orgs/${orgId}/members`)).body.members.length, 2);
    refused(await member('PATCH', `/orgs/${orgId}`, { name: 'x' }), 403, /owner/);
    refused(await member('DELETE', `/orgs/${orgId}`), 403);
    refused(await member('DELETE', `/orgs/${orgId}/members/${owner.id}`), 403);
    refused(await member('DELETE', `/orgs/${orgId}/members/${UNKNOWN}`), 403);
    refused(await member('POST', `/orgs/${orgId}/invitations`, { email: 'x@y.example' }), 403);
    refused(await member('GET', `/orgs/${orgId}/invitations`), 403);
    refused(await member('DELETE', `/orgs/${orgId}/invitations/${UNKNOWN}`), 403);
    refused(await member('GET', `/orgs/${orgId}/audit`), 403);
    const project = await member('POST', `/orgs/${orgId}/projects`, { name: 'by a member' });
    assert.equal(project.status, 200, project.text);
    const key = await member('POST', `/projects/${project.body.id}/api-keys`);
    assert.equal(key.status, 200);
    assert.deepEqual((await member('DELETE', `/api-keys/${key.body.id}`)).body, { revoked: key.body.id });
    assert.deepEqual((await member('DELETE', `/projects/${project.body.id}`)).body, {
      deleted: project.body.id,
    });
  });

  test('a personal organization accepts no invitations (409), cannot be deleted (409), and keeps its owner', async () => {
    const { organizations } = (await owner('GET', '/orgs')).body;
    const { id } = organizations.find((org: { personal: boolean }) => org.personal);
    refused(await owner('POST', `/orgs/${id}/invitations`, { email: 'a@b.example' }), 409, /personal/);
    refused(await owner('DELETE', `/orgs/${id}`), 409, /personal/);
    refused(await owner('DELETE', `/orgs/${id}/members/${owner.id}`), 409, /last owner/);
    assert.equal((await owner('POST', `/orgs/${id}/projects`, { name: 'mine' })).status, 200);
  });
});

describe('members', () => {
  test('are listed with role, and removed by an owner; 404 for a user who is no member', async () => {
    const { orgId } = await world.tenant(owner);
    await join(orgId, member);
    const { members } = (await owner('GET', `/orgs/${orgId}/members`)).body;
    assert.deepEqual(
      members.map((one: { user_id: string; email: string; role: string }) => [
        one.user_id,
        one.email,
        one.role,
      ]),
      [
        [owner.id, owner.email, 'owner'],
        [member.id, member.email, 'member'],
      ],
    );
    refused(await owner('DELETE', `/orgs/${orgId}/members/${stranger.id}`), 404);
    refused(await owner('DELETE', `/orgs/${orgId}/members/nobody`), 404);
    assert.deepEqual((await owner('DELETE', `/orgs/${orgId}/members/${member.id}`)).body, {
      removed: member.id,
    });
    refused(await member('GET', `/orgs/${orgId}`), 404);
    refused(await owner('DELETE', `/orgs/${orgId}/members/${member.id}`), 404);
    refused(await owner('DELETE', `/orgs/${orgId}/members/${owner.id}`), 409, /last owner/);
  });

  test('two owners who remove each other at the same time: one stays, every time', async () => {
    for (let round = 0; round < 10; round++) {
      const { orgId } = await world.tenant(owner);
      await join(orgId, member, 'owner');
      const answers = await Promise.all([
        owner('DELETE', `/orgs/${orgId}/members/${member.id}`),
        member('DELETE', `/orgs/${orgId}/members/${owner.id}`),
        owner('DELETE', `/orgs/${orgId}/members/${owner.id}`),
        member('DELETE', `/orgs/${orgId}/members/${member.id}`),
      ]);
      assert.equal(
        answers.filter((answer) => answer.status === 200).length,
        1,
        answers.map((a) => a.text).join(),
      );
      const path = `/orgs/${orgId}/members`;
      const lists = [await owner('GET', path), await member('GET', path)];
      const seen = lists.filter((answer) => answer.status === 200);
      assert.deepEqual(
        seen.map(({ body }) => body.members.length),
        [1],
      );
    }
  });
});

describe('projects', () => {
  test('are made and listed; a duplicate name is 409, in a race too, and in another organization none', async () => {
    const { orgId } = await world.tenant(owner);
    const made = await owner('POST', `/orgs/${orgId}/projects`, { name: 'Caf\u00e9' });
    assert.deepEqual(made.body, { id: made.body.id, org_id: orgId, name: 'Caf\u00e9' });
    refused(await owner('POST', `/orgs/${orgId}/projects`, { name: ' Cafe\u0301' }), 409, /already/);
    refused(await owner('POST', `/orgs/${orgId}/projects`, { name: '' }), 400);
    const race = await Promise.all(
      Array.from({ length: 8 }, () => owner('POST', `/orgs/${orgId}/projects`, { name: 'race' })),
    );
    assert.deepEqual(
      race.map((answer) => answer.status).sort((a, b) => a - b),
      [200, ...Array<number>(7).fill(409)],
    );
    const names = (await owner('GET', `/orgs/${orgId}/projects`)).body.projects.map(
      (one: { name: string }) => one.name,
    );
    assert.deepEqual(names, ['main', 'Caf\u00e9', 'race']);
    const other = await world.tenant(owner);
    assert.equal((await owner('POST', `/orgs/${other.orgId}/projects`, { name: 'race' })).status, 200);
  });

  test('the name of a deleted one is free at once', async () => {
    const { orgId, projectId } = await world.tenant(owner);
    await owner('DELETE', `/projects/${projectId}`);
    assert.equal((await owner('POST', `/orgs/${orgId}/projects`, { name: 'main' })).status, 200);
  });
});

describe('the audit log', () => {
  test('shows owners who did what, when and from where, newest first, in pages', async () => {
    const { orgId, projectId } = await world.tenant(owner, 'Audited');
    await join(orgId, member);
    await member('PATCH', `/orgs/${orgId}`, { name: 'taken over' });
    await owner('PATCH', `/orgs/${orgId}`, { name: 'Audited 2' }, { headers: { 'user-agent': 'a test' } });
    const keys = await owner('GET', `/projects/${projectId}/api-keys`);
    await owner('DELETE', `/api-keys/${keys.body.api_keys[0].id}`);
    await owner('DELETE', `/api-keys/${keys.body.api_keys[0].id}`);
    await owner('DELETE', `/orgs/${orgId}/members/${member.id}`);
    await owner('DELETE', `/projects/${projectId}`);
    const entries: { action: string; outcome: string }[] = [];
    let cursor = '';
    for (let page = 0; page < 20; page++) {
      const answer = await owner('GET', `/orgs/${orgId}/audit?limit=3${cursor}`);
      assert.equal(answer.status, 200, answer.text);
      entries.push(...answer.body.entries);
      if (answer.body.next_cursor === null) break;
      cursor = `&cursor=${answer.body.next_cursor}`;
    }
    assert.deepEqual(
      entries.map((entry) => `${entry.action} ${entry.outcome}`),
      [
        'project.delete done',
        'member.remove done',
        'api-key.revoke done',
        'org.rename done',
        'org.rename refused',
        'invitation.accept done',
        'invitation.create done',
        'api-key.create done',
        'project.create done',
        'org.create done',
      ],
    );
    const whole = (await owner('GET', `/orgs/${orgId}/audit`)).body;
    const renamed = whole.entries[3];
    assert.deepEqual(
      { ...renamed, id: '', created_at: '' },
      {
        id: '',
        created_at: '',
        actor: { kind: 'user', id: owner.id, name: owner.email },
        action: 'org.rename',
        target: { kind: 'organization', id: orgId },
        project_id: null,
        details: { from: 'Audited', to: 'Audited 2' },
        ip: '127.0.0.1',
        user_agent: 'a test',
        outcome: 'done',
      },
    );
    assert.ok(!JSON.stringify(whole).includes('rlp_') || !/rlp_[0-9A-Za-z]{20}/.test(JSON.stringify(whole)));
    refused(await owner('GET', `/orgs/${orgId}/audit?cursor=nonsense`), 400, /cursor/);
    refused(await stranger('GET', `/orgs/${orgId}/audit`), 404);
  });

  test('ignores X-Forwarded-For, except from the configured proxies', async () => {
    const { orgId } = await world.tenant(owner);
    const init = { headers: { 'x-forwarded-for': '203.0.113.9' } };
    const lastIp = async (): Promise<string> =>
      (await owner('GET', `/orgs/${orgId}/audit?limit=1`)).body.entries[0].ip;
    await owner('PATCH', `/orgs/${orgId}`, { name: 'a' }, init);
    assert.equal(await lastIp(), '127.0.0.1');
    await world.restart({ trustedProxies: ['127.0.0.0/8'] });
    await owner('PATCH', `/orgs/${orgId}`, { name: 'b' }, init);
    assert.equal(await lastIp(), '203.0.113.9');
    await world.restart();
  });

  test('is append-only: neither changed nor shortened', async () => {
    const { pool } = world.database;
    for (const sql of [`update audit_log set action = 'x'`, 'delete from audit_log', 'truncate audit_log']) {
      await assert.rejects(pool.query(sql), /append-only/);
    }
  });
});
