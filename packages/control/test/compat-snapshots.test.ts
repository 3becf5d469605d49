/** The compatibility facade's snapshots, as its wire protocol writes them. */
import assert from 'node:assert/strict';
import { before, describe, it } from 'node:test';
import { CompatSnapshot, COMPAT_PREFIX } from '@releap/contract';
import type { BuildJob } from '@releap/testing/runner-messages';
import {
  create,
  startWorld,
  takesSnapshots,
  until,
  waitFor,
  type Answer,
  type Caller,
} from '@releap/testing/world';
import { Compile } from 'typebox/compile';
import { refused } from './support/compat.ts';

/** By the text of the Dockerfile; `registry` for a pull. */
const jobs = new Map<string, BuildJob>();
const world = await startWorld({ limits: { buildsPerProject: 1 } });
const runner = await world.runner({
  facts: { cores: 256, mem_mib: 1_000_000, disk_mib: 10_000_000 },
  build: (job) => void jobs.set(keyOf(job), job),
  snapshot: takesSnapshots,
});

function keyOf({ root }: BuildJob): string {
  return root.type === 'dockerfile' && 'text' in root.dockerfile ? root.dockerfile.text : root.type;
}

const isSnapshot = Compile(CompatSnapshot);
let call: Caller;
const facade = (method: string, path: string, body?: unknown): Promise<Answer> =>
  call(method, `${COMPAT_PREFIX}${path}`, body);

async function post(body: object): Promise<CompatSnapshot> {
  const answer = await facade('POST', '/snapshots', body);
  assert.equal(answer.status, 200, answer.text);
  assert.ok(isSnapshot.Check(answer.body), JSON.stringify([...isSnapshot.Errors(answer.body)]));
  return answer.body;
}

const get = async (name: string): Promise<CompatSnapshot> =>
  (await facade('GET', `/snapshots/${encodeURIComponent(name)}`)).body;

async function jobOf(key: string): Promise<BuildJob> {
  await until(() => jobs.has(key));
  return jobs.get(key) as BuildJob;
}

async function end(job: BuildJob, result: object): Promise<void> {
  const seq = runner.built(job, result);
  await until(() => runner.acked >= seq);
}

const BUILT = { manifest_name: `sha256:${'cd'.repeat(32)}`, layer_count: 1, bytes: 2 ** 30 };

