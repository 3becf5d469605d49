/** Deploys of functions, and what reads of them say. */
import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { IDEMPOTENCY_HEADER } from '@releap/contract';
import { createEventBus } from '../src/platform/events/event-bus.ts';
import { functionByName } from '../src/functions/versions/functions.ts';
import { createVersionStates } from '../src/functions/versions/version-states.ts';
import { quiet, startWorld, until, type Answer, type Caller } from '@releap/testing/world';

// Where a version was tried, its rows stay for this long after the end of that instance.
const world = await startWorld({ builtinImages: ['busybox', 'debian'], limits: { teardownGraceMs: 0 } });

const deploy = (call: Caller, body: object, key?: string): Promise<Answer> =>
  call(
    'POST',
    '/fns',
    { name: 'hello', image: { type: 'named', name: 'busybox' }, ...body },
    key === undefined ? {} : { headers: { [IDEMPOTENCY_HEADER]: key } },
  );

describe('the deploy of a function', () => {
  it('creates version 1, which is current at once, and says what was asked', async () => {
    const call = await world.stranger();
    const { status, body, text } = await deploy(call, {
      handler: ['httpd', '-f'],
      port: 9000,
      env: { GREETING: 'hi' },
      max_instances: 3,
      snapshot_kind: 'fn_ready',
    });
    assert.equal(status, 200, text);
    const { function_id, version_id, ...rest } = body;
    assert.deepEqual(rest, {
      name: 'hello',
      version: 1,
      image_ref: 'busybox',
      build_job: null,
      template_state: 'pending',
      current_version: 1,
    });
    const read = await call('GET', '/fns/hello');
    const { created_at, updated_at, current_version, ...record } = read.body;
    assert.deepEqual(record, {
      id: function_id,
      name: 'hello',
      latest_version: 1,
      public: false,
      requires_token: false,
    });
    assert.match(created_at, /^\d{4}-.*Z$/);
    assert.ok(Date.parse(updated_at) >= Date.parse(created_at));
    const { created_at: since, ...version } = current_version;
    assert.match(since, /^\d{4}-.*Z$/);
    assert.deepEqual(version, {
      id: version_id,
      version: 1,
      image_ref: 'busybox',
      handler: ['httpd', '-f'],
      port: 9000,
      vcpus: 1,
      mem_mib: 512,
      scratch_mib: 512,
      timeout_s: 300,
      scaledown_window_s: 60,
      max_concurrency: 1,
      max_instances: 3,
      env: { GREETING: 'hi' },
      template_state: 'pending',
      template_error: null,
      snapshot_kind: 'fn_ready',
      build_job: null,
    });
    const listed = await call('GET', '/fns');
    assert.deepEqual(listed.body, {
      functions: [
        {
          id: function_id,
          name: 'hello',
          current_version: 1,
          latest_version: 1,
          image_ref: 'busybox',
          template_state: 'pending',
          snapshot_kind: 'fn_ready',
          public: false,
          created_at,
          updated_at,
        },
      ],
      next_cursor: null,
    });
  });

  it('of the same name creates the next version; those before stay as they were, newest first', async () => {
    const call = await world.stranger();
    for (const [at, image] of ['busybox', 'debian', 'localhost:5000/app:1'].entries()) {
      const { body } = await deploy(call, { image, port: 8000 + at });
      assert.deepEqual([body.version, body.image_ref], [at + 1, image]);
    }
    const { versions, next_cursor } = (await call('GET', '/fns/hello/versions')).body;
    assert.deepEqual(
      versions.map((one: { version: number; image_ref: string; port: number }) => [
        one.version,
        one.image_ref,
        one.port,
      ]),
      [
        [3, 'localhost:5000/app:1', 8002],
        [2, 'debian', 8001],
        [1, 'busybox', 8000],
      ],
    );
    assert.equal(next_cursor, null);
    const first = (await call('GET', '/fns/hello/versions?limit=2')).body;
    assert.equal(first.versions.length, 2);
    const second = (await call('GET', `/fns/hello/versions?limit=2&cursor=${first.next_cursor}`)).body;
    assert.deepEqual(
      [...first.versions, ...second.versions].map((one: { version: number }) => one.version),
      [3, 2, 1],
    );
    assert.equal((await call('GET', '/fns/hello/versions?cursor=abc')).status, 400);
    assert.equal((await call('GET', '/fns')).body.functions[0].latest_version, 3);
  });

  it('twenty times at once creates twenty numbered versions of one function', async () => {
    const call = await world.stranger();
    const answers = await Promise.all(Array.from({ length: 20 }, () => deploy(call, { name: 'busy' })));
    assert.deepEqual(
      answers.map(({ body }) => body.version).toSorted((a, b) => a - b),
      Array.from({ length: 20 }, (_, at) => at + 1),
    );
    assert.equal(new Set(answers.map(({ body }) => body.function_id)).size, 1);
    const { versions } = (await call('GET', '/fns/busy/versions')).body;
    assert.deepEqual(
      versions.map((one: { version: number }) => one.version),
      Array.from({ length: 20 }, (_, at) => 20 - at),
    );
  });

  it('under an Idempotency-Key is done once, also when it is sent again at the same time', async () => {
    const call = await world.stranger();
    // A server waits for the first of them for seconds, which are not enough on a busy machine.
    const deployOnce = async (): Promise<Answer> => {
      for (;;) {
        const answer = await deploy(call, {}, 'once');
        if (answer.body.code !== 'idempotency_in_progress') return answer;
      }
    };
    const answers = await Promise.all(Array.from({ length: 4 }, deployOnce));
    answers.push(await deploy(call, {}, 'once'));
    for (const { status, body } of answers) assert.deepEqual([status, body], [200, answers[0]?.body]);
    assert.equal((await call('GET', '/fns/hello/versions')).body.versions.length, 1);
    // The server that runs it dies before it has recorded the response: the next attempt finds what was written.
    await deploy(call, { port: 1 }, 'crashed');
    await world.database.pool.query(
      `update idempotency_keys set sealed = null, lease_until = now() where attempt = 1`,
    );
    const again = await deploy(call, { port: 1 }, 'crashed');
    assert.deepEqual([again.status, again.body.version], [200, 2]);
    assert.equal((await call('GET', '/fns/hello/versions')).body.versions.length, 2);
  });

  it('refuses each row of the contract, and writes nothing', async () => {
    const call = await world.stranger();
    const rows: [object, RegExp][] = [
      [{ name: 'Hello' }, /name must be 1 to 64 characters of a-z 0-9 -.*Hello/],
      [{ port: 0 }, /port must be an integer from 1 to 65535, but was 0/],
      [{ vcpus: 0 }, /vcpus must be .*1/],
      [{ mem_mib: 127 }, /mem_mib must be .*128.*127/],
      [{ scratch_mib: 63 }, /scratch_mib must be .*64.*63/],
      [{ timeout_s: 172_801 }, /timeout_s must be an integer from 1 to 172800, but was 172801/],
      [{ scaledown_window_s: 1 }, /scaledown_window_s must be .*2/],
      [{ scaledown_window_s: 3_601 }, /scaledown_window_s must be at most 3600 here, but was 3601/],
      [{ max_concurrency: 0 }, /max_concurrency must be .*1/],
      [{ max_instances: 0 }, /max_instances must be .*1/],
      [
        { snapshot_kind: 'disk' },
        /snapshot_kind must be one of "pre_entrypoint", "fn_ready", but was "disk"/,
      ],
      [{ env: { '1A': 'x' } }, /env name "1A" is not valid/],
      [{ handler: 'python3' }, /handler must be an array/],
      [{ image: { type: 'snapshot', name: 's' } }, /image must be/],
    ];
    for (const [field, message] of rows) {
      const { status, body } = await deploy(call, field);
      assert.equal(status, 400, JSON.stringify(field));
      assert.match(body.error, message);
    }
    const unknown = await deploy(call, { image: 'nowhere' });
    assert.deepEqual([unknown.status, unknown.body.error], [404, 'image "nowhere" not found']);
    assert.equal((await call('POST', '/fns')).status, 400);
    assert.deepEqual((await call('GET', '/fns')).body, { functions: [], next_cursor: null });
  });

  it('of an image that is built for the first time is refused until it is', async () => {
    const call = await world.stranger();
    await call('POST', '/images', {
      name: 'app',
      source: { type: 'dockerfile', dockerfile: 'FROM busybox' },
    });
    const { status, body } = await deploy(call, { image: 'app' });
    assert.equal(status, 409);
    assert.match(body.error, /image "app" is still being built/);
  });
});

