/** `POST /images` from Dockerfiles: as text, and as a form with a build context. */
import assert from 'node:assert/strict';
import { randomBytes } from 'node:crypto';
import { once } from 'node:events';
import { connect } from 'node:net';
import { describe, it } from 'node:test';
import { gzipSync } from 'node:zlib';
import { inspect } from '@releap/testing/inspect';
import { testKeys } from '@releap/testing/keys';
import { sha256, tarOf } from '@releap/testing/oci';
import type { BuildJob } from '@releap/testing/runner-messages';
import { startWorld, until, untilAnswered, type Answer, type Caller } from '@releap/testing/world';

const MAX_BYTES = 1024 * 1024;
const keys = testKeys();
const jobs: BuildJob[] = [];
// Builds of this test do not end.
const limits = { buildContextBytes: MAX_BYTES, buildsPerRunner: 100 };
const world = await startWorld({ keys, limits });
const runner = await world.runner({ build: (job) => void jobs.push(job) });

type Parts = readonly (readonly [name: string, value: string | Buffer])[];

/** Buffers are sent as files. */
function post(call: Caller, parts: Parts, init: RequestInit = {}): Promise<Answer> {
  const form = new FormData();
  for (const [name, value] of parts)
    if (typeof value === 'string') form.append(name, value);
    else form.append(name, new Blob([new Uint8Array(value)]), 'context.tar');
  return call('POST', '/images', undefined, { ...init, body: form });
}

const jobOf = async (id: string): Promise<BuildJob> => {
  await until(() => jobs.some(({ job_id }) => job_id === id));
  return jobs.find(({ job_id }) => job_id === id) as BuildJob;
};
const blobs = async (): Promise<number> =>
  (await world.database.pool.query('select 1 from blobs')).rowCount ?? 0;

