/** `rlp fn`, against a real control plane and a host that follows a script. */
import assert from 'node:assert/strict';
import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import { once } from 'node:events';
import { createServer } from 'node:http';
import type { AddressInfo } from 'node:net';
import { tmpdir } from 'node:os';
import { text } from 'node:stream/consumers';
import { join } from 'node:path';
import { after, before, describe, test } from 'node:test';
import { newUuid } from '@releap/contract';
import type { BuildJob } from '@releap/testing/runner-messages';
import { until } from '@releap/testing/world';
import { json, rlpHere } from './rlp.ts';
import { type Project, type Service, startService } from './world.ts';

let service: Service;
let folder: string;
before(async () => {
  service = await startService();
  // No handler listens: versions stay pending until the tests say what trying them ends with.
  service.runner.options.script = (assignment, runner) => {
    runner.deaf.add(assignment.vm_id);
    return service.scripts.script(assignment, runner);
  };
  folder = await mkdtemp(join(tmpdir(), 'rlp-fn-'));
  await writeFile(join(folder, 'Dockerfile'), 'FROM busybox\nCOPY main.sh /main.sh\n');
  await writeFile(join(folder, 'main.sh'), 'echo hi\n');
});
after(async () => {
  await service[Symbol.asyncDispose]();
  await rm(folder, { recursive: true, force: true });
});

const query = async <Row extends object>(text: string, values: unknown[]): Promise<Row[]> =>
  (await service.world.database.pool.query<Row>(text, values)).rows;
/** What trying its first instance ends with. */
async function tried(project: Project, name: string, version: number, state: string, error: string | null) {
  const changed = await query(
    `update function_versions v set template_state = $4, template_error = $5 from functions f
      where f.id = v.function_id and f.project_id = $1 and f.name = $2 and v.version = $3 returning v.id`,
    [project.projectId, name, version, state, error],
  );
  assert.equal(changed.length, 1);
}
const versions = async (project: Project, name: string): Promise<Record<string, unknown>[]> =>
  (await project.call('GET', `/fns/${name}/versions`)).body.versions;

