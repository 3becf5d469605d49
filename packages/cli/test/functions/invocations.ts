/** `rlp fn logs`, `calls`, `stats`, `spawn`, `map`, `get` and `rm`. */
import assert from 'node:assert/strict';
import { join } from 'node:path';
import { describe, test } from 'node:test';
import { newUuid } from '@releap/contract';
import { until } from '@releap/testing/world';
import { folder, query, service } from '../support/function-world.ts';
import { json } from '../rlp.ts';
import type { Project } from '../world.ts';

describe('rlp fn logs, calls and stats', () => {
  test('show what was called, how long it took and what it cost', async () => {
    const project = await service.project();
    await project.rlp(['fn', 'deploy', 'hello', '--image', 'busybox', '--no-wait']);
    const [fn] = await query<{ id: string }>('select id from functions where project_id = $1', [
      project.projectId,
    ]);
    const queued = new Date(Date.now() - 60_000);
    for (const [status, ms, error] of [
      ['succeeded', 10, null],
      ['failed', 30, 'the handler answered 500\u001b[2J'],
    ])
      await query(
        `insert into invocations (id, queued_at, project_id, function_id, version, source, status, duration_ms, cold, error, billed)
         values ($1, $2, $3, $4, 1, 'invoke', $5, $6, true, $7, 5.12e15)`,
        [newUuid(), queued, project.projectId, fn?.id, status, ms, error],
      );
    const calls = (await project.rlp(['fn', 'calls', 'hello'])).stdout.split('\n');
    assert.equal(calls.length, 4);
    assert.match(calls.join('\n'), /v1 +failed +30\.0 ms +cold +the handler answered 500\?\[2J/);
    const one = await project.rlp([
      'fn',
      'calls',
      'hello',
      '--status',
      'succeeded',
      '--fn-version',
      '1',
      '-n',
      '5',
      '--json',
    ]);
    assert.deepEqual(
      (JSON.parse(one.stdout) as { duration_ms: number }[]).map((call) => call.duration_ms),
      [10],
    );
    const all = (await project.rlp(['fn', 'stats'])).stdout;
    assert.match(
      all,
      /^FUNCTION .*\nhello +2 +1 +1 +0 +0 +100\.0 % +20\.0 ms +20\.0 ms +29\.0 ms +29\.8 ms\ncost: 0\.00001 credits\n$/,
    );
    const hourly = (await project.rlp(['fn', 'stats', 'hello', '--since', '2h'])).stdout;
    assert.match(hourly, /credits\nSTART +CALLS .*\n\d{4}-\d\d-\d\d \d\d:00 +2 +1 +1 +0 +2 +0 +20\.0 ms\n$/);
    const daily = json(await project.rlp(['fn', 'stats', 'hello', '--by', 'day', '--json']));
    assert.match(JSON.stringify(daily['points']), /T00:00:00.000Z/);
    for (const wrong of [
      ['--by', 'hour'],
      ['hello', '--by', 'week'],
      ['--since', 'long'],
    ])
      assert.equal((await project.rlp(['fn', 'stats', ...wrong])).code, 2);
    assert.equal((await project.rlp(['fn', 'calls', 'nothing'])).code, 4);
  });

  test('print what instances have printed', async () => {
    const project = await service.project();
    await project.rlp(['fn', 'deploy', 'hello', '--image', 'busybox', '--no-wait']);
    assert.deepEqual(await project.rlp(['fn', 'logs', 'hello']), { code: 0, stdout: '', stderr: '' });
    const vm = await project.create('instance');
    await query(
      `insert into function_instances (sandbox_id, function_id, version_id, project_id, purpose)
       select $1, v.function_id, v.id, v.project_id, 'serve' from function_versions v where v.project_id = $2`,
      [vm.uuid, project.projectId],
    );
    service.runner.logs.set(`/vms/${vm.uuid}/logs/entrypoint`, (_request, response) =>
      response.end('hello\n'),
    );
    const line = `[v1 ${vm.uuid.slice(0, 8)}] hello\n`;
    assert.equal((await project.rlp(['fn', 'logs', 'hello'])).stdout, line);
    assert.equal((await project.rlp(['fn', 'logs', 'hello', '--fn-version', '2'])).stdout, '');
    const answer = await project.rlp(['fn', 'logs', 'hello', '--json']);
    assert.deepEqual(json(answer), { name: 'hello', text: line });
    assert.equal((await project.rlp(['fn', 'logs', 'nothing'])).code, 4);
    assert.equal((await project.rlp(['fn', 'logs', '-f', 'hello', '--json'])).code, 2);
  });
});

describe('rlp fn spawn, map, get and rm', () => {
  /** Ends invocations as a worker does, in the order in which they were stored. */
  async function end(
    project: Project,
    outcomes: { status: string; result?: string; error?: string }[],
  ): Promise<void> {
    const waiting = async (): Promise<{ id: string }[]> =>
      query(
        'select id from invocations where project_id = $1 and finished_at is null order by queued_at, id',
        [project.projectId],
      );
    await until(async () => (await waiting()).length === outcomes.length);
    for (const [index, { id }] of (await waiting()).entries()) {
      const { status, result = null, error = null } = outcomes[index] ?? {};
      await query(
        `update invocations set status = $2, result = $3::json, error = $4, finished_at = now(), duration_ms = 5, cold = false, version = 1,
                attempt = attempt + 1, lease_until = null where id = $1`,
        [id, status, result, error],
      );
    }
  }
  const bodies = async (project: Project): Promise<string[]> =>
    (
      await query<{ text: string }>(
        `select convert_from(p.body, 'utf8') || ' ' || p.content_type as text
           from invocation_payloads p join invocations i on i.id = p.invocation_id where i.project_id = $1 order by 1`,
        [project.projectId],
      )
    ).map(({ text }) => text);
  const deployed = async (): Promise<Project> => {
    const project = await service.project();
    await project.rlp(['fn', 'deploy', 'hello', '--image', 'busybox', '--no-wait']);
    return project;
  };

  test('spawn sends an argument, a file or stdin, and prints the id', async () => {
    const project = await deployed();
    const file = join(folder, 'main.sh');
    for (const [args, input] of [
      [['{"n":1}'], ''],
      [['-'], 'from stdin'],
      [['-f', file, '-H', 'content-type: text/x-sh'], ''],
      [['-f', '-'], '[2]'],
      [[], 'not read'],
    ] as const) {
      const spawned = await project.rlp(['fn', 'spawn', 'hello', ...args], { input });
      assert.match(spawned.stdout, /^[0-9a-f-]{36}\n$/, spawned.stderr);
    }
    const plain = 'text/plain; charset=utf-8';
    assert.deepEqual(
      (await bodies(project)).toSorted(),
      [
        ` ${plain}`,
        '[2] application/json',
        'echo hi\n text/x-sh',
        `from stdin ${plain}`,
        '{"n":1} application/json',
      ].toSorted(),
    );
    for (const wrong of [
      ['{}', '-f', file],
      ['-f', '/nonexistent'],
      ['-H', 'none'],
      ['-H', 'a b: c'],
    ])
      assert.equal((await project.rlp(['fn', 'spawn', 'hello', ...wrong])).code, 2, wrong.join(' '));
    const large = await project.rlp(['fn', 'spawn', 'hello', '-'], { input: Buffer.alloc(6 * 2 ** 20 + 1) });
    assert.deepEqual([large.code, /at most 6 MiB/.test(large.stderr)], [2, true]);
    assert.equal((await project.rlp(['fn', 'spawn', 'nothing'])).code, 4);
  });

  test('--wait and get print the result, and fail with the invocation', async () => {
    const project = await deployed();
    const waiting = project.rlp(['fn', 'spawn', 'hello', '--wait']);
    await end(project, [{ status: 'succeeded', result: '{"sum": 3}' }]);
    const { code, stdout, stderr } = await waiting;
    assert.deepEqual([code, stdout], [0, '{"sum":3}\n']);
    assert.match(stderr, /^STATUS .*\nsucceeded +v1 +5\.0 ms +warm\n$/);
    const id = (await project.rlp(['fn', 'spawn', 'hello'])).stdout.trim();
    const pending = await project.rlp(['fn', 'get', id]);
    assert.deepEqual(
      [pending.code, pending.stdout, /\npending|\nrunning/.test(pending.stderr)],
      [0, '', true],
    );
    const failing = project.rlp(['fn', 'get', id, '--wait', '--json']);
    await end(project, [{ status: 'failed', error: 'the handler answered 500' }]);
    const failed = await failing;
    assert.deepEqual(
      [failed.code, json(failed)['error'], json(failed)['done']],
      [1, 'the handler answered 500', true],
    );
    assert.equal((await project.rlp(['fn', 'get', newUuid()])).code, 4);
  });

  test('map calls once for each element; rm deletes', async () => {
    const project = await deployed();
    const ids = (await project.rlp(['fn', 'map', 'hello', '-'], { input: '[1, {"a": 2}]' })).stdout
      .trim()
      .split('\n');
    assert.deepEqual(
      [ids.length, await bodies(project)],
      [2, ['1 application/json', '{"a":2} application/json']],
    );
    await end(project, [{ status: 'succeeded' }, { status: 'succeeded' }]);
    const waiting = project.rlp(['fn', 'map', 'hello', '-', '--wait'], { input: '[1, 2, 3]' });
    await end(project, [
      { status: 'succeeded', result: '1' },
      { status: 'shed', error: 'no capacity' },
      { status: 'succeeded', result: '3' },
    ]);
    const { code, stdout } = await waiting;
    const lines = stdout
      .trim()
      .split('\n')
      .map((line) => JSON.parse(line) as { status: string });
    assert.deepEqual(
      [code, lines.map(({ status }) => status).toSorted()],
      [1, ['shed', 'succeeded', 'succeeded']],
    );
    for (const input of ['{}', '[1', ''])
      assert.equal((await project.rlp(['fn', 'map', 'hello', '-'], { input })).code, 2, input);
    const removed = await project.rlp(['fn', 'rm', 'hello', 'nothing']);
    assert.deepEqual([removed.code, removed.stdout], [4, 'hello\n']);
    assert.deepEqual((await project.call('GET', '/fns')).body, { functions: [], next_cursor: null });
  });
});