describe('POST /images from a Dockerfile', () => {
  it('as JSON: its text is built, with all registry credentials of the project', async () => {
    const call = await world.stranger();
    const other = await world.stranger();
    const login = { username: 'robot', password: 'secret of the registry' };
    await call('PUT', '/registries/ghcr.io', { kind: 'ghcr', ...login });
    await call('PUT', '/registries/localhost:5000', login);
    await other('PUT', '/registries/example.com', login);
    const source = { type: 'dockerfile', dockerfile: 'FROM busybox\nRUN true\n' };
    const { body, status, text } = await call('POST', '/images', { name: 'app', source });
    assert.equal(status, 200, text);
    const job = await jobOf(body.job_id);
    assert.deepEqual(job.root, {
      type: 'dockerfile',
      project_id: call.projectId,
      dockerfile: { text: source.dockerfile },
      docker: false,
      credentials: [
        { host: 'ghcr.io', kind: 'ghcr', ...login },
        { host: 'localhost:5000', kind: 'basic', ...login },
      ],
    });
    const stored = await world.database.pool.query('select payload::text from jobs where id = $1', [
      body.job_id,
    ]);
    assert.doesNotMatch(stored.rows[0].payload, /secret of the registry/);
    assert.deepEqual((await call('GET', '/images/app')).body.source, source);
  });

  it('as a form: the context is stored, and the build names it', async () => {
    const call = await world.stranger();
    const context = await tarOf([
      { name: 'docker/Dockerfile', content: 'FROM busybox\n' },
      { name: 'data', content: randomBytes(300_000) },
    ]);
    const { body, status, text } = await post(call, [
      ['name', 'app'],
      ['dockerfile', './docker/Dockerfile'],
      ['docker', 'yes'],
      ['region', 'here'],
      ['context', context],
    ]);
    assert.equal(status, 200, text);
    const { image_id, job_id, ...rest } = body;
    assert.deepEqual(rest, { name: 'app', status: 'pending', region: 'here' });
    const { root, docker } = await jobOf(job_id);
    assert.equal(docker, true);
    assert.deepEqual(root, {
      type: 'dockerfile',
      project_id: call.projectId,
      dockerfile: { path: 'docker/Dockerfile' },
      context: { digest: sha256(context), bytes: context.length },
      docker: true,
      credentials: [],
    });
    const image = (await call('GET', `/images/${image_id}`)).body;
    assert.deepEqual(
      [image.source, image.docker, image.job_id],
      [{ type: 'dockerfile', path: 'docker/Dockerfile', context_bytes: context.length }, true, job_id],
    );
  });

  it('accepts a form in any order, an archive that is compressed, and fields that it does not know', async () => {
    const call = await world.stranger();
    const context = gzipSync(await tarOf([{ name: 'Dockerfile', content: 'FROM busybox\n' }]));
    const answer = await post(call, [
      ['context', context],
      ['other', 'x'],
      ['file', Buffer.from('not read')],
      ['docker', 'off'],
      ['name', 'any'],
    ]);
    assert.equal(answer.status, 200, answer.text);
    const { root } = await jobOf(answer.body.job_id);
    assert.deepEqual(
      [root.type === 'dockerfile' && root.dockerfile, root.type === 'dockerfile' && root.context?.digest],
      [{ path: 'Dockerfile' }, sha256(context)],
    );
  });

  it('boots sandboxes from exactly what was built', async () => {
    const call = await world.stranger();
    const source = { type: 'dockerfile', dockerfile: 'FROM busybox' };
    const { body } = await call('POST', '/images', { name: 'app', source });
    const early = await call('POST', '/vms', { image: 'app' });
    assert.equal(early.status, 409, early.text);
    assert.match(early.body.error, /image "app" is still being built for the first time/);
    const digest = `sha256:${'12'.repeat(32)}`;
    runner.built(await jobOf(body.job_id), { manifest_name: digest, layer_count: 2 });
    await until(async () => (await call('GET', '/images/app')).body.status === 'ready');
    const vm = await call('POST', '/vms', { image: 'app' });
    const { spec } = await inspect(world.database, { jobId: vm.body.job_id });
    assert.deepEqual(spec.root, { type: 'stored', digest });
  });

  const context = Buffer.alloc(1024);
  for (const [what, parts, message] of [
    ['no name', [['context', context]], /name is required/],
    ['no context', [['name', 'x']], /context is required/],
    ['a name that is not valid', [['name', 'a/b']], /name must be 1 to 128 characters/],
    [
      'a name twice',
      [
        ['name', 'x'],
        ['name', 'x'],
      ],
      /the form has the field "name" more than once/,
    ],
    [
      'two contexts',
      [
        ['context', context],
        ['context', context],
      ],
      /"context" more than once/,
    ],
    ['a name as a file', [['name', Buffer.from('x')]], /name must be a text field/],
    ['a context as text', [['context', 'x']], /context must be a file/],
    [
      'an absolute path',
      [['dockerfile', '/Dockerfile']],
      /dockerfile must be the path of a file in the context/,
    ],
    ['a path outside', [['dockerfile', 'a/../../Dockerfile']], /relative to its root and without "\.\."/],
    ['docker that is neither', [['docker', 'maybe']], /docker must be one of 1, true, yes, on/],
    ['a context that is no archive', [['context', Buffer.alloc(2048, 'x')]], /context must be a tar archive/],
    ['a context that is too short', [['context', Buffer.from('x')]], /has only 1 bytes/],
    ['an empty context', [['context', Buffer.alloc(0)]], /has only 0 bytes/],
    [
      'an unknown region',
      [
        ['name', 'x'],
        ['region', 'nowhere'],
        ['context', context],
      ],
      /region "nowhere" is unknown/,
    ],
  ] as const satisfies readonly (readonly [string, Parts, RegExp])[]) {
    it(`as a form 400: ${what}`, async () => {
      const answer = await post(world.call, parts);
      assert.equal(answer.status, 400, answer.text);
      assert.match(answer.body.error, message);
    });
  }

  it('as a form 400: a context that is too large, of which nothing stays', async () => {
    const before = await blobs();
    const answer = await post(world.call, [
      ['name', 'large'],
      ['context', await tarOf([{ name: 'data', content: Buffer.alloc(MAX_BYTES) }])],
    ]);
    assert.equal(answer.status, 400, answer.text);
    assert.match(
      answer.body.error,
      /context is too large: at most 1048576 bytes \(1 MiB\) are allowed, and the request has 10\d{5}\./,
    );
    assert.equal(await blobs(), before);
    assert.equal((await world.call('GET', '/images/large')).status, 404);
  });

  for (const [what, headers, body, message] of [
    ['no boundary', { 'content-type': 'multipart/form-data' }, 'x', /the form is invalid/],
    ['no end', { 'content-type': 'multipart/form-data; boundary=b' }, '--b\r\n', /the form is invalid/],
    [
      'an end in the middle of the context',
      { 'content-type': 'multipart/form-data; boundary=b' },
      `--b\r\ncontent-disposition: form-data; name="context"; filename="c"\r\n\r\n${'\0'.repeat(2000)}`,
      /the form is invalid/,
    ],
    ['another type', { 'content-type': 'text/plain' }, 'x', /must be JSON/],
  ] as const) {
    it(`as a form 400: ${what}`, async () => {
      const answer = await world.call('POST', '/images', undefined, { headers, body });
      assert.equal(answer.status, 400, answer.text);
      assert.match(answer.body.error, message);
    });
  }

  it('as a form with an Idempotency-Key: the same form creates nothing again, another one is refused', async () => {
    const call = await world.stranger();
    const send = (name: string, content: Buffer): Promise<Answer> =>
      post(
        call,
        [
          ['name', name],
          ['context', content],
        ],
        { headers: { 'idempotency-key': 'once' } },
      );
    const repeated = () => untilAnswered(() => send('repeated', context));
    const [first, second] = await Promise.all([repeated(), repeated()]);
    assert.equal(first.status, 200, first.text);
    assert.deepEqual(second.body, first.body);
    assert.equal(
      (await call('GET', '/images')).body.images.filter((one: { name: string }) => one.name === 'repeated')
        .length,
      1,
    );
    for (const other of [
      await send('other', context),
      await send('repeated', Buffer.concat([context, Buffer.alloc(512)])),
    ]) {
      assert.equal(other.status, 409, other.text);
      assert.match(other.body.error, /was used for another request/);
    }
    const invalid = await post(call, [['name', 'x']], { headers: { 'idempotency-key': 'once more' } });
    assert.equal(invalid.status, 400, invalid.text);
  });

  it('leaves nothing behind when the client leaves in the middle', async () => {
    const before = await blobs();
    const { hostname, port } = new URL(world.url);
    const socket = connect(Number(port), hostname);
    await once(socket, 'connect');
    socket.write(
      `POST /images HTTP/1.1\r\nhost: x\r\nauthorization: Bearer ${world.call.key}\r\n` +
        'content-type: multipart/form-data; boundary=b\r\ncontent-length: 500000\r\n\r\n' +
        '--b\r\ncontent-disposition: form-data; name="name"\r\n\r\nleft\r\n' +
        '--b\r\ncontent-disposition: form-data; name="context"; filename="c"\r\n\r\n' +
        '\0'.repeat(100_000),
    );
    socket.destroy();
    // The next one is served, and then the first has ended.
    const answer = await post(world.call, [
      ['name', 'stayed'],
      ['context', context],
    ]);
    assert.equal(answer.status, 200, answer.text);
    assert.equal((await world.call('GET', '/images/left')).status, 404);
    await until(async () => (await blobs()) <= before + 1);
  });
});

