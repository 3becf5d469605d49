/** A volume on both hosts. */
import assert from 'node:assert/strict';
import { readdir, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { test } from 'node:test';
import { eventually } from '@releap/testing/eventually';
import { isNightly } from '@releap/testing/repetitions';
import {
  PATIENCE_MS,
  service,
  crashes,
  first,
  operator,
  hosts,
  bothReady,
  second,
  SMALL,
} from '../support/second-host.ts';

/** The host that the next sandboxes are placed on. */
async function placeOn(id: string): Promise<void> {
  for (const host of await hosts())
    await operator('POST', `/operator/hosts/${host.id}/${host.id === id ? 'undrain' : 'drain'}`, {});
}

const out = async (id: string, command: string): Promise<string> =>
  (await eventually('exec', () => service.exec(id, command))).result.trim();

test('a volume is on the host whose sandbox mounts it next, and on two at once', async () => {
  const name = 'moving';
  const made = await service.call('POST', '/volumes', { name, size_gb: 1 });
  assert.equal(made.status, 200, JSON.stringify(made.body));
  const here = first.id;
  const there = await bothReady();
  const request = { ...SMALL, volumes: [{ volume: name, mount_path: '/data' }] };
  const detail = async (): Promise<Record<string, unknown>> =>
    (await service.call('GET', `/volumes/${name}`)).body;

  // Written on the first, and read on the second once the first has ended.
  await placeOn(here);
  const writer = await service.create({ ...request, persistent: true });
  await out(writer.id, 'echo one > /data/one; echo both > /data/both');
  assert.equal((await service.call('POST', `/vms/${writer.id}/stop`, {})).status, 200);
  await service.waitFor(writer.id, 'stopped');
  await placeOn(there);
  // Ephemeral ones end with their host.
  const reader = await service.create({ ...request, persistent: true });
  assert.equal((await service.call('GET', `/vms/${reader.id}`)).body['runner_id'], there);
  assert.equal(await out(reader.id, 'cat /data/one'), 'one');

  // Both at once: each host commits and merges, and dies in between.
  await operator('POST', `/operator/hosts/${here}/undrain`, {});
  assert.equal((await service.call('POST', `/vms/${writer.id}/start`, {})).status, 200);
  assert.equal((await service.waitFor(writer.id, 'running'))['status'], 'running');
  for (const step of ['volume:announced', 'volume:merged', 'volume:accepted'])
    await writeFile(join(crashes, step), '');
  await out(writer.id, 'echo two > /data/two; echo of-the-first > /data/both');
  await out(reader.id, 'echo three > /data/three; echo of-the-second > /data/both');
  await eventually(
    'both have all',
    async () => {
      await service.call('POST', `/volumes/${name}/commit`, {});
      for (const { id } of [writer, reader])
        assert.equal(await out(id, 'cat /data/two /data/three'), 'two\nthree');
      assert.equal(
        await out(writer.id, 'ls /data; cat /data/both*'),
        await out(reader.id, 'ls /data; cat /data/both*'),
      );
      return true;
    },
    PATIENCE_MS,
  );
  assert.deepEqual(await readdir(crashes), []);
  const kept = (await out(writer.id, 'cat /data/both*')).split('\n');
  assert.deepEqual(new Set(kept), new Set(['of-the-first', 'of-the-second']));
  const { conflicts } = await detail();
  assert.deepEqual(
    (conflicts as { path: string }[]).map(({ path }) => path),
    ['both'],
  );

  const sandboxes = [writer, reader];
  // The host counts as lost after a minute.
  if (isNightly()) {
    // A host that is lost with changes is named. They are merged when it returns.
    await out(reader.id, 'echo five > /data/five');
    await second.stop('SIGKILL');
    await out(writer.id, 'echo four > /data/four');
    await eventually(
      'the second is lost',
      async () => (await hosts()).some(({ status }) => status === 'lost'),
      PATIENCE_MS,
    );
    assert.match(String((await detail())['error_reason']), new RegExp(there));
    const late = await service.create(request);
    sandboxes.push(late);
    assert.equal(await out(late.id, 'cat /data/four'), 'four');
    second.start();
    await eventually(
      'each host has what the other has committed',
      async () =>
        (await out(reader.id, 'cat /data/four')) === 'four' &&
        (await out(late.id, 'cat /data/five')) === 'five',
      PATIENCE_MS,
    );
    await eventually(
      'nothing is missing any more',
      async () => (await detail())['error_reason'] === undefined,
      PATIENCE_MS,
    );
  }

  assert.equal((await service.call('DELETE', `/volumes/${name}`)).status, 409);
  for (const { id } of sandboxes) await service.call('DELETE', `/vms/${id}`);
  for (const { id } of sandboxes) await service.waitFor(id, 'deleted');
  assert.equal((await service.call('DELETE', `/volumes/${name}`)).status, 200);
  for (const home of [second.home, service.home])
    await eventually(
      `no copy in ${home}`,
      async () => (await readdir(join(home, 'runner/volumes'))).length === 0,
      PATIENCE_MS,
    );
});
