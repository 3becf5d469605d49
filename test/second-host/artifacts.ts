/** Images and disk snapshots of one host on the other. */
import assert from 'node:assert/strict';
import { readdir, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { test } from 'node:test';
import { isDeepStrictEqual } from 'node:util';
import { eventually } from '@releap/testing/eventually';
import { tarOf } from '@releap/testing/oci';
import { appImage } from '../support/app-image.ts';
import {
  SMALL,
  PATIENCE_MS,
  service,
  crashes,
  first,
  operator,
  bothReady,
  storeMetric,
  second,
} from '../support/second-host.ts';

test('an image that one host has built boots on another one', async () => {
  await bothReady();
  const [base] = await appImage();
  const context = await tarOf([
    { name: 'base.tar', content: base ?? '' },
    { name: 'words', content: 'built on the first host\n' },
    { name: 'Dockerfile', content: 'FROM scratch\nADD base.tar /\nCOPY words /words\n' },
  ]);
  const form = new FormData();
  form.set('name', 'moved');
  form.set('context', new Blob([new Uint8Array(context)]));
  const { base_url: url, api_key: key } = service.bootstrap;
  const headers = { authorization: `Bearer ${key}` };
  const posted = await fetch(`${url}/images`, { method: 'POST', headers, body: form });
  assert.equal(posted.status, 200);
  const { job_id: job } = (await posted.json()) as { job_id: string };
  await eventually(
    'the image is built and in the store',
    async () => {
      const { status, error } = (await service.call('GET', `/jobs/${job}`)).body;
      assert.notEqual(status, 'failed', String(error));
      return status === 'done' && (await storeMetric('blobs')) > 0 && (await storeMetric('uploads')) === 0;
    },
    PATIENCE_MS,
  );

  await operator('POST', `/operator/hosts/${first.id}/drain`, {});
  const { id } = await service.create({ ...SMALL, image: 'moved' });
  const { body } = await service.call('GET', `/vms/${id}`);
  assert.notEqual(body['runner_id'], first.id);
  const { result } = await eventually('exec', () => service.exec(id, 'cat /words'));
  assert.equal(result, 'built on the first host\n');
  const digest = String(body['manifest_name']).replace(':', '-');
  assert.ok((await readdir(join(second.cache, 'images', digest))).includes('root.squashfs'));
  await service.remove(id);
});

test('a disk snapshot of a host that is gone is restored on another one', async () => {
  const source = await service.create(SMALL);
  const wrote = await eventually('exec', () => service.exec(source.id, 'echo moved > /on-disk; sync'));
  assert.equal(wrote.exitCode, 0, wrote.result);

  // The uploading host dies at each step; the next process repeats it.
  const uploads = ['artifact:described', 'artifact:part-uploaded', 'artifact:uploaded'];
  for (const name of uploads) await writeFile(join(crashes, name), '');
  const taken = await service.call<{ id: string }>('POST', `/vms/${source.id}/snapshots`, { name: 'moving' });
  assert.equal(taken.status, 200, JSON.stringify(taken.body));
  const home = join(second.home, 'runner/snapshots');
  await eventually(
    'the snapshot is in the store',
    async () => {
      if ((await readdir(crashes)).length > 0 || (await storeMetric('uploads')) > 0) return false;
      // The metric may be a few seconds old.
      return isDeepStrictEqual(await readdir(home), [taken.body.id]);
    },
    PATIENCE_MS,
  ).catch((error: unknown) => {
    throw new Error(`${String(error)}\n${second.output}`);
  });

  await second.stop('SIGKILL');
  await operator('POST', `/operator/hosts/${first.id}/undrain`, {});
  for (const name of ['artifact:part-fetched', 'artifact:placed']) await writeFile(join(crashes, name), '');
  const copy = await service.create({ ...SMALL, image: { type: 'snapshot', name: 'moving' } });
  assert.deepEqual(await readdir(crashes), []);
  const { result } = await eventually('exec', () => service.exec(copy.id, 'cat /on-disk'));
  assert.equal(result.trim(), 'moved');
  await service.remove(copy.id);

  // It returns, with the sandbox that runs there, and removes what is deleted.
  second.start();
  await service.call('DELETE', `/vms/${source.id}`);
  assert.equal((await service.waitFor(source.id, 'deleted'))['status'], 'deleted');
  assert.equal((await service.call('DELETE', `/snapshots/${taken.body.id}`)).status, 200);
  for (const folder of [home, join(service.home, 'runner/snapshots')])
    await eventually(`nothing in ${folder}`, async () => (await readdir(folder)).length === 0, PATIENCE_MS);
});
