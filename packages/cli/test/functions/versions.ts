/** `rlp fn deploy`, `ls`, `show`, `config` and `public`. */
import assert from 'node:assert/strict';
import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { describe, test } from 'node:test';
import type { BuildJob } from '@releap/testing/runner-messages';
import { until } from '@releap/testing/world';
import { folder, service, tried, versions } from '../support/function-world.ts';
import { json } from '../rlp.ts';

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
    await project.rlp(['fn', 'deploy', 'hello', '--image', 'busybox', '--no-wait', '--when-ready']);
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
