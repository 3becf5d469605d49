/** What changes of a function without a deploy: its bounds, its public endpoint, and its end. */
import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { IDEMPOTENCY_HEADER, tokenDigest, tokenKind } from '@releap/contract';
import { functionByName } from '../src/functions/versions/functions.ts';
import {
  create,
  startWorld,
  until,
  waitFor,
  refusalOf,
  type Answer,
  type Caller,
} from '@releap/testing/world';

const world = await startWorld();

async function deployed(body: object = {}): Promise<Caller> {
  const call = await world.stranger();
  const { status, text } = await call('POST', '/fns', { name: 'hello', image: 'busybox', ...body });
  assert.equal(status, 200, text);
  return call;
}

const revisionOf = async (call: Caller): Promise<number> => {
  const row = await functionByName(world.database.pool, call.projectId, 'hello');
  return Number(row?.revision);
};

const UNKNOWN = { error: 'function "hello" not found', code: 'function_not_found', retryable: false };

describe('PATCH /fns/:name/config', () => {
  const patch = (call: Caller, body: object, name = 'hello'): Promise<Answer> =>
    call('PATCH', `/fns/${name}/config`, body);

  it('changes the current version in place: what is absent stays, and null removes the bound of instances', async () => {
    const call = await deployed({ max_instances: 5, timeout_s: 10, port: 9000 });
    const before = await revisionOf(call);
    const steps: [object, object][] = [
      [
        { max_concurrency: 8 },
        { max_concurrency: 8, scaledown_window_s: 60, timeout_s: 10, max_instances: 5 },
      ],
      [
        { timeout_s: 172_800 },
        { max_concurrency: 8, scaledown_window_s: 60, timeout_s: 172_800, max_instances: 5 },
      ],
      [
        { max_instances: null },
        { max_concurrency: 8, scaledown_window_s: 60, timeout_s: 172_800, max_instances: null },
      ],
      [{}, { max_concurrency: 8, scaledown_window_s: 60, timeout_s: 172_800, max_instances: null }],
      [
        { max_instances: 2, scaledown_window_s: 2, timeout_s: null },
        { max_concurrency: 8, scaledown_window_s: 2, timeout_s: 172_800, max_instances: 2 },
      ],
    ];
    for (const [body, expected] of steps)
      assert.deepEqual((await patch(call, body)).body, { version: 1, ...expected });
    const { versions } = (await call('GET', '/fns/hello/versions')).body;
    assert.deepEqual([versions[0].max_instances, versions[0].port], [2, 9000]);
    assert.equal(await revisionOf(call), before + steps.length);
    await call('POST', '/fns', { name: 'hello', image: 'busybox' });
    const { current_version: next } = (await call('GET', '/fns/hello')).body;
    assert.deepEqual([next.max_concurrency, next.timeout_s], [1, 300], 'the next version has its own');
    assert.equal((await patch(call, { max_instances: 4 })).body.version, 2);
    const [, former] = (await call('GET', '/fns/hello/versions')).body.versions;
    assert.equal(former.max_instances, 2, 'those before stay as they are');
  });

  it('right after a deploy is not lost: what is to replace the current version has the change too', async () => {
    const call = await deployed({ max_instances: 5 });
    await call('POST', '/fns', { name: 'hello', image: 'busybox', activate: 'when_ready' });
    assert.deepEqual((await patch(call, { max_instances: 2 })).body, {
      version: 1,
      max_concurrency: 1,
      scaledown_window_s: 60,
      timeout_s: 300,
      max_instances: 2,
    });
    const { versions } = (await call('GET', '/fns/hello/versions')).body;
    assert.deepEqual(
      versions.map((one: { max_instances: number }) => one.max_instances),
      [2, 2],
    );
  });

  it('refuses what is out of its range, and changes nothing', async () => {
    const call = await deployed();
    for (const [body, message] of [
      [{ max_concurrency: 0 }, /max_concurrency must be .*1/],
      [{ max_instances: 0 }, /max_instances must be .*1.* or null, but was 0/],
      [{ max_instances: 'none' }, /max_instances must be .* or null/],
      [{ timeout_s: 0 }, /timeout_s must be an integer from 1 to 172800, but was 0/],
      [{ timeout_s: 172_801 }, /timeout_s must be/],
      [{ scaledown_window_s: 1 }, /scaledown_window_s must be .*2/],
      [{ scaledown_window_s: 3_601 }, /scaledown_window_s must be at most 3600 here, but was 3601/],
      [{ timeout_s: 5, max_concurrency: 1.5 }, /max_concurrency must be an integer/],
    ] as const) {
      const { status, body: answer } = await patch(call, body);
      assert.equal(status, 400, JSON.stringify(body));
      assert.match(answer.error, message);
    }
    assert.equal((await call('GET', '/fns/hello')).body.current_version.timeout_s, 300);
    const other = await world.stranger();
    assert.deepEqual(refusalOf(await patch(other, {})), UNKNOWN);
  });

  it('of a function whose image could not be built is refused: there is nothing to change', async () => {
    const call = await deployed();
    await world.database.pool.query('update functions set current_version = null where project_id = $1', [
      call.projectId,
    ]);
    await world.database.pool.query(
      `update function_versions set template_state = 'failed' where project_id = $1`,
      [call.projectId],
    );
    const { status, body } = await patch(call, { timeout_s: 5 });
    assert.equal(status, 404);
    assert.match(body.error, /"hello" has no version that can serve/);
    const shown = (await call('GET', '/fns/hello')).body.current_version;
    assert.deepEqual([shown.version, shown.template_state], [1, 'failed']);
  });

  it('done many times at once loses none of the changes', async () => {
    const call = await deployed();
    const before = await revisionOf(call);
    await Promise.all([
      ...Array.from({ length: 5 }, () => patch(call, { max_concurrency: 7 })),
      ...Array.from({ length: 5 }, () => patch(call, { timeout_s: 77 })),
      ...Array.from({ length: 5 }, () => patch(call, { max_instances: 777 })),
    ]);
    const { current_version: now } = (await call('GET', '/fns/hello')).body;
    assert.deepEqual([now.max_concurrency, now.timeout_s, now.max_instances], [7, 77, 777]);
    assert.equal(await revisionOf(call), before + 15);
  });
});

