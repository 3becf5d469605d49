/** Quotas of organizations: no path exceeds one, concurrent requests do not pass together, and others do not notice. */
import assert from 'node:assert/strict';
import { beforeEach, describe, it } from 'node:test';
import {
  BOUNDS,
  COMPAT_PREFIX,
  newUuid,
  QUOTA_RESOURCES,
  type QuotaRequest,
  type QuotaResource,
} from '@releap/contract';
import { GatewayClient } from '@releap/testing/gateway-client';
import { quiet, startWorld, until, type Answer } from '@releap/testing/world';
import { fireSchedules } from '../src/functions/schedules/fire.ts';
import { insertFunction } from './support/function-versions.ts';
import { newFunction } from './support/functions.ts';
import { Stage } from './support/lifecycle.ts';

const world = await startWorld();
const stage = await Stage.on(world);
const stranger = await world.stranger();

const quotas = (): string => `/operator/orgs/${world.orgId}/quotas`;
async function set(request: QuotaRequest): Promise<void> {
  const answer = await world.operator('PUT', quotas(), request);
  assert.equal(answer.status, 200, answer.text);
}
async function used(resource: QuotaResource): Promise<number> {
  const { body } = await world.operator('GET', quotas());
  return (
    (body.quotas as { resource: string; used: number }[]).find((one) => one.resource === resource)?.used ?? -1
  );
}
/** Lets it use this much more than now. */
const leave = async (resource: QuotaResource, more: number): Promise<void> =>
  set({ [resource]: Math.floor(await used(resource)) + more });

beforeEach(() =>
  set(Object.fromEntries(QUOTA_RESOURCES.map((resource) => [resource, null])) as QuotaRequest),
);

function assertRefused(answer: Answer, resource: QuotaResource): void {
  assert.equal(answer.status, 429, answer.text);
  const { error, message, ...rest } = answer.body as Record<string, unknown>;
  assert.equal(message, error);
  assert.match(String(error), new RegExp(`quota of \\d+ ${resource.replaceAll('_', ' ')}`));
  assert.deepEqual([rest.owner, rest.resource], [world.orgId, resource]);
  assert.equal(typeof rest.limit, 'number');
  assert.equal(typeof rest.used, 'number');
  assert.equal(answer.headers.get('retry-after'), '2');
}
const post = (body: object = {}): Promise<Answer> =>
  world.call('POST', '/vms', { image: 'busybox', ...body });