describe('functions', () => {
  it('are listed newest first, and another project has others', async () => {
    const [call, other] = [await world.stranger(), await world.stranger()];
    for (const name of ['a', 'b', 'c']) await deploy(call, { name });
    const theirs = await deploy(other, { name: 'a' });
    const names = (await call('GET', '/fns')).body.functions.map((one: { name: string }) => one.name);
    assert.deepEqual(names, ['c', 'b', 'a']);
    assert.deepEqual(
      (await other('GET', '/fns')).body.functions.map((one: { id: string }) => one.id),
      [theirs.body.function_id],
    );
    assert.equal(theirs.body.version, 1);
    for (const name of ['b', 'unknown', 'B', '%00', 'x'.repeat(500)])
      for (const path of [`/fns/${name}`, `/fns/${name}/versions`])
        assert.equal((await other('GET', path)).status, 404, path);
    assert.match((await other('GET', '/fns/b')).body.error, /^function "b" not found$/);
  });

  it('are at most 10,000 of a project, which are listed in one response; their next versions are no more of them', async () => {
    const call = await world.stranger();
    await deploy(call, { name: 'first' });
    await world.database.pool.query(
      `with f as (
         insert into functions (id, project_id, name, region, latest_version, current_version)
         select gen_random_uuid(), project_id, name || n, region, 1, 1
           from functions, generate_series(1, 9999) n where project_id = $1 returning id, project_id)
       insert into function_versions (id, function_id, project_id, version, image_ref, root, handler, port, vcpus, mem_mib, scratch_mib,
              env, snapshot_kind, timeout_s, scaledown_window_s, max_concurrency, template_state)
       select gen_random_uuid(), id, project_id, 1, 'busybox', '{}', '[]', 80, 1, 128, 64, '{}', 'fn_ready', 1, 2, 1, 'published' from f`,
      [call.projectId],
    );
    const { status, body } = await deploy(call, { name: 'too-many' });
    assert.equal(status, 400);
    assert.match(body.error, /the project has 10000 functions, which is the most allowed/);
    assert.equal((await deploy(call, { name: 'first' })).body.version, 2);
    const listed = await call('GET', '/fns');
    assert.equal(listed.body.functions.length, 10_000);
    assert.equal(listed.body.functions.at(-1).name, 'first');
    assert.equal((await call('DELETE', '/fns/first9')).status, 204);
    assert.equal((await deploy(call, { name: 'too-many' })).status, 200);
  });

  it('GET /fns/:name/versions: all of them, newest first; pages only for clients that ask for them', async () => {
    const call = await world.stranger();
    await deploy(call, {});
    await world.database.pool.query(
      `insert into function_versions (id, function_id, project_id, version, image_ref, root, handler, port, vcpus, mem_mib, scratch_mib,
              env, snapshot_kind, timeout_s, scaledown_window_s, max_concurrency, template_state, created_at)
       select gen_random_uuid(), f.id, project_id, n, 'busybox', '{}', '[]', 80, 1, 128, 64, jsonb_build_object('A', repeat('x', 1000)),
              'pre_entrypoint', 1, 2, 1, 'published', now() + n * interval '1 millisecond'
         from functions f, generate_series(2, 250) n where project_id = $1`,
      [call.projectId],
    );
    const numbers = ({ body }: Answer): number[] =>
      body.versions.map(({ version }: { version: number }) => version);
    const all = await call('GET', '/fns/hello/versions');
    assert.deepEqual(
      numbers(all),
      Array.from({ length: 250 }, (_, index) => 250 - index),
    );
    assert.equal(all.body.next_cursor, null);
    const page = await call('GET', '/fns/hello/versions?limit=1000');
    assert.equal(numbers(page).length, 200);
    const rest = await call('GET', `/fns/hello/versions?cursor=${page.body.next_cursor}`);
    assert.deepEqual([numbers(rest).at(0), numbers(rest).length, rest.body.next_cursor], [50, 50, null]);
    // A list is bounded in bytes: two pages of 100 of these are more.
    await world.database.pool.query(
      `update function_versions set env = jsonb_build_object('A', repeat('x', 100000)) where project_id = $1`,
      [call.projectId],
    );
    const large = await call('GET', '/fns/hello/versions');
    assert.equal(numbers(large).length, 200);
    const end = await call('GET', `/fns/hello/versions?cursor=${large.body.next_cursor}`);
    assert.equal(numbers(end).length, 50);
  });

  it('end with their project', async () => {
    const call = await world.stranger();
    await deploy(call, {});
    await world.database.pool.query(
      'update projects set deleted_at = now(), teardown_after = now() where id = $1',
      [call.projectId],
    );
    await until(async () => {
      const { rowCount } = await world.database.pool.query(
        'select 1 from function_versions where project_id = $1',
        [call.projectId],
      );
      return rowCount === 0;
    });
  });
});