describe('rlp fn deploy', () => {
  test('deploys an image with every option, and waits until the version can serve', async () => {
    const project = await service.project();
    const deploying = project.rlp(
      (
        'fn deploy hello --image busybox --port 9000 --vcpus 2 --mem 1g --scratch 100m -e A=1 -e OWN --prewarm --timeout 90s ' +
        '--scaledown 2m --concurrency 10 --max-instances 3 -- httpd -f --port=1'
      ).split(' '),
      { env: { OWN: 'mine' } },
    );
    await until(async () => (await versions(project, 'hello').catch(() => []))?.length === 1);
    await tried(project, 'hello', 1, 'published', 'no host has the capacity\nto capture it');
    const done = await deploying;
    assert.deepEqual([done.code, done.stdout], [0, 'hello v1\n'], done.stderr);
    assert.match(done.stderr, /they are not restored with it: no host has the capacity\?to capture it/);
    const [version] = await versions(project, 'hello');
    const { id: _, created_at: __, ...rest } = version ?? {};
    assert.deepEqual(rest, {
      version: 1,
      image_ref: 'busybox',
      handler: ['httpd', '-f', '--port=1'],
      port: 9000,
      vcpus: 2,
      mem_mib: 1024,
      scratch_mib: 100,
      timeout_s: 90,
      scaledown_window_s: 120,
      max_concurrency: 10,
      max_instances: 3,
      env: { A: '1', OWN: 'mine' },
      template_state: 'published',
      template_error: 'no host has the capacity\nto capture it',
      snapshot_kind: 'fn_ready',
      build_job: null,
    });
  });

  test('says why a version cannot serve, and --no-wait does not wait for it', async () => {
    const project = await service.project();
    const first = await project.rlp(['fn', 'deploy', 'broken', '--image', 'busybox', '--no-wait', '--json']);
    assert.deepEqual([json(first)['version'], json(first)['template_state']], [1, 'pending']);
    const second = project.rlp(['fn', 'deploy', 'broken', '--image', 'busybox']);
    await until(async () => (await versions(project, 'broken')).length === 2);
    await tried(project, 'broken', 2, 'failed', 'its handler ended with status 127: not found');
    assert.deepEqual(await second, {
      code: 1,
      stdout: '',
      stderr: 'rlp: version 2 of broken cannot serve: its handler ended with status 127: not found\n',
    });
    const late = await project.rlp(['fn', 'deploy', 'broken', '--image', 'busybox', '--wait-timeout', '1ms']);
    assert.equal(late.code, 1);
    assert.match(late.stderr, /version 3 of broken is still pending after 0 s; it continues/);
  });

  test('sends a folder, with the log of its build on stderr; a build that fails is the reason', async () => {
    const project = await service.project();
    const build = (job: BuildJob, error?: string): void => {
      const path = `/builds/${job.job_id}/logs`;
      for (const url of [path, `${path}?follow=1`])
        service.runner.logs.set(url, (_request, response) => response.end('STEP 1/2\n'));
      if (error === undefined)
        service.runner.built(job, {
          manifest_name: `sha256:${'ab'.repeat(32)}`,
          layer_count: 2,
          bytes: 5_000,
        });
      else service.runner.built(job, { error });
    };
    service.runner.options.build = (job) => build(job);
    const deploying = project.rlp(['fn', 'deploy', 'app', folder, '--', '/main.sh']);
    await until(
      async () => (await versions(project, 'app').catch(() => []))?.[0]?.['template_state'] === 'pending',
    );
    await tried(project, 'app', 1, 'published', null);
    assert.deepEqual(await deploying, { code: 0, stdout: 'app v1\n', stderr: 'STEP 1/2\n' });
    service.runner.options.build = (job) => build(job, 'COPY failed');
    const large = await mkdtemp(join(tmpdir(), 'rlp-large-context-'));
    try {
      await writeFile(join(large, 'Dockerfile'), 'FROM busybox\n');
      await writeFile(join(large, 'data'), Buffer.alloc(9 * 2 ** 20));
      const refused = await project.rlp(['fn', 'deploy', 'app', large]);
      assert.equal(refused.code, 1, refused.stderr);
      assert.match(
        refused.stderr,
        /too large: at most 8388608 bytes \(8 MiB\).* The context has 10 MiB in 2 files\n$/,
      );
    } finally {
      await rm(large, { recursive: true });
    }
    const failed = await project.rlp(['fn', 'deploy', 'app', folder]);
    assert.deepEqual([failed.code, failed.stdout], [1, '']);
    assert.match(failed.stderr, /rlp: the build failed: .*COPY failed/);
  });

  test('refuses what cannot be before anything is sent', async () => {
    const project = await service.project();
    for (const [args, reason] of [
      [['x', folder, '--image', 'busybox'], /do not go together/],
      [['x', folder, 'more'], /one folder is deployed/],
      [['x', '--image', 'busybox', '--port', 'http'], /--port must be a whole number/],
      [['x', '--image', 'busybox', '--timeout', '1500ms'], /whole seconds/],
      [['x', '/nonexistent'], /nonexistent/],
      [[], /missing required argument/],
    ] as const) {
      const wrong = await project.rlp(['fn', 'deploy', ...args]);
      assert.equal(wrong.code, 2, args.join(' '));
      assert.match(wrong.stderr, reason);
    }
    assert.deepEqual((await project.call('GET', '/fns')).body, { functions: [], next_cursor: null });
    const invalid = await project.rlp(['fn', 'deploy', 'Not_A_Name', '--image', 'busybox']);
    assert.equal(invalid.code, 1);
    assert.match(invalid.stderr, /Not_A_Name/);
  });
});

describe('rlp fn ls, show, config and public', () => {
  test('show what there is, and change it', async () => {
    const project = await service.project();
    assert.match((await project.rlp(['fn'])).stdout, /^NAME +VERSION/);
    await project.rlp(['fn', 'deploy', 'hello', '--image', 'busybox', '--no-wait', '--', 'serve', '--x']);
    await tried(project, 'hello', 1, 'published', null);
    await project.rlp(['fn', 'deploy', 'hello', '--image', 'busybox', '--no-wait']);
    await tried(project, 'hello', 2, 'failed', 'nothing listened on port 8080\nlast line');
    const list = await project.rlp(['fn', 'ls']);
    assert.match(list.stdout, /\nhello +v1 \(newest v2\) +published +busybox +no +\d+ \w+\n$/);
    assert.equal((await project.rlp(['fn', 'ls', '-q'])).stdout, 'hello\n');
    const shown = (await project.rlp(['fn', 'show', 'hello'])).stdout;
    assert.match(shown, /^hello, not public/);
    assert.match(shown, /\n {3}v2 +failed/);
    assert.match(shown, /\n\* +v1 +published +busybox +serve --x +8080 +1 vCPU, 512 MiB +300 s +60 s +1 +- /);
    assert.match(shown, /\nv2: nothing listened on port 8080\n {4}last line\n$/);
    assert.equal((await project.rlp(['fn', 'show', 'nothing'])).code, 4);

    assert.equal((await project.rlp(['fn', 'config', 'hello'])).code, 2);
    const args = ['--max-instances', '5', '--concurrency', '4', '--timeout', '2m', '--scaledown', '10s'];
    assert.equal((await project.rlp(['fn', 'config', 'hello', ...args])).stdout, 'hello v1\n');
    const unbound = json(await project.rlp(['fn', 'config', 'hello', '--max-instances', 'none', '--json']));
    assert.deepEqual(unbound, {
      version: 1,
      max_concurrency: 4,
      scaledown_window_s: 10,
      timeout_s: 120,
      max_instances: null,
    });

    const url = `${project.url}/fn/${project.projectId}/hello`;
    assert.equal((await project.rlp(['fn', 'public', 'hello', 'on'])).stdout, `${url}\n`);
    await project.rlp(['fn', 'public', 'hello', 'off']);
    const opened = await project.rlp(['fn', 'public', 'hello', 'on', '--token']);
    assert.match(opened.stdout, /\nrlpf_\w+\n$/);
    const again = await project.rlp(['fn', 'public', 'hello', 'on', '--token']);
    assert.deepEqual([again.stdout, /its token stays/.test(again.stderr)], [`${url}\n`, true]);
    assert.match((await project.rlp(['fn', 'show', 'hello'])).stdout, /^hello, public, with a token/);
    for (const wrong of [['maybe'], ['off', '--token']])
      assert.equal((await project.rlp(['fn', 'public', 'hello', ...wrong])).code, 2);
  });
});

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