describe('the quota of', () => {
  it('sandboxes is kept by concurrent creates, and what is deleted frees it at once', async () => {
    await leave('sandboxes', 3);
    const answers = await Promise.all(Array.from({ length: 12 }, () => post()));
    const made = answers.filter(({ status }) => status === 200);
    assert.equal(made.length, 3, answers.map(({ text }) => text).join('\n'));
    for (const answer of answers) if (answer.status !== 200) assertRefused(answer, 'sandboxes');
    assert.equal((await stranger('POST', '/vms', { image: 'busybox' })).status, 200);
    assert.equal((await world.call('DELETE', `/vms/${made[0]?.body.vm_id as string}`)).status, 200);
    await until(async () => (await post()).status === 200);
    assertRefused(await post(), 'sandboxes');
  });

  it('sandboxes counts creates of the facade and forks', async () => {
    const source = await stage.paused();
    await leave('sandboxes', 0);
    assertRefused(await world.call('POST', `/vms/${source.id}/fork`), 'sandboxes');
    assert.equal((await world.call('POST', `${COMPAT_PREFIX}/sandbox`, { snapshot: 'busybox' })).status, 429);
  });

  it('cores and memory counts what runs, so that start and resume are refused', async () => {
    const [stopped, paused] = [await stage.stopped(), await stage.paused()];
    for (const resource of ['cores', 'memory_mib'] as const) {
      await set({ cores: null, memory_mib: null });
      await leave(resource, 0);
      assertRefused(await post(), resource);
      assertRefused(await stage.do(stopped, 'start'), resource);
      assertRefused(await stage.do(paused, 'resume'), resource);
    }
    await set({ cores: null, memory_mib: null });
    assert.equal((await stage.do(stopped, 'start')).status, 200);
    assert.equal((await stage.do(paused, 'resume')).status, 200);
  });

  it('stored bytes refuses images, snapshots and volumes once it is reached', async () => {
    const vm = await stage.running();
    await set({ stored_bytes: 0 });
    const refused = [
      await world.call('POST', '/images', {
        name: 'one',
        source: { type: 'registry', ref: 'localhost:5000/one:1' },
      }),
      await world.call('POST', `/vms/${vm.id}/snapshots`, { name: 'one', kind: 'full' }),
      await world.call('POST', '/volumes', { name: 'one' }),
    ];
    for (const answer of refused) assertRefused(answer, 'stored_bytes');
    await set({ stored_bytes: null });
    assert.equal((await world.call('POST', '/volumes', { name: 'one' })).status, 200);
  });

  it('function instances bounds functions without max_instances', async () => {
    const fn = await insertFunction(world);
    await leave('function_instances', 1);
    using gateway = await new GatewayClient(world.internalUrl).open(newUuid());
    const lease = () => gateway.ask({ kind: 'function-instance', version_id: fn.versionId });
    const first = await lease();
    assert.notEqual(first.type, 'refusal', JSON.stringify(first));
    const second = await lease();
    assert.equal(second.type === 'refusal' && second.status, 429, JSON.stringify(second));
    assert.match(JSON.stringify(second), /quota of \d+ function instances/);
    const now = await used('function_instances');
    const quota = { owner: world.orgId, resource: 'function_instances', limit: now, used: now };
    assert.deepEqual(second.type === 'refusal' && second.quota, quota);
  });

  it('pending invocations refuses spawn and map, all of a call or none', async () => {
    const fn = await newFunction(world.database, world.call.projectId);
    await set({ pending_invocations: 2 });
    const map = (count: number) =>
      world.call('POST', `/fns/${fn.name}/map`, { payloads: Array.from({ length: count }, () => 1) });
    assertRefused(await map(3), 'pending_invocations');
    assert.equal((await map(2)).status, 200);
    assertRefused(await world.call('POST', `/fns/${fn.name}/spawn`, {}), 'pending_invocations');
    assert.equal(await used('pending_invocations'), 2);
    const { rows } = await world.database.pool.query(
      'select status from invocations where function_id = $1',
      [fn.id],
    );
    assert.equal(rows.length, 2, 'nothing of a refused call is left');
    const other = await newFunction(world.database, stranger.projectId);
    assert.equal((await stranger('POST', `/fns/${other.name}/spawn`, {})).status, 200);
    await world.database.pool.query('delete from invocation_payloads where org_id = $1', [world.orgId]);
    await until(async () => (await map(1)).status === 200);
  });

  it('bytes of pending invocations is one of the organization, whatever the number', async () => {
    const fn = await newFunction(world.database, world.call.projectId);
    await set({ pending_invocation_bytes: (await used('pending_invocation_bytes')) + 1000 });
    const spawn = (text: string) => world.call('POST', `/fns/${fn.name}/spawn`, text);
    assertRefused(await spawn('x'.repeat(2000)), 'pending_invocation_bytes');
    assert.equal((await spawn('x'.repeat(900))).status, 200);
    assertRefused(await spawn('x'.repeat(200)), 'pending_invocation_bytes');
  });

  it('pending invocations: a schedule that fires into a full backlog is recorded as shed', async () => {
    const fn = await newFunction(world.database, world.call.projectId);
    for (let count = 0; count < 2; count++)
      assert.equal(
        (await world.call('POST', `/fns/${fn.name}/schedules`, { cron: '0 0 1 1 *' })).status,
        200,
      );
    await leave('pending_invocations', 1);
    await fireSchedules(world.database, quiet, { at: new Date(Date.now() + 400 * 86_400_000) });
    // A worker leases the other one now and then, and returns it: it reaches no gateway.
    const { rows } = await world.database.pool.query<{ status: string; error: string | null }>(
      `select case status when 'running' then 'pending' else status end as status, error
         from invocations where function_id = $1 order by 1`,
      [fn.id],
    );
    assert.deepEqual(
      rows.map(({ status }) => status),
      ['pending', 'shed'],
    );
    assert.match(rows[1]?.error ?? '', /quota of \d+ pending invocations/);
  });
});

it('an organization has the quotas of all until an operator sets its own', async () => {
  await set({ sandboxes: 7 });
  const { body } = await world.operator('GET', quotas());
  const [first] = body.quotas as { resource: string; limit: number; source: string }[];
  assert.deepEqual([first?.resource, first?.limit, first?.source], ['sandboxes', 7, 'organization']);
  assert.equal((await world.operator('PUT', quotas(), { sandboxes: -1 })).status, 400);
  assert.equal((await world.operator('PUT', quotas(), { boxes: 1 })).status, 400);
  assert.equal((await world.operator('GET', `/operator/orgs/${newUuid()}/quotas`)).status, 404);
});

it('the bounds of a project hold for requests of the same moment', async () => {
  const fn = await newFunction(world.database, stranger.projectId);
  const most = BOUNDS.schedulesPerFunction;
  const post = async (count: number): Promise<number[]> => {
    const one = () => stranger('POST', `/fns/${fn.name}/schedules`, { cron: '0 0 1 1 *' });
    return (await Promise.all(Array.from({ length: count }, one))).map(({ status }) => status);
  };
  const statuses = [...(await post(most - 3)), ...(await post(12))];
  assert.equal(statuses.filter((status) => status === 200).length, most);
  assert.equal(statuses.filter((status) => status === 400).length, 9);
});
