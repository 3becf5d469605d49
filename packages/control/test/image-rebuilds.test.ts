/** What a name boots while it is rebuilt, when a rebuild fails, and after it was deleted. */
import assert from 'node:assert/strict';
import { randomUUID } from 'node:crypto';
import { describe, it } from 'node:test';
import { ImageRecord, type RootSource } from '@releap/contract';
import { inspect } from '@releap/testing/inspect';
import type { BuildJob } from '@releap/testing/runner-messages';
import { startWorld, until, type Caller, type ScriptedRunner } from '@releap/testing/world';
import { Compile } from 'typebox/compile';

const jobs = new Map<string, BuildJob>();
const world = await startWorld({ limits: { buildsPerProject: 50, buildsPerRunner: 50 } });
const runner = await world.runner({ build: (job) => void jobs.set(job.job_id, job) });

const digest = (pair: string): string => `sha256:${pair.repeat(32)}`;

/** A build that its host has taken up. */
async function posted(call: Caller, name: string, source: unknown): Promise<BuildJob> {
  const { body, status, text } = await call('POST', '/images', { name, source });
  assert.equal(status, 200, text);
  await until(() => jobs.has(body.job_id));
  return jobs.get(body.job_id) as BuildJob;
}

async function built(job: BuildJob, result: Parameters<ScriptedRunner['built']>[1]): Promise<void> {
  const seq = runner.built(job, result);
  await until(() => runner.acked >= seq);
}

async function rootOf(call: Caller, image: string): Promise<RootSource> {
  const { body, text } = await call('POST', '/vms', { image });
  assert.ok(body.job_id, text);
  return (await inspect(world.database, { jobId: body.job_id })).spec.root;
}

describe('a rebuild', () => {
  it('leaves what the name was built to before in use until it is done', async () => {
    const call = await world.stranger();
    const old = { type: 'registry', ref: 'localhost:5000/app:1' };
    await built(await posted(call, 'app', old), { manifest_name: digest('01'), layer_count: 1, bytes: 100 });
    const first = (await call('GET', '/images/app')).body;
    assert.ok(Compile(ImageRecord).Check(first));

    const job = await posted(call, 'app', { type: 'dockerfile', dockerfile: 'FROM localhost:5000/app:1' });
    const pending = (await call('GET', '/images/app')).body;
    assert.deepEqual(
      [pending.status, pending.manifest_name, pending.layer_count, pending.bytes, pending.built_at],
      ['pending', digest('01'), 1, 100, first.built_at],
    );
    assert.deepEqual(await rootOf(call, 'app'), { ...old, digest: digest('01') });

    await built(job, { manifest_name: digest('02'), layer_count: 2, bytes: 200 });
    const ready = (await call('GET', '/images/app')).body;
    assert.deepEqual(
      [ready.status, ready.manifest_name, ready.layer_count, ready.bytes],
      ['ready', digest('02'), 2, 200],
    );
    assert.deepEqual(await rootOf(call, 'app'), { type: 'stored', digest: digest('02') });
  });

  it('that fails leaves it in use too, also when it was replaced before it failed', async () => {
    const call = await world.stranger();
    const dockerfile = (text: string) => ({ type: 'dockerfile', dockerfile: text });
    await built(await posted(call, 'app', dockerfile('FROM a')), { manifest_name: digest('03') });
    await posted(call, 'app', dockerfile('FROM b'));
    const last = await posted(call, 'app', dockerfile('FROM c'));
    await built(last, {
      error: 'step 2 of 3 has failed',
      log_tail: 'one\n\u001b[31mtwo\u001b[0m\n[releap] step 2 of 3 has failed\n',
    });
    const image = (await call('GET', '/images/app')).body;
    assert.deepEqual(
      [image.status, image.error, image.manifest_name, image.source],
      ['failed', 'step 2 of 3 has failed\none\ntwo', digest('03'), dockerfile('FROM c')],
    );
    assert.equal((await call('GET', `/jobs/${last.job_id}`)).body.error, image.error);
    assert.deepEqual(await rootOf(call, 'app'), { type: 'stored', digest: digest('03') });
    // The next rebuild does not forget it either.
    await posted(call, 'app', dockerfile('FROM d'));
    assert.deepEqual(await rootOf(call, 'app'), { type: 'stored', digest: digest('03') });
  });

  it('of a name that was never built leaves nothing to boot', async () => {
    const call = await world.stranger();
    const source = { type: 'dockerfile', dockerfile: 'FROM a' };
    await built(await posted(call, 'app', source), {
      error: 'no such base image',
      log_tail: 'x'.repeat(8000),
    });
    const image = (await call('GET', '/images/app')).body;
    assert.equal(image.manifest_name, undefined);
    const vm = await call('POST', '/vms', { image: 'app' });
    assert.deepEqual(
      [vm.status, vm.body.error],
      [409, 'image "app" could not be built: no such base image. Post it again'],
    );
  });

  it('whose host reports no digest has failed', async () => {
    const call = await world.stranger();
    await built(await posted(call, 'app', 'localhost:5000/app'), { manifest_name: 'app', layer_count: 1 });
    const image = (await call('GET', '/images/app')).body;
    assert.deepEqual([image.status, image.error], ['failed', 'its host reported no digest of the image']);
  });
});

