/** What ends a sandbox by itself. */
import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import type { CompatSandbox } from '@releap/contract';
import { GatewayClient } from '@releap/testing/gateway-client';
import { until } from '@releap/testing/world';
import { call, create, uuidOf, world } from '../support/compat-sandboxes.ts';

describe('intervals of a create', () => {
  /** As if this many minutes had passed since its start, its last activity, or its stop. */
  async function later(id: string, minutes: number): Promise<void> {
    const set = (table: string, key: string, column: string): Promise<unknown> =>
      world.database.pool.query(
        `update ${table} set ${column} = ${column} - $2 * interval '1 minute' where ${key} = $1`,
        [uuidOf(id), minutes],
      );
    // In this order: the lease ends it.
    await set('sandboxes', 'id', 'updated_at');
    await set('sandbox_leases', 'sandbox_id', 'ends_at');
    await set('sandbox_leases', 'sandbox_id', 'expires_at');
  }
  const stateOf = async (id: string): Promise<unknown> => {
    const { status, body } = await call('GET', `/sandbox/${id}`);
    return status === 404 ? 404 : body.state;
  };
  const intervals = ({ autoStopInterval, autoArchiveInterval, autoDeleteInterval }: CompatSandbox) => [
    autoStopInterval,
    autoArchiveInterval,
    autoDeleteInterval,
  ];

  it('are returned; absent ones and 0 end nothing', async () => {
    const plain = await create();
    assert.deepEqual(intervals(plain), [0, 0, -1]);
    const never = await create({
      autoStopInterval: 0,
      autoArchiveInterval: 60,
      autoDeleteInterval: -1,
      ttlMinutes: 0,
    });
    assert.deepEqual(intervals(never), [0, 60, -1]);
    const { rows } = await world.database.pool.query(
      'select 1 from sandbox_leases where sandbox_id = any($1)',
      [[uuidOf(plain.id), uuidOf(never.id)]],
    );
    assert.equal(rows.length, 0);
  });

  it('autoStopInterval stops one without activity, which is then shown as stopped; activity renews it', async () => {
    const [idle, busy, used] = [
      await create({ autoStopInterval: 5 }),
      await create({ autoStopInterval: 5 }),
      await create({ autoStopInterval: 5 }),
    ];
    assert.deepEqual(intervals(idle), [5, 0, -1]);
    using gateway = await new GatewayClient(world.internalUrl).open();
    for (const { id } of [idle, busy, used]) await later(id, 4);
    assert.equal((await call('POST', `/sandbox/${busy.id}/last-activity`)).status, 201);
    // What gateways report: this grant was used.
    const grant = await gateway.ask({ kind: 'toolbox', sandbox: used.id }, call.key);
    assert.equal(grant.type, 'grant');
    gateway.send({ type: 'active', ids: [grant.id] });
    await until(
      async () => (await call('GET', `/sandbox/${used.id}`)).body.lastActivityAt > used.lastActivityAt,
    );
    for (const { id } of [idle, busy, used]) await later(id, 2);
    await until(async () => (await stateOf(idle.id)) === 'stopped');
    assert.deepEqual([await stateOf(busy.id), await stateOf(used.id)], ['started', 'started']);
    // It is shown until it is deleted, and has no lease any more: that ends after the stop.
    const lease = 'select 1 from sandbox_leases where sandbox_id = $1';
    await until(async () => (await world.database.pool.query(lease, [uuidOf(idle.id)])).rowCount === 0);
    assert.equal((await call('DELETE', `/sandbox/${idle.id}`)).status, 200);
    assert.equal(await stateOf(idle.id), 404);
  });

  it('the idle time of one begins when it runs', async () => {
    const { id } = await create({ autoStopInterval: 1 });
    await world.database.pool.query(
      `update sandbox_leases set expires_at = now() - interval '1 hour' where sandbox_id = $1`,
      [uuidOf(id)],
    );
    await world.control.sweep();
    assert.equal(await stateOf(id), 'started');
  });

  it('autoDeleteInterval 0 (ephemeral) deletes at the stop, by the client or for want of activity', async () => {
    const [stopped, idle] = [
      await create({ autoDeleteInterval: 0 }),
      await create({ autoDeleteInterval: 0, autoStopInterval: 5 }),
    ];
    assert.equal((await call('POST', `/sandbox/${stopped.id}/stop`)).body.state, 'destroyed');
    await until(async () => (await stateOf(stopped.id)) === 404);
    await later(idle.id, 6);
    await until(async () => (await stateOf(idle.id)) === 404);
  });

  it('autoDeleteInterval deletes a stopped one after this time, however it was stopped', async () => {
    const [stopped, idle] = [
      await create({ autoDeleteInterval: 10 }),
      await create({ autoDeleteInterval: 10, autoStopInterval: 5 }),
    ];
    await call('POST', `/sandbox/${stopped.id}/stop`);
    await later(idle.id, 6);
    await until(async () => (await stateOf(idle.id)) === 'stopped');
    const limited = async (id: string): Promise<boolean> =>
      (
        await world.database.pool.query(
          'select 1 from sandbox_leases where sandbox_id = $1 and expires_at > now() and idle_s is null',
          [uuidOf(id)],
        )
      ).rowCount === 1;
    await until(() => limited(idle.id));
    for (const { id } of [stopped, idle]) {
      assert.equal(await stateOf(id), 'stopped');
      await later(id, 11);
      await until(async () => (await stateOf(id)) === 404);
    }
  });

  it('ttlMinutes deletes one in spite of activity', async () => {
    const { id, autoDestroyAt } = await create({ ttlMinutes: 10, autoStopInterval: 5 });
    assert.ok(autoDestroyAt !== undefined && new Date(autoDestroyAt).getTime() > Date.now());
    await later(id, 4);
    await call('POST', `/sandbox/${id}/last-activity`);
    await later(id, 7);
    await until(async () => (await stateOf(id)) === 404);
  });
});