describe('POST /fns/:name/public', () => {
  const post = (call: Caller, body: object, key?: string): Promise<Answer> =>
    call(
      'POST',
      '/fns/hello/public',
      body,
      key === undefined ? {} : { headers: { [IDEMPOTENCY_HEADER]: key } },
    );
  const digestOf = async (call: Caller): Promise<Buffer | null> =>
    (await functionByName(world.database.pool, call.projectId, 'hello'))?.token_hash ?? null;

  it('enables and disables the endpoint, without a token unless one is asked for', async () => {
    const call = await deployed();
    const url = `/fn/${call.projectId}/hello`;
    const open = await post(call, { enabled: true });
    assert.deepEqual(
      [open.status, open.body],
      [200, { public: true, url, requires_token: false, token: null }],
    );
    const { public: shown, requires_token } = (await call('GET', '/fns/hello')).body;
    assert.deepEqual([shown, requires_token], [true, false]);
    assert.equal((await call('GET', '/fns')).body.functions[0].public, true);
    const closed = await post(call, { enabled: false, require_token: true });
    assert.deepEqual(closed.body, { public: false, url, requires_token: false, token: null });
    assert.equal((await call('GET', '/fns/hello')).body.public, false);
  });

  it('shows a token once, stores its digest, and rotates it when it is disabled and enabled again', async () => {
    const call = await deployed();
    const first = (await post(call, { enabled: true, require_token: true })).body;
    assert.equal(tokenKind(first.token), 'function');
    assert.deepEqual([first.public, first.requires_token], [true, true]);
    assert.deepEqual(await digestOf(call), tokenDigest(first.token));
    const again = (await post(call, { enabled: true, require_token: true })).body;
    assert.deepEqual([again.requires_token, again.token], [true, null]);
    assert.deepEqual(await digestOf(call), tokenDigest(first.token), 'the first token still works');
    assert.doesNotMatch((await call('GET', '/fns/hello')).text, /rlpf_/);

    assert.equal((await post(call, { enabled: false })).body.token, null);
    assert.equal(await digestOf(call), null, 'a disabled endpoint has no token');
    const second = (await post(call, { enabled: true, require_token: true })).body;
    assert.notEqual(second.token, first.token);
    assert.deepEqual(await digestOf(call), tokenDigest(second.token));

    assert.equal((await post(call, { enabled: true })).body.requires_token, false);
    assert.equal(await digestOf(call), null, 'without a token nothing is left of the one before');
    assert.equal(
      tokenKind((await post(call, { enabled: true, require_token: true })).body.token),
      'function',
    );
  });

  it('of several at once only one gets the token, and it is the one that works', async () => {
    const call = await deployed();
    const answers = await Promise.all(
      Array.from({ length: 8 }, () => post(call, { enabled: true, require_token: true })),
    );
    const tokens = answers.map(({ body }) => body.token).filter((token) => token !== null);
    assert.equal(tokens.length, 1);
    assert.deepEqual(await digestOf(call), tokenDigest(tokens[0]));
  });

  it('under an Idempotency-Key returns the same token again', async () => {
    const call = await deployed();
    const body = { enabled: true, require_token: true };
    const first = await post(call, body, 'enable');
    assert.equal(tokenKind(first.body.token), 'function');
    assert.deepEqual((await post(call, body, 'enable')).body, first.body);
  });

  it('grows the revision that gateways compare, stays over deploys, and refuses unknown functions and other bodies', async () => {
    const call = await deployed();
    const before = await revisionOf(call);
    await post(call, { enabled: true, require_token: true });
    assert.equal(await revisionOf(call), before + 1);
    await call('POST', '/fns', { name: 'hello', image: 'busybox' });
    const { public: shown, requires_token } = (await call('GET', '/fns/hello')).body;
    assert.deepEqual([shown, requires_token], [true, true]);
    const other = await world.stranger();
    assert.deepEqual(refusalOf(await post(other, { enabled: true })), UNKNOWN);
    for (const body of [{}, { enabled: 'yes' }, { enabled: true, require_token: 1 }])
      assert.equal((await post(call, body)).status, 400);
  });
});

