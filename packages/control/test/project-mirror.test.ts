import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { createEncryption } from '../src/platform/encryption/encryption.ts';
import { secretsOf } from './support/secrets.ts';
import { startSignedInWorld, type Person } from '@releap/testing/issuer';
import { testKeys } from '@releap/testing/keys';
import { create, until, type Answer, type Caller, refusalOf } from '@releap/testing/world';
import { inspect } from '@releap/testing/inspect';

const keys = testKeys();
const NO_PROJECT = '00000000-0000-4000-8000-000000000000';
let owner: Person;
let member: Person;
let stranger: Person;
let orgId: string;
let projectId: string;
let key: Caller;
const world = await startSignedInWorld({ keys });
[owner, member, stranger] = (await Promise.all(
  ['owner', 'member', 'stranger'].map((name) => world.as(name)),
)) as [Person, Person, Person];
({ orgId, projectId, key } = await world.tenant(owner));
await owner('POST', `/orgs/${orgId}/invitations`, { email: member.email });
const { invitations } = (await member('GET', '/invitations')).body;
await member('POST', `/invitations/${invitations[0].id}/accept`);

const secret = { value: 'a value', allowed_domains: ['A.example'], description: 'd' };
const store = {
  name: 'models',
  bucket: 'b',
  access_key_secret: 'STORE',
  secret_key_secret: 'STORE',
};
const login = { username: 'u', password: 'a password' };
/** Everything but the fields that differ because it was written at another time, or is another row. */
const timeless = ({ status, body, text }: Answer): unknown => [
  status,
  body === undefined
    ? text
    : JSON.parse(
        JSON.stringify(body, (name, value: unknown) =>
          name.endsWith('_at') || name === 'id' || name === 'request_id' ? 'then' : value,
        ),
      ),
];