describe('rlp fn schedule', () => {
  test('adds, lists and deletes schedules', async () => {
    const project = await service.project();
    await project.rlp(['fn', 'deploy', 'hello', '--image', 'busybox', '--no-wait']);
    const schedule = (...args: string[]) => project.rlp(['fn', 'schedule', ...args]);
    const id = (await schedule('add', 'hello', '0 3 * * 1', '{"n":1}')).stdout.trim();
    const off = json(await schedule('add', 'hello', '*/5 * * * *', '--disabled', '--json'));
    assert.deepEqual([off['enabled'], off['next_run_at']], [false, null]);
    const list = (await schedule('ls', 'hello')).stdout;
    assert.match(list, new RegExp(`\n${id} +0 3 \\* \\* 1 +yes +\\d{4}-\\d\\d-\\d\\d 03:00 +- +{"n":1}\n$`));
    assert.match(list, /\*\/5 \* \* \* \* +no +- +- +null\n/);
    const never = await schedule('add', 'hello', '0 0 31 2 *');
    assert.equal(never.code, 1, never.stdout);
    assert.equal((await schedule('add', 'hello', '* * * * *', 'no json')).code, 2);
    assert.deepEqual((await schedule('rm', 'hello', id, newUuid())).stdout, `${id}\n`);
    assert.deepEqual(
      (JSON.parse((await schedule('ls', 'hello', '--json')).stdout) as { id: string }[]).map((one) => one.id),
      [off['id']],
    );
    assert.equal((await schedule('ls', 'nothing')).code, 4);
  });
});

describe('rlp fn invoke', () => {
  test('prints the answer, with -i its headers, and fails with the status of the handler', async () => {
    // In place of a service: what the handler got is in its answer.
    const server = createServer((request, response) => {
      void text(request).then((body) => {
        if (request.url === '/fns/missing/invoke') {
          response
            .writeHead(404, { 'content-type': 'application/json' })
            .end('{"error":"function \\"missing\\" not found"}');
          return;
        }
        const headers = {
          'x-rlp-fn-status': request.url === '/fns/bad/invoke' ? '500' : '201',
          'x-rlp-cold': '1',
        };
        const { 'content-type': type, 'x-own': own, authorization } = request.headers;
        response.writeHead(200, { ...headers, 'x-rlp-invocation-id': 'i-1' });
        response.end([request.method, type, own, authorization, body].join('|'));
      });
    });
    await once(server.listen(0, '127.0.0.1'), 'listening');
    const target = { url: `http://127.0.0.1:${(server.address() as AddressInfo).port}`, key: 'rlp_key' };
    const invoke = (args: string[], input = '') => rlpHere(target, ['fn', 'invoke', ...args], { input });
    try {
      const done = await invoke(['good', '{"n":1}', '-H', 'X-Own: yes']);
      assert.deepEqual(done, {
        code: 0,
        stdout: 'POST|application/json|yes|Bearer rlp_key|{"n":1}',
        stderr: '',
      });
      assert.equal(
        (await invoke(['good', '-'], '\u00e9')).stdout,
        'POST|text/plain; charset=utf-8||Bearer rlp_key|\u00e9',
      );
      const failed = await invoke(['bad', '-i']);
      assert.deepEqual([failed.code, failed.stderr], [1, 'rlp: the handler answered 500\n']);
      assert.match(failed.stdout, /^x-rlp-fn-status: 500$/m);
      assert.match(failed.stdout, /\n\nPOST\|/);
      const document = json(await invoke(['bad', '--json']));
      assert.deepEqual([document['status'], document['cold'], document['invocation_id']], [500, true, 'i-1']);
      assert.deepEqual(await invoke(['missing']), {
        code: 4,
        stdout: '',
        stderr: 'rlp: function "missing" not found\n',
      });
    } finally {
      server.close();
    }
  });
});