describe('DELETE /fns/:name', () => {
  const sql = async (text: string, ...values: unknown[]) =>
    (await world.database.pool.query(text, values)).rows;

  /** Deletes the function while an invocation waits: the server leases none that is locked, which the deletion waits for. */
  async function deleteBeforeLease(name: string, id: string): Promise<Answer> {
    const holder = await world.database.pool.connect();
    try {
      await holder.query('begin');
      const lock = `select 1 from invocations where function_id = $1 and status = 'pending' for update`;
      await until(async () => (await holder.query(lock, [id])).rowCount === 1);
      const deleting = world.call('DELETE', `/fns/${name}`);
      const waiting = `select 1 from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'
                          and query like '%its function was deleted%'`;
      await Promise.race([deleting, until(async () => (await sql(waiting)).length === 1)]);
      await holder.query('commit');
      return await deleting;
    } finally {
      holder.release(true);
    }
  }

  it('frees the name at once, and leaves nothing that a client can read or call', async () => {
    const call = await deployed({ env: { A: 'private' } });
    const { id } = (await call('GET', '/fns/hello')).body;
    await call('POST', '/fns/hello/public', { enabled: true, require_token: true });
    await call('POST', '/fns', { name: 'stays', image: 'busybox' });
    const before = await revisionOf(call);
    // The function's row is not removed as long as an invocation names it.
    await sql(
      `insert into invocations (id, queued_at, project_id, function_id, source, status)
       values (gen_random_uuid(), now(), $2, $1, 'map', 'succeeded')`,
      id,
      call.projectId,
    );
    const gone = await call('DELETE', '/fns/hello');
    const [row] = await sql('select * from functions where id = $1', id);
    const [version] = await sql('select * from function_versions where function_id = $1', id);
    assert.deepEqual([gone.status, gone.text], [204, '']);
    for (const name of ['hello', encodeURIComponent(`hello/${id}`)]) {
      for (const [method, path, body] of [
        ['GET', `/fns/${name}`],
        ['GET', `/fns/${name}/versions`],
        ['DELETE', `/fns/${name}`],
        ['PATCH', `/fns/${name}/config`, {}],
      ] as const)
        assert.equal((await call(method, path, body)).status, 404, `${method} ${path}`);
    }
    const names = (await call('GET', '/fns')).body.functions.map((one: { name: string }) => one.name);
    assert.deepEqual(names, ['stays']);
    assert.deepEqual(
      [row.public, row.token_hash, row.current_version, Number(row.revision)],
      [false, null, null, before + 1],
    );
    assert.deepEqual(
      [version.env, version.template_state, version.template_error],
      [{}, 'failed', 'its function was deleted'],
    );

    const again = await call('POST', '/fns', { name: 'hello', image: 'busybox' });
    assert.equal(again.body.version, 1);
    assert.notEqual(again.body.function_id, id);
    // If its version was tried meanwhile: the row stays as long as that instance.
    await sql('delete from function_instances where function_id = $1', id);
    await sql('delete from invocations where function_id = $1', id);
    await world.control.runTask('function-deletions');
    assert.deepEqual(
      await sql('select name from functions where project_id = $1 order by name', call.projectId),
      [{ name: 'hello' }, { name: 'stays' }],
    );
    const other = await world.stranger();
    assert.equal((await other('DELETE', '/fns/stays')).status, 404);
    assert.equal((await call('GET', '/fns/stays')).status, 200);
  });

  it('ends instances, schedules and invocations that wait; its row goes after the last of them and of its log', async () => {
    await using runner = await world.runner();
    assert.ok(runner.id);
    const { call } = world;
    const { body } = await call('POST', '/fns', { name: 'busy', image: 'busybox' });
    const vm = await create(call, world);
    await waitFor(call, vm.id, 'running');
    await sql(
      `update sandboxes set owner_kind = 'service', owner_service = 'functions' where id = $1`,
      vm.uuid,
    );
    await sql(
      `insert into function_instances (sandbox_id, function_id, version_id, project_id, purpose) values ($1, $2, $3, $4, 'serve')`,
      vm.uuid,
      body.function_id,
      body.version_id,
      call.projectId,
    );
    await sql(
      `insert into function_schedules (id, function_id, project_id, cron, enabled) values (gen_random_uuid(), $1, $2, '* * * * *', true)`,
      body.function_id,
      call.projectId,
    );
    await sql(
      `with i as (
         insert into invocations (id, queued_at, project_id, function_id, source, status)
         select gen_random_uuid(), now(), $2, $1, 'map', status from unnest(array['pending', 'succeeded']) status returning id, status)
       insert into invocation_payloads (invocation_id, content_type, body) select id, 'text/plain', '' from i where status = 'pending'`,
      body.function_id,
      call.projectId,
    );
    assert.equal((await deleteBeforeLease('busy', body.function_id)).status, 204);
    assert.deepEqual(
      await sql(
        'select status, error from invocations where function_id = $1 order by status',
        body.function_id,
      ),
      [
        { status: 'failed', error: 'its function was deleted' },
        { status: 'succeeded', error: null },
      ],
    );
    assert.deepEqual(await sql('select 1 from invocation_payloads'), []);
    assert.deepEqual(await sql('select 1 from function_schedules'), []);
    await until(
      async () => (await sql('select status from sandboxes where id = $1', vm.uuid))[0]?.status === 'deleted',
    );
    const isThere = async (): Promise<boolean> => {
      await world.control.runTask('function-deletions');
      return (await sql('select 1 from functions where id = $1', body.function_id)).length === 1;
    };
    assert.equal(await isThere(), true);
    await sql('delete from function_instances where function_id = $1', body.function_id);
    assert.equal(await isThere(), true, 'its log is there');
    await sql('delete from invocations where function_id = $1', body.function_id);
    assert.equal(await isThere(), false);
  });
});
