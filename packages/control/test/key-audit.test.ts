/** The audit log of what API keys change. */
import 'reflect-metadata';
import assert from 'node:assert/strict';
import { after, before, describe, it } from 'node:test';
import { compatOperations, operations, type Operation } from '@releap/contract';
import { startSignedInWorld, type Person, type SignedInWorld } from '@releap/testing/issuer';
import { testKeys } from '@releap/testing/keys';
import { create, quiet } from '@releap/testing/world';
import type { Database } from '@releap/database';
import { createKeyAudit, isRecorded, UNRECORDED } from '../src/tenancy/management/key-audit.ts';

const keys = testKeys();

describe('the audit log', () => {
  let world: SignedInWorld;
  let owner: Person;
  before(async () => {
    world = await startSignedInWorld({ keys });
    owner = await world.as('owner');
  });
  after(() => world[Symbol.asyncDispose]());

  const entriesOf = async (orgId: string): Promise<Record<string, unknown>[]> => {
    await world.control.runTask('api-key-audit');
    const { entries } = (await owner('GET', `/orgs/${orgId}/audit?limit=100`)).body;
    return entries
      .filter((entry: { actor: { kind: string } }) => entry.actor.kind === 'api_key')
      .map(({ actor, action, target, project_id }: Record<string, unknown>) => ({
        actor,
        action,
        target,
        project_id,
      }));
  };

  it('has what an API key has changed, with the key as the actor, and nothing that was refused or read', async () => {
    const { orgId, projectId, key } = await world.tenant(owner);
    const { api_keys: listed } = (await owner('GET', `/projects/${projectId}/api-keys`)).body;
    const actor = { kind: 'api_key', id: listed[0].id, name: listed[0].name };
    const vm = await create(key, world);
    assert.equal((await key('PUT', '/secrets/TOKEN', { value: 'x' })).status, 204);
    assert.equal((await key('GET', '/secrets/TOKEN')).status, 200);
    assert.equal((await key('PUT', '/secrets/not-a-name', { value: 'x' })).status, 400);
    assert.equal((await key('DELETE', '/secrets/TOKEN')).status, 204);
    assert.equal((await key('DELETE', `/vms/${vm.id}`)).status, 200);
    const secret = { kind: 'secret', id: 'TOKEN' };
    const sandbox = { kind: 'sandbox', id: vm.id };
    assert.deepEqual(await entriesOf(orgId), [
      { actor, action: 'sandbox.delete', target: sandbox, project_id: projectId },
      { actor, action: 'secret.delete', target: secret, project_id: projectId },
      { actor, action: 'secret.put', target: secret, project_id: projectId },
      { actor, action: 'sandbox.create', target: sandbox, project_id: projectId },
    ]);
  });

  it('has nothing of another organization', async () => {
    const [one, other] = [await world.tenant(owner), await world.tenant(owner)];
    assert.equal((await one.key('POST', '/vms', { image: 'busybox' })).status, 200);
    assert.deepEqual(
      (await entriesOf(one.orgId)).map(({ action }) => action),
      ['sandbox.create'],
    );
    assert.deepEqual(await entriesOf(other.orgId), []);
  });

  it('has each entry once, and those that follow, when the answer of the database to a batch was lost', async () => {
    const { orgId, projectId } = await world.tenant(owner);
    const { api_keys: listed } = (await owner('GET', `/projects/${projectId}/api-keys`)).body;
    const { pool } = world.database;
    let isLost = true;
    const query = async (...of: Parameters<typeof pool.query>): Promise<unknown> => {
      const answer = await (pool.query(...of) as unknown as Promise<unknown>);
      if (!isLost) return answer;
      isLost = false;
      throw Object.assign(new Error('the connection broke after the commit'), { code: 'ECONNRESET' });
    };
    const audit = createKeyAudit({ database: { pool: { query } } as unknown as Database, log: quiet });
    const handlers: ((call: object) => Promise<unknown>)[] = [];
    const plane = {
      operation: (_of: Operation, handler: (call: object) => Promise<unknown>) => void handlers.push(handler),
    };
    audit
      .audited(plane as unknown as Parameters<typeof audit.audited>[0])
      .operation(operations.deleteSecret, () => Promise.resolve());
    const remove = (name: string): Promise<unknown> | undefined =>
      handlers[0]?.({
        principal: { orgId, projectId, keyId: listed[0].id },
        request: { ip: '127.0.0.1', headers: {}, params: { name }, body: undefined },
      });
    await remove('FIRST');
    await assert.rejects(audit.flush(), /the connection broke/);
    await remove('SECOND');
    await audit.flush();
    assert.deepEqual((await entriesOf(orgId)).map(({ target }) => (target as { id: string }).id).sort(), [
      'FIRST',
      'SECOND',
    ]);
  });

  it('covers every operation of API keys that changes something, or says why not', () => {
    const all = [...Object.entries(operations), ...Object.entries(compatOperations)] as [string, Operation][];
    const missing = all.filter(
      ([, operation]) =>
        operation.security === 'workload' &&
        operation.method !== 'GET' &&
        isRecorded(operation) === UNRECORDED.has(operation),
    );
    assert.deepEqual(
      missing.map(([name]) => name),
      [],
    );
  });
});
