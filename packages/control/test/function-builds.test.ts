/** Deploys of functions as forms: what is built for them, and how versions follow their builds. */
import assert from 'node:assert/strict';
import { randomBytes } from 'node:crypto';
import { describe, it } from 'node:test';
import { gzipSync } from 'node:zlib';
import { IDEMPOTENCY_HEADER } from '@releap/contract';
import { sha256, tarOf } from '@releap/testing/oci';
import type { BuildJob } from '@releap/testing/runner-messages';
import { obedient, startWorld, until, type Answer, type Caller } from '@releap/testing/world';

const jobs = new Map<string, BuildJob>();
const cancelled: string[] = [];
// Builds of this test do not end by themselves.
const world = await startWorld({ limits: { buildsPerProject: 100, buildsPerRunner: 100 } });
const runner = await world.runner({
  // No handler listens, so that versions stay pending.
  script: (assignment, self) => {
    self.deaf.add(assignment.vm_id);
    return obedient(assignment, self);
  },
  build: (job) => void jobs.set(job.job_id, job),
  cancel: (job, self) => {
    cancelled.push(job.job_id);
    self.built(job, {}, 'cancelled');
  },
});
const context = await tarOf([
  { name: 'docker/Dockerfile', content: 'FROM busybox\n' },
  { name: 'data', content: randomBytes(100_000) },
]);

type Parts = readonly (readonly [name: string, value: string | Buffer])[];

/** Buffers are sent as files. */
function post(call: Caller, parts: Parts, headers: Record<string, string> = {}): Promise<Answer> {
  const form = new FormData();
  for (const [name, value] of parts)
    if (typeof value === 'string') form.append(name, value);
    else form.append(name, new Blob([new Uint8Array(value)]), 'file');
  return call('POST', '/fns', undefined, { headers, body: form });
}

const jobOf = async (id: string): Promise<BuildJob> => {
  await until(() => jobs.has(id));
  return jobs.get(id) as BuildJob;
};
const digest = (): string => `sha256:${randomBytes(32).toString('hex')}`;
const stateOf = async (call: Caller, name = 'app') =>
  (await call('GET', `/fns/${name}/versions`)).body.versions.map(
    (one: { version: number; template_state: string }) => [one.version, one.template_state],
  );
const count = async (sql: string, id: string): Promise<number> =>
  (await world.database.pool.query(sql, [id])).rowCount ?? 0;