describe('snapshots of the facade', () => {
  before(async () => {
    call = await world.stranger();
  });

  it('goes through the states of a build, and is an image of the project', async () => {
    const text = 'FROM registry.test/app:1\nRUN true\n';
    const made = await post({
      name: 'team/app:1',
      buildInfo: { dockerfileContent: text.trimEnd(), contextHashes: [] },
      entrypoint: ['/run', 'a "b"'],
      cpu: 2,
      memory: 4,
      disk: 10,
    });
    const whole = `${text}${String.raw`ENTRYPOINT ["/run","a \"b\""]`}\n`;
    assert.deepEqual(
      [made.name, made.cpu, made.mem, made.disk, made.entrypoint],
      ['team/app:1', 2, 4, 10, ['/run', 'a "b"']],
    );
    const job = await jobOf(whole);
    await until(async () => (await get('team/app:1')).state === 'building');
    // A build of the project is under way, and it may have one.
    const waiting = await post({ name: 'waiting', imageName: 'registry.test/app:2' });
    assert.deepEqual([waiting.state, waiting.imageName], ['pending', 'registry.test/app:2']);

    const { body: url } = await facade('GET', `/snapshots/${made.id}/build-logs-url`);
    assert.equal(url.url, `${world.url}${COMPAT_PREFIX}/snapshots/${made.id}/build-logs`);
    runner.logs.set(`/builds/${job.job_id}/logs?follow=1`, (_request, response) => response.end('step 1\n'));
    const log = await fetch(`${url.url}?follow=true`, { headers: { authorization: `Bearer ${call.key}` } });
    assert.equal(await log.text(), 'step 1\n');

    await end(job, BUILT);
    const built = await get(made.id);
    assert.deepEqual([built.state, built.size, built.buildInfo?.dockerfileContent], ['active', 1, whole]);
    const { body: images } = await call('GET', '/images');
    assert.ok(
      images.images.some(
        ({ id, name }: { id: string; name: string }) => id === made.id && /^team-app-1-\w{12}$/.test(name),
      ),
    );
    const sandbox = await facade('POST', '/sandbox', { snapshot: 'team/app:1' });
    assert.deepEqual(
      [sandbox.status, sandbox.body.cpu, sandbox.body.memory, sandbox.body.disk],
      [200, 2, 4, 10],
    );
    assert.equal(sandbox.body.snapshot, 'team/app:1');

    const registry = await jobOf('registry');
    await until(async () => (await get('waiting')).state === 'pulling');
    await end(registry, { error: 'no such image' });
    assert.deepEqual(
      [(await get('waiting')).state, (await get('waiting')).errorReason],
      ['error', 'no such image'],
    );
    assert.match(await refused(facade('POST', '/snapshots/waiting/activate'), 409), /no such image/);
    assert.equal((await facade('POST', `/snapshots/${made.id}/activate`)).body.state, 'active');
  });

  it('waits with the log of a build that has not begun, and ends with it', async () => {
    const first = await post({ name: 'first', buildInfo: { dockerfileContent: 'FROM a:1\nRUN first' } });
    const second = await post({ name: 'second', buildInfo: { dockerfileContent: 'FROM a:1\nRUN second' } });
    const followed = fetch(`${world.url}${COMPAT_PREFIX}/snapshots/${second.id}/build-logs?follow=true`, {
      headers: { authorization: `Bearer ${call.key}` },
    });
    assert.equal((await facade('GET', `/snapshots/${second.id}/build-logs`)).text, '');
    await end(await jobOf('FROM a:1\nRUN first\n'), BUILT);
    const job = await jobOf('FROM a:1\nRUN second\n');
    await end(job, { error: 'broken', log_tail: 'its last words\n' });
    assert.equal(await (await followed).text(), 'its last words');
    assert.equal((await get('second')).state, 'build_failed');
    for (const { id } of [first, second])
      assert.equal((await facade('DELETE', `/snapshots/${id}`)).status, 204);
    assert.match(await refused(facade('GET', '/snapshots/second'), 404), /not found/);
  });

  it('lists pages by name, state and time, with built-in images as general ones', async () => {
    const list = async (query: string): Promise<[string[], number, number]> => {
      const { body } = await facade('GET', `/snapshots?${query}`);
      for (const item of body.items) assert.ok(isSnapshot.Check(item));
      return [body.items.map(({ name }: { name: string }) => name), body.total, body.totalPages];
    };
    assert.deepEqual(await list('sort=name&order=asc'), [['busybox', 'team/app:1', 'waiting'], 3, 1]);
    assert.deepEqual(await list('sort=name&order=asc&limit=2&page=2'), [['waiting'], 3, 2]);
    assert.deepEqual(await list('page=9'), [[], 3, 1]);
    assert.deepEqual(await list('name=APP'), [['team/app:1'], 1, 1]);
    assert.deepEqual((await list('sort=state&order=asc'))[0], ['team/app:1', 'waiting', 'busybox']);
    assert.equal((await get('busybox')).general, true);
    assert.match(await refused(facade('DELETE', '/snapshots/busybox'), 409), /built in/);
    assert.match(await refused(facade('GET', '/snapshots/busybox/build-logs-url'), 404), /not found/);
    for (const query of ['page=0', 'page=x', 'sort=size', 'order=up'])
      await refused(facade('GET', `/snapshots?${query}`), 400);
  });

  it('refuses what it cannot make, and names that are taken', async () => {
    const build = { dockerfileContent: 'FROM a:1\nRUN true' };
    const rows: [object, number, RegExp][] = [
      [{ name: 'x' }, 400, /imageName or buildInfo is required/],
      [{ name: 'x', imageName: 'a:1', buildInfo: build }, 400, /exclude each other/],
      [{ name: 'x', buildInfo: { ...build, contextHashes: ['h'] } }, 400, /contextHashes must be empty/],
      [{ name: 'x', imageName: 'A B' }, 400, /imageName/],
      [{ imageName: 'a:1' }, 400, /name is required/],
      [{ name: 'x', imageName: 'a:1', regionId: 'mars' }, 400, /"mars" is unknown/],
      [{ name: 'x', imageName: 'a:1', entrypoint: ['x'.repeat(5000)] }, 400, /entrypoint has 5000/],
      [{ name: 'x', imageName: 'a:1', gpu: 1 }, 501, /GPUs/],
      [{ name: 'x', imageName: 'a:1', cpu: 900 }, 400, /cpu asks for 900 cores/],
      [{ name: 'team/app:1', imageName: 'a:1' }, 409, /already exists/],
      [{ name: 'busybox', imageName: 'a:1' }, 409, /already exists/],
    ];
    for (const [body, status, message] of rows)
      assert.match(await refused(facade('POST', '/snapshots', body), status), message);
    const answers = await Promise.all(
      Array.from({ length: 6 }, () => facade('POST', '/snapshots', { name: 'race', imageName: 'a:1' })),
    );
    const statuses = answers.map(({ status }) => status);
    assert.deepEqual(
      statuses.toSorted((a, b) => a - b),
      [200, ...Array<number>(5).fill(409)],
    );
    const mine = await get('race');
    call = await world.stranger();
    for (const path of ['', '/activate', '/build-logs-url'])
      await refused(facade(path === '/activate' ? 'POST' : 'GET', `/snapshots/${mine.id}${path}`), 404);
  });

  it('starts sandboxes from disk snapshots of the API, and refuses those with memory', async () => {
    const { id } = await create(call, world, { persistent: true });
    await waitFor(call, id, 'running');
    const full = await call('POST', `/vms/${id}/snapshots`, { name: 'memory', kind: 'full' });
    const { id: other } = await create(call, world, {});
    await waitFor(call, other, 'running');
    const disk = await call('POST', `/vms/${other}/snapshots`, { name: 'disk', kind: 'disk' });
    for (const { body } of [full, disk])
      await until(
        async () => (await call('GET', `/snapshots/${body.id ?? body.snapshot_id}`)).body.status === 'ready',
      );
    const listed = (await facade('GET', '/snapshots?order=asc')).body.items.map(
      ({ name }: { name: string }) => name,
    );
    assert.deepEqual(listed.toSorted(), ['busybox', 'disk']);
    const size = await get('disk');
    const made = await facade('POST', '/sandbox', { snapshot: 'disk', cpu: 1 });
    const { status, body } = made;
    assert.deepEqual([status, body.snapshot, body.memory, body.disk], [200, 'disk', size.mem, 1], made.text);
    assert.match(
      await refused(facade('POST', '/sandbox', { snapshot: 'disk', disk: 5 }), 400),
      /^disk is 5 GiB, but that of snapshot "disk" is 0.5 GiB/,
    );
    assert.equal((await facade('POST', '/sandbox', { snapshot: 'disk', disk: 0.5 })).status, 200);
    assert.match(await refused(facade('POST', '/sandbox', { snapshot: 'memory' }), 400), /has memory/);
    await facade('DELETE', `/sandbox/${made.body.id}`);
    assert.equal((await facade('DELETE', '/snapshots/disk')).status, 204);
  });
});
