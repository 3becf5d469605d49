/** What one organization floods leaves places to another: creates that wait for a host, and versions that are tried. */
import assert from 'node:assert/strict';
import { it } from 'node:test';
import { FACTS, silent, startWorld, until, waitFor } from '@releap/testing/world';
import { insertFunction } from './support/function-versions.ts';

it('creates of organizations take turns when a host has capacity, whoever came first', async () => {
  await using world = await startWorld({ limits: { overcommit: { cpu: 1, mem: 1, disk: 1, tier: 'spot' } } });
  const stranger = await world.stranger();
  const body = { image: 'busybox', cpu: 1 };
  for (let count = 0; count < 6; count++) assert.equal((await world.call('POST', '/vms', body)).status, 200);
  const { body: late } = await stranger('POST', '/vms', body);
  await using _runner = await world.runner({ hello: { facts: { ...FACTS, cores: 2 } } });
  await waitFor(stranger, late.vm_id as string, 'running');
  const { body: list } = await world.call('GET', '/vms');
  const statuses = (list.vms as { status: string }[]).map(({ status }) => status);
  assert.equal(statuses.filter((status) => status === 'pending').length, 5, statuses.join());
});

it('the place that becomes free goes to the organization that was served longest ago', async () => {
  await using world = await startWorld({ limits: { overcommit: { cpu: 1, mem: 1, disk: 1, tier: 'spot' } } });
  const stranger = await world.stranger();
  await using _runner = await world.runner({ hello: { facts: { ...FACTS, cores: 1 } } });
  const create = async (call: typeof stranger): Promise<string> =>
    (await call('POST', '/vms', { image: 'busybox', cpu: 1 })).body.vm_id as string;
  const first = await create(world.call);
  await waitFor(world.call, first, 'running');
  const flood: string[] = [];
  for (let count = 0; count < 5; count++) flood.push(await create(world.call));
  const theirs = await create(stranger);
  await world.call('DELETE', `/vms/${first}`);
  await waitFor(stranger, theirs, 'running');
  // And no organization waits for more than one turn of each other one.
  const theirNext = await create(stranger);
  await stranger('DELETE', `/vms/${theirs}`);
  const [oldest = ''] = flood;
  await waitFor(world.call, oldest, 'running');
  await world.call('DELETE', `/vms/${oldest}`);
  await waitFor(stranger, theirNext, 'running');
});

it('versions of one organization that do not start leave places to the version of another', async () => {
  await using world = await startWorld();
  const stranger = await world.stranger();
  // No sandbox that it gets ever runs.
  await using _runner = await world.runner({ script: silent });
  const probes = async (project: string): Promise<number> => {
    const { rowCount } = await world.database.pool.query(
      `select from function_instances i join sandboxes s on s.id = i.sandbox_id
        where i.project_id = $1 and i.purpose = 'probe' and s.status not in ('deleting', 'deleted', 'failed')`,
      [project],
    );
    return rowCount ?? 0;
  };
  for (let count = 0; count < 12; count++) await insertFunction(world, { state: 'pending' });
  await until(async () => (await probes(world.call.projectId)) === 4);
  await insertFunction(world, { state: 'pending', project: stranger.projectId });
  await until(async () => (await probes(stranger.projectId)) === 1);
  assert.equal(await probes(world.call.projectId), 4, 'the flood has half of the places');
});

it('no version of an organization without credits is tried, nor in the way of another, until it is granted some', async () => {
  await using world = await startWorld({ billing: { mode: 'enforce' } });
  const { pool } = world.database;
  // No sandbox that it gets ever runs.
  await using _runner = await world.runner({ script: silent });
  const grant = (project: string) =>
    pool.query(
      `insert into credit_ledger (org_id, amount, kind) select org_id, 1000000000, 'grant' from projects where id = $1`,
      [project],
    );
  const tried = async (): Promise<string[]> => {
    const { rows } = await pool.query<{ version_id: string }>('select version_id from function_instances');
    return rows.map(({ version_id: id }) => id);
  };
  const due = await insertFunction(world, { state: 'pending' });
  // More than a server looks at in one pass.
  for (let count = 0; count < 33; count++) {
    const { projectId: project } = await world.stranger();
    await insertFunction(world, { state: 'pending', project });
  }
  const { projectId: project } = await world.stranger();
  await grant(project);
  const solvent = await insertFunction(world, { state: 'pending', project });
  await until(async () => (await tried()).length > 0);
  assert.deepEqual(await tried(), [solvent.versionId]);
  await grant(world.call.projectId);
  await until(async () => (await tried()).includes(due.versionId));
});