describe('POST /fns as a form', () => {
  it('builds the image of the version, which is pending and current when it is built', async () => {
    const call = await world.stranger();
    const config = {
      handler: ['./serve'],
      port: 9000,
      env: { A: 'ü' },
      max_concurrency: 4,
      max_instances: null,
    };
    const { status, body, text } = await post(call, [
      ['context', context],
      ['config', JSON.stringify(config)],
      ['dockerfile', './docker/Dockerfile'],
      ['other', 'x'],
      ['name', 'app'],
    ]);
    assert.equal(status, 200, text);
    const { function_id, version_id, build_job, ...rest } = body;
    assert.deepEqual(rest, {
      name: 'app',
      version: 1,
      image_ref: 'dockerfile',
      template_state: 'building',
      current_version: 1,
    });
    const job = await jobOf(build_job);
    assert.deepEqual(job.root, {
      type: 'dockerfile',
      project_id: call.projectId,
      dockerfile: { path: 'docker/Dockerfile' },
      context: { digest: sha256(context), bytes: context.length },
      docker: false,
      credentials: [],
    });
    const before = (await call('GET', '/fns/app')).body;
    assert.deepEqual(
      [
        before.id,
        before.current_version.version,
        before.current_version.template_state,
        before.latest_version,
      ],
      [function_id, 1, 'building', 1],
    );
    const [listed] = (await call('GET', '/fns')).body.functions;
    assert.deepEqual([listed.current_version, listed.template_state], [1, 'building']);
    const record = (await call('GET', `/jobs/${build_job}`)).body;
    assert.deepEqual([record.kind, record.status], ['build', 'running']);
    runner.logs.set(`/builds/${build_job}/logs`, (_request, response) => response.end('STEP 1\n'));
    assert.equal((await call('GET', `/jobs/${build_job}/logs`)).text, 'STEP 1\n');

    const built = digest();
    runner.built(job, { manifest_name: built, layer_count: 2 });
    await until(
      async () => (await call('GET', '/fns/app')).body.current_version.template_state !== 'building',
    );
    const { current_version: version } = (await call('GET', '/fns/app')).body;
    assert.deepEqual(
      [version.id, version.template_state, version.build_job, version.handler, version.port, version.env],
      [version_id, 'pending', build_job, ['./serve'], 9000, { A: 'ü' }],
    );
    assert.deepEqual([version.max_concurrency, version.max_instances, version.timeout_s], [4, null, 300]);
    const { rows } = await world.database.pool.query('select root from function_versions where id = $1', [
      version_id,
    ]);
    assert.deepEqual(rows[0].root, { type: 'stored', digest: built });
  });

  it('takes the text of a Dockerfile, with and without a context, also as files', async () => {
    const call = await world.stranger();
    const text = 'FROM busybox\nCMD httpd -f\n';
    for (const [dockerfile, sent] of [
      [text, { text }],
      [Buffer.from(text), { text }],
      ['FROM localhost:5000/app', { text: 'FROM localhost:5000/app' }],
      ['# syntax=x\nFROM a', { text: '# syntax=x\nFROM a' }],
    ] as const) {
      const {
        status,
        body,
        text: answer,
      } = await post(call, [
        ['name', 'text'],
        ['dockerfile', dockerfile],
        ['config', Buffer.from('{"port": 1234}')],
      ]);
      assert.equal(status, 200, answer);
      const { root } = await jobOf(body.build_job);
      assert.ok(root.type === 'dockerfile');
      assert.deepEqual([root.dockerfile, root.context], [sent, undefined]);
    }
    const both = await post(call, [
      ['name', 'both'],
      ['dockerfile', text],
      ['context', gzipSync(context)],
    ]);
    const { root } = await jobOf(both.body.build_job);
    assert.ok(root.type === 'dockerfile');
    assert.deepEqual([root.dockerfile, root.context?.digest], [{ text }, sha256(gzipSync(context))]);
    const least = await post(call, [
      ['name', 'least'],
      ['context', context],
    ]);
    const { root: found } = await jobOf(least.body.build_job);
    assert.ok(found.type === 'dockerfile');
    assert.deepEqual(found.dockerfile, { path: 'Dockerfile' });
  });

  it('that fails to build fails its version with the reason, and the version before still serves', async () => {
    const call = await world.stranger();
    await call('POST', '/fns', { name: 'app', image: 'busybox' });
    const { body } = await post(call, [
      ['name', 'app'],
      ['dockerfile', 'FROM busybox\nRUN false\n'],
    ]);
    assert.deepEqual([body.version, body.template_state], [2, 'building']);
    runner.built(await jobOf(body.build_job), {
      error: 'RUN false: exit status 1',
      log_tail: 'STEP 2\nboom\n',
    });
    await until(
      async () => (await call('GET', '/fns/app/versions')).body.versions[0].template_state === 'failed',
    );
    const [failed] = (await call('GET', '/fns/app/versions')).body.versions;
    assert.match(failed.template_error, /^RUN false: exit status 1\n[^]*boom/);
    assert.equal((await call('GET', '/fns/app')).body.current_version.version, 1);
    const job = (await call('GET', `/jobs/${body.build_job}`)).body;
    assert.deepEqual([job.status, job.error], ['failed', failed.template_error]);
  });

  it('replaces the version that serves when its image is built, and not before', async () => {
    const call = await world.stranger();
    await call('POST', '/fns', { name: 'app', image: 'busybox' });
    const { body } = await post(call, [
      ['name', 'app'],
      ['dockerfile', 'FROM busybox\nENV A=1\n'],
    ]);
    assert.deepEqual([body.version, body.current_version], [2, 1]);
    runner.built(await jobOf(body.build_job), { manifest_name: digest() });
    await until(async () => (await call('GET', '/fns/app')).body.current_version.version === 2);
  });

  it('with activate when_ready does not replace a version that serves before it was tried, whichever build ends first', async () => {
    const call = await world.stranger();
    const versions = [];
    for (let at = 0; at < 3; at++)
      versions.push(
        (
          await post(call, [
            ['name', 'app'],
            ['dockerfile', `FROM busybox\nENV AT=${at}\n`],
            ['config', '{"activate": "when_ready"}'],
          ])
        ).body,
      );
    // The second is built first: nothing serves yet, so it is current at once.
    runner.built(await jobOf(versions[1].build_job), { manifest_name: digest() });
    await until(async () => (await call('GET', '/fns/app')).body.current_version.version === 2);
    runner.built(await jobOf(versions[0].build_job), { manifest_name: digest() });
    runner.built(await jobOf(versions[2].build_job), { manifest_name: digest() });
    await until(async () =>
      (await stateOf(call)).every(([, state]: [number, string]) => state === 'pending'),
    );
    assert.equal((await call('GET', '/fns/app')).body.current_version.version, 2);
  });

  it('is followed by another server when the one that took it is gone', async () => {
    const call = await world.stranger();
    const { body } = await post(call, [
      ['name', 'app'],
      ['context', context],
    ]);
    const job = await jobOf(body.build_job);
    await world.restart();
    await runner.connect();
    runner.built(job, { manifest_name: digest() });
    await until(async () => (await call('GET', '/fns/app')).body.current_version.version === 1);
  });

  it('has images that are not among those of the project, and go when a newer version is current', async () => {
    const call = await world.stranger();
    const images = () => count('select 1 from images where project_id = $1', call.projectId);
    const first = await post(call, [
      ['name', 'app'],
      ['dockerfile', 'FROM busybox\nENV A=1\n'],
    ]);
    assert.deepEqual(
      (await call('GET', '/images')).body.images.map((one: { name: string }) => one.name),
      ['busybox'],
    );
    const { rows } = await world.database.pool.query('select id, name from images where project_id = $1', [
      call.projectId,
    ]);
    for (const idOrName of [rows[0].id, encodeURIComponent(rows[0].name)]) {
      assert.equal((await call('GET', `/images/${idOrName}`)).status, 404);
      assert.equal((await call('DELETE', `/images/${idOrName}`)).status, 404);
    }
    assert.equal((await call('POST', '/vms', { image: { type: 'named', name: rows[0].name } })).status, 400);
    runner.built(await jobOf(first.body.build_job), { manifest_name: digest() });
    await until(
      async () => (await call('GET', '/fns/app')).body.current_version.template_state !== 'building',
    );
    await call('POST', '/fns', { name: 'app', image: 'busybox', activate: 'when_ready' });
    await world.control.runTask('function-images');
    assert.equal(await images(), 1, 'it serves');
    await world.database.pool.query('update functions set current_version = 2 where project_id = $1', [
      call.projectId,
    ]);
    await world.control.runTask('function-images');
    assert.equal(await images(), 0);
    assert.equal((await call('GET', '/fns/app/versions')).body.versions[1].build_job, first.body.build_job);
  });

  it('is cancelled when its function is deleted, and its image goes', async () => {
    const call = await world.stranger();
    const { body } = await post(call, [
      ['name', 'app'],
      ['context', context],
    ]);
    await jobOf(body.build_job);
    assert.equal((await call('DELETE', '/fns/app')).status, 204);
    await until(() => cancelled.includes(body.build_job));
    const job = (await call('GET', `/jobs/${body.build_job}`)).body;
    assert.deepEqual([job.status, job.error], ['failed', 'its function was deleted']);
    assert.equal(await count('select 1 from images where project_id = $1', call.projectId), 0);
  });

  it('ends with its project: the build is cancelled, and nothing is left', async () => {
    const call = await world.stranger();
    const { body } = await post(call, [
      ['name', 'app'],
      ['context', context],
    ]);
    await jobOf(body.build_job);
    await world.database.pool.query(
      'update projects set deleted_at = now(), teardown_after = now() where id = $1',
      [call.projectId],
    );
    await until(() => cancelled.includes(body.build_job));
    for (const table of ['functions', 'function_versions', 'images'])
      await until(
        async () => (await count(`select 1 from ${table} where project_id = $1`, call.projectId)) === 0,
      );
  });

  it('under an Idempotency-Key is done once: the same form again gets the same answer, another one is refused', async () => {
    const call = await world.stranger();
    const key = { [IDEMPOTENCY_HEADER]: 'a-form' };
    const parts: Parts = [
      ['name', 'app'],
      ['context', context],
      ['config', '{"port": 81}'],
    ];
    const first = await post(call, parts, key);
    assert.equal(first.status, 200, first.text);
    assert.deepEqual((await post(call, parts, key)).body, first.body);
    assert.equal((await post(call, [...parts.slice(0, 2), ['config', '{"port": 82}']], key)).status, 409);
    // The server dies before it has recorded the response.
    await world.database.pool.query('update idempotency_keys set sealed = null, lease_until = now()');
    assert.deepEqual((await post(call, parts, key)).body, first.body);
    assert.equal((await stateOf(call)).length, 1);
    assert.equal(await count('select 1 from jobs where project_id = $1', call.projectId), 1);
  });

  it('refuses what is not valid, and writes nothing', async () => {
    const call = await world.stranger();
    const name = ['name', 'app'] as const;
    const file = ['context', context] as const;
    const rows: [Parts, RegExp][] = [
      [[file], /^name is required/],
      [[['name', 'App'], file], /^name must be 1 to 64 characters/],
      [[name], /^context is required: send the build context as a file/],
      [[name, ['context', 'text']], /^context must be a file/],
      [[name, ['context', Buffer.from('no archive')]], /^context must be a tar archive/],
      [[name, name, file], /the field "name" more than once/],
      [
        [name, file, ['dockerfile', '../Dockerfile']],
        /^dockerfile must be the path of a file in the context/,
      ],
      [[name, file, ['dockerfile', `FROM a\n${'#'.repeat(70_000)}`]], /^dockerfile has 70007 characters/],
      [[name, file, ['config', '{port: 1}']], /^config must be a JSON object, but is no JSON/],
      [[name, file, ['config', '[]']], /^config must be a JSON object/],
      [[name, file, ['config', '{"port": 0}']], /^port must be an integer from 1 to 65535, but was 0/],
      [[name, file, ['config', '{"env": {"1": "x"}}']], /^env name "1" is not valid/],
      [[name, file, ['config', Buffer.alloc(1024 * 1024 + 1, ' ')]], /^config is too large/],
    ];
    for (const [parts, message] of rows) {
      const { status, body, text } = await post(call, parts);
      assert.equal(status, 400, text);
      assert.match(body.error, message);
    }
    const large = await post(call, [
      name,
      ['context', Buffer.concat([context, Buffer.alloc(8 * 1024 * 1024)])],
    ]);
    assert.equal(large.status, 400, large.text);
    assert.match(
      large.body.error,
      /^context is too large: at most 8388608 bytes \(8 MiB\) are allowed, and the request has 8\d{6}\. List/,
    );
    assert.deepEqual((await call('GET', '/fns')).body, { functions: [], next_cursor: null });
    assert.equal(await count('select 1 from images where project_id = $1', call.projectId), 0);
  });
});