describe('POST /vms from a Dockerfile', () => {
  it('is built on the host with the credentials of the project, and pinned once it has run', async () => {
    const call = await world.stranger();
    const login = { username: 'robot', password: 'another secret' };
    await call('PUT', '/registries/ghcr.io', { kind: 'ghcr', ...login });
    const image = { type: 'dockerfile', dockerfile: 'FROM ghcr.io/org/app', docker: true };
    const created = await call('POST', '/vms', { image, persistent: true });
    assert.equal(created.status, 200, created.text);
    const vm = await inspect(world.database, { jobId: created.body.job_id });
    assert.doesNotMatch(JSON.stringify(vm.spec), /another secret/);
    const assignment = await runner.assigned(vm.id);
    assert.deepEqual(assignment.spec.root, {
      type: 'dockerfile',
      project_id: call.projectId,
      dockerfile: { text: image.dockerfile },
      docker: true,
      credentials: [{ host: 'ghcr.io', kind: 'ghcr', ...login }],
    });
    const path = `/vms/${created.body.vm_id}`;
    const running = await call('GET', `${path}?wait=running`);
    assert.equal(running.body.image_ref, 'dockerfile');
    await call('POST', `${path}/stop`);
    const stopped = await runner.assigned(vm.id, ({ desired }) => desired === 'stopped');
    assert.deepEqual(stopped.spec.root, { type: 'stored', digest: running.body.manifest_name });
  });
});