describe('GET /images/:id_or_name', () => {
  it('reads an image by id and by name; 404 for one that is unknown or of another project', async () => {
    const [call, other] = [await world.stranger(), await world.stranger()];
    const { image_id } = await posted(call, 'app', 'localhost:5000/app');
    const image = (await call('GET', '/images/app')).body;
    assert.deepEqual((await call('GET', `/images/${image_id}`)).body, image);
    const [listed] = (await call('GET', '/images')).body.images;
    assert.deepEqual(listed, image);
    for (const [by, id] of [
      [other, 'app'],
      [other, image_id],
      [call, randomUUID()],
      [call, 'a%00b'],
    ] as const) {
      const answer = await by('GET', `/images/${id}`);
      assert.equal(answer.status, 404, answer.text);
    }
  });

  it('reads the built-in image that the project has not replaced', async () => {
    const call = await world.stranger();
    const builtin = (await call('GET', '/images/busybox')).body;
    assert.deepEqual([builtin.source.type, builtin.job_id], ['builtin', undefined]);
    await posted(call, 'busybox', 'localhost:5000/mine');
    assert.equal((await call('GET', '/images/busybox')).body.source.type, 'registry');
    assert.equal((await call('GET', `/images/${builtin.id}`)).status, 404);
  });

  it('400: the id of one image and the name of another', async () => {
    const call = await world.stranger();
    const { image_id } = await posted(call, 'app', 'localhost:5000/app');
    await posted(call, image_id, 'localhost:5000/app');
    const answer = await call('GET', `/images/${image_id}`);
    assert.equal(answer.status, 400, answer.text);
    assert.match(answer.body.error, /is the id of one image and the name of another/);
    assert.equal((await call('DELETE', `/images/${image_id}`)).status, 400);
  });
});

describe('DELETE /images/:id_or_name', () => {
  it('204: the name is free, its build is cancelled, and sandboxes keep what they run from', async () => {
    const call = await world.stranger();
    await built(await posted(call, 'app', 'localhost:5000/app:1'), { manifest_name: digest('04') });
    const vm = await call('POST', '/vms', { image: 'app' });
    const job = await posted(call, 'app', 'localhost:5000/app:2');
    const answer = await call('DELETE', '/images/app');
    assert.deepEqual([answer.status, answer.text], [204, '']);
    await until(() => runner.cancelled.some(({ job_id }) => job_id === job.job_id));
    const record = (await call('GET', `/jobs/${job.job_id}`)).body;
    assert.deepEqual([record.status, record.error], ['failed', 'its image was deleted']);
    assert.equal((await call('GET', '/images/app')).status, 404);
    assert.equal((await call('POST', '/vms', { image: 'app' })).status, 404);
    assert.equal((await call('GET', `/vms/${vm.body.vm_id}?wait=running`)).body.status, 'running');
    // A late report of the build makes no image of it.
    await built(job, { manifest_name: digest('05') });
    assert.equal((await call('GET', '/images/app')).status, 404);
    const again = await posted(call, 'app', 'localhost:5000/app:3');
    assert.notEqual(again.image_id, job.image_id);
  });

  it('404 for one that is unknown, deleted or of another project; 409 for a built-in one', async () => {
    const [call, other] = [await world.stranger(), await world.stranger()];
    await posted(call, 'app', 'localhost:5000/app');
    assert.equal((await other('DELETE', '/images/app')).status, 404);
    assert.equal((await call('DELETE', '/images/app')).status, 204);
    assert.equal((await call('DELETE', '/images/app')).status, 404);
    const builtin = await call('DELETE', '/images/busybox');
    assert.equal(builtin.status, 409, builtin.text);
    assert.match(builtin.body.error, /image "busybox" is built in/);
  });
});