describe('the current version', () => {
  const versionOf = async (
    call: Caller,
  ): Promise<{ version: number; template_state: string; template_error: string }> =>
    (await call('GET', '/fns/hello')).body.current_version;

  it('"moves `current` to it": a deploy answers with it, and calls get it, whatever its first try says', async () => {
    const call = await world.stranger();
    await deploy(call, {});
    const second = await deploy(call, { activate: 'now' });
    assert.deepEqual([second.body.version, second.body.current_version], [2, 2]);
    assert.equal((await versionOf(call)).version, 2);
    assert.equal((await call('GET', '/fns')).body.functions[0].current_version, 2);
    const states = createVersionStates(world.database, createEventBus(quiet));
    await states.fail(second.body.version_id, 'it listened nowhere');
    assert.deepEqual(
      [(await versionOf(call)).version, (await versionOf(call)).template_state],
      [2, 'failed'],
    );
  });

  it('of a deploy with activate when_ready stays until that version can serve, as the answer says', async () => {
    const call = await world.stranger();
    await deploy(call, {});
    const { body } = await deploy(call, { activate: 'when_ready' });
    assert.deepEqual([body.version, body.current_version], [2, 1]);
    assert.equal((await versionOf(call)).version, 1);
    const states = createVersionStates(world.database, createEventBus(quiet));
    await states.publish(body.version_id);
    assert.equal((await versionOf(call)).version, 2);
    const { status, body: refused } = await deploy(call, { activate: 'later' });
    assert.equal(status, 400);
    assert.match(refused.error, /activate must be .*now.*when_ready/);
  });

  it('moves to a later version when that can serve, and never back', async () => {
    const call = await world.stranger();
    const changed: string[] = [];
    const ids: string[] = [];
    for (let at = 0; at < 4; at++) ids.push((await deploy(call, { activate: 'when_ready' })).body.version_id);
    const [one, two, three, four] = ids as [string, string, string, string];
    const { revision: before, id } = await row(call);
    const events = createEventBus(quiet);
    events.on('functions-changed', (functions) => changed.push(...functions));
    const states = createVersionStates(world.database, events);
    assert.equal((await versionOf(call)).version, 1);
    assert.equal(await states.publish(three, { warning: 'not captured' }), true);
    assert.deepEqual(await versionOf(call), {
      ...(await call('GET', '/fns/hello/versions')).body.versions[1],
      version: 3,
      template_state: 'published',
      template_error: 'not captured',
    });
    assert.deepEqual([await states.publish(two), await states.publish(one)], [true, true]);
    assert.equal((await versionOf(call)).version, 3);
    assert.equal(await states.fail(four, 'it listened nowhere'), true);
    assert.equal((await versionOf(call)).version, 3);
    // What has ended stays as it is.
    assert.deepEqual(
      [await states.publish(four), await states.fail(three, 'late'), await states.publish(three)],
      [false, false, false],
    );
    const { versions } = (await call('GET', '/fns/hello/versions')).body;
    assert.deepEqual(
      versions.map((version: { template_state: string; template_error: string }) => [
        version.template_state,
        version.template_error,
      ]),
      [
        ['failed', 'it listened nowhere'],
        ['published', 'not captured'],
        ['published', null],
        ['published', null],
      ],
    );
    assert.deepEqual(changed, [id, id, id, id]);
    assert.equal(Number((await row(call)).revision), Number(before) + 4);
  });

  it('is a new one at once when the one before has failed: there is nothing to protect', async () => {
    const call = await world.stranger();
    const states = createVersionStates(world.database, createEventBus(quiet));
    const first = await deploy(call, {});
    await states.fail(first.body.version_id, 'it listened nowhere');
    assert.equal((await versionOf(call)).template_error, 'it listened nowhere');
    await deploy(call, { activate: 'when_ready' });
    assert.deepEqual(
      [(await versionOf(call)).version, (await versionOf(call)).template_state],
      [2, 'pending'],
    );
    await deploy(call, { activate: 'when_ready' });
    assert.equal((await versionOf(call)).version, 2);
  });

  it('is the newest of those that are published at the same time', async () => {
    const call = await world.stranger();
    const ids: string[] = [];
    for (let at = 0; at < 8; at++) ids.push((await deploy(call, { activate: 'when_ready' })).body.version_id);
    const states = createVersionStates(world.database, createEventBus(quiet));
    const order = [5, 2, 7, 0, 3, 6, 1, 4].map((at) => ids[at] ?? '');
    assert.ok((await Promise.all(order.map((id) => states.publish(id)))).every(Boolean));
    assert.equal((await versionOf(call)).version, 8);
  });

  const row = async (call: Caller) => {
    const found = await functionByName(world.database.pool, call.projectId, 'hello');
    assert.ok(found !== undefined);
    return found;
  };
});