describe('the mirror of a project', () => {
  it('has the same bodies, answers and refusals as the workload routes', async () => {
    const steps: [method: string, path: string, body?: unknown][] = [
      ['GET', '/secrets'],
      ['PUT', '/secrets/TOKEN', secret],
      ['PUT', '/secrets/A-B', secret],
      ['PUT', '/secrets/TOKEN', { value: 'x', allowed_domains: ['a:1'] }],
      ['PUT', '/secrets/TOKEN', { value: 'x'.repeat(65_537) }],
      ['PUT', '/secrets/TOKEN', {}],
      ['GET', '/secrets/TOKEN'],
      ['GET', '/secrets/NOBODY'],
      ['GET', '/secrets'],
      ['GET', '/secrets?include_object_store=true'],
      ['DELETE', '/secrets/TOKEN'],
      ['DELETE', '/secrets/TOKEN'],
      ['DELETE', '/secrets/A-B'],
      ['GET', '/secrets'],
      ['GET', '/registries'],
      ['PUT', '/registries/Docker.io', login],
      ['PUT', '/registries', { host: 'ghcr.io', kind: 'ghcr', ...login }],
      ['PUT', '/registries', { host: 'docker.io', kind: 'ghcr', ...login }],
      ['PUT', '/registries/a%2Fb', login],
      ['PUT', '/registries/a.b', { ...login, username: '' }],
      ['GET', '/registries/registry-1.docker.io'],
      ['GET', '/registries/a%2Fb'],
      ['GET', '/registries/nobody.example'],
      ['GET', '/registries'],
      ['DELETE', '/registries/docker.io'],
      ['DELETE', '/registries/docker.io'],
      ['DELETE', '/registries/a%2Fb'],
      ['GET', '/registries'],
      ['PUT', '/secrets/STORE', secret],
      ['POST', '/object-stores', store],
      ['POST', '/object-stores', store],
      ['POST', '/object-stores', { ...store, name: 'a/b' }],
      ['POST', '/object-stores', { ...store, name: 'other', secret_key_secret: 'NONE' }],
      ['GET', '/object-stores'],
      ['GET', '/object-stores/models'],
      ['GET', '/object-stores/none'],
      ['GET', '/secrets'],
      ['GET', '/secrets?include_object_store=true'],
      ['DELETE', '/object-stores/models'],
      ['DELETE', '/object-stores/models'],
      ['GET', '/object-stores?include_deleted=true'],
      ['GET', '/object-stores?include_deleted=no'],
      ['DELETE', '/secrets/STORE'],
      ['POST', '/volumes', { name: 'data', size_gb: 2 }],
      ['POST', '/volumes', { name: 'data' }],
      ['POST', '/volumes', { name: 'a/b' }],
      ['POST', '/volumes', { name: 'large', size_gb: 10_001 }],
      ['GET', '/volumes'],
      ['GET', '/volumes/data'],
      ['GET', '/volumes/none'],
      ['GET', '/volumes/data/manifests'],
      ['POST', '/volumes/data/commit'],
      ['POST', '/volumes/data/restore', { manifest_id: NO_PROJECT }],
      ['DELETE', '/volumes/data'],
      ['DELETE', '/volumes/data'],
      ['GET', '/volumes?include_deleted=true'],
    ];
    const other = await world.tenant(owner, 'other');
    for (const [method, path, body] of steps) {
      const byKey = await other.key(method, path, body);
      const byMember = await member(method, `/projects/${projectId}${path}`, body);
      assert.deepEqual(timeless(byMember), timeless(byKey), `${method} ${path}`);
    }
    await key('DELETE', '/registries/ghcr.io');
  });

  it('PUT /projects/:id/secrets: the body names it', async () => {
    const path = `/projects/${projectId}/secrets`;
    assert.equal((await member('PUT', path, { name: 'BODY', ...secret })).status, 204);
    assert.equal((await key('GET', '/secrets/BODY')).body.description, 'd');
    assert.match((await member('PUT', path, secret)).body.error, /name is required/);
    assert.match((await member('PUT', path, { name: 'a b', ...secret })).body.error, /name must match/);
  });

  it('is the same project: what one plane writes the other reads, and sandboxes use', async () => {
    await owner('PUT', `/projects/${projectId.toUpperCase()}/secrets/SEEN`, { value: 'by owner' });
    const vm = await create(key, world, { secrets: ['SEEN'] });
    const { env } = await inspect(world.database, vm);
    const found = await secretsOf(() => world, createEncryption(keys)).lookUp(vm.uuid, env['SEEN']);
    assert.equal(found?.value, 'by owner');
  });

  it('404 alike for the project of others, none and no id at all; 401 for an API key', async () => {
    for (const [method, path, body] of [
      ['GET', '/secrets', undefined],
      ['PUT', '/secrets', { name: 'A', ...secret }],
      ['PUT', '/secrets/A', secret],
      ['GET', '/secrets/A', undefined],
      ['DELETE', '/secrets/A', undefined],
      ['GET', '/registries', undefined],
      ['PUT', '/registries', { host: 'a.b', ...login }],
      ['PUT', '/registries/a.b', login],
      ['GET', '/registries/a.b', undefined],
      ['DELETE', '/registries/a.b', undefined],
      ['GET', '/object-stores', undefined],
      ['POST', '/object-stores', store],
      ['GET', '/object-stores/models', undefined],
      ['DELETE', '/object-stores/models', undefined],
      ['GET', '/volumes', undefined],
      ['POST', '/volumes', { name: 'data' }],
      ['GET', '/volumes/data', undefined],
      ['DELETE', '/volumes/data', undefined],
      ['GET', '/volumes/data/manifests', undefined],
      ['POST', '/volumes/data/commit', undefined],
      ['POST', '/volumes/data/restore', { manifest_id: NO_PROJECT }],
    ] as const) {
      for (const id of [projectId, NO_PROJECT, 'no-id']) {
        const answer = await stranger(method, `/projects/${id}${path}`, body);
        assert.deepEqual(
          [answer.status, refusalOf(answer)],
          [404, { error: `project "${id}" not found`, code: 'project_not_found', retryable: false }],
          `${method} ${path}`,
        );
      }
      assert.equal((await key(method, `/projects/${projectId}${path}`, body)).status, 401);
    }
    assert.equal((await key('GET', '/secrets/A')).status, 404);
  });

  it('what members write is in the audit log, without a value', async () => {
    await member('PUT', `/projects/${projectId}/secrets/AUDITED`, { value: 'needle-value' });
    await member('DELETE', `/projects/${projectId}/secrets/AUDITED`);
    await member('PUT', `/projects/${projectId}/registries/Audited.example`, {
      username: 'needle-user',
      password: 'needle-password',
    });
    await member('DELETE', `/projects/${projectId}/registries/audited.example`);
    const volume = (await member('POST', `/projects/${projectId}/volumes`, { name: 'audited' })).body.id;
    await member('POST', `/projects/${projectId}/volumes/audited/commit`);
    await member('DELETE', `/projects/${projectId}/volumes/audited`);
    const log = await owner('GET', `/orgs/${orgId}/audit?limit=7`);
    type Entry = { action: string; target: unknown; actor: { id: string }; project_id: string };
    assert.deepEqual(
      log.body.entries.map((entry: Entry) => [entry.action, entry.target, entry.actor.id, entry.project_id]),
      [
        ['volume.delete', { kind: 'volume', id: volume }],
        ['volume.commit', { kind: 'volume', id: volume }],
        ['volume.create', { kind: 'volume', id: volume }],
        ['registry.delete', { kind: 'registry', id: 'audited.example' }],
        ['registry.put', { kind: 'registry', id: 'audited.example' }],
        ['secret.delete', { kind: 'secret', id: 'AUDITED' }],
        ['secret.put', { kind: 'secret', id: 'AUDITED' }],
      ].map((row) => [...row, member.id, projectId]),
    );
    assert.doesNotMatch(log.text, /needle/);
    // A refused write is not in the audit log as done.
    await member('PUT', `/projects/${projectId}/secrets/A-B`, secret);
    assert.equal(
      (await owner('GET', `/orgs/${orgId}/audit?limit=1`)).body.entries[0].action,
      'volume.delete',
    );
  });

  it('deleting the project erases its secrets and credentials', async () => {
    const doomed = await world.tenant(owner, 'doomed');
    const path = `/projects/${doomed.projectId}`;
    await owner('PUT', `${path}/secrets/GONE`, secret);
    await owner('PUT', `${path}/registries/gone.example`, login);
    await create(doomed.key, world, { secrets: ['GONE'] });
    assert.equal((await owner('DELETE', path)).status, 200);
    assert.equal((await owner('GET', `${path}/secrets`)).status, 404);
    await until(async () => {
      const { rows } = await world.database.pool.query(
        `select (select count(*)::int from secrets where project_id = $1) +
                (select count(*)::int from registry_credentials where project_id = $1) as left`,
        [doomed.projectId],
      );
      return rows[0].left === 0;
    });
  });
});
