/** `rlp image`, against a real control plane and a host that follows a script. */
import assert from 'node:assert/strict';
import { chmod, mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { Readable } from 'node:stream';
import { after, afterEach, describe, test } from 'node:test';
import { credentialOf } from '@releap/testing/credentials';
import type { BuildJob } from '@releap/testing/runner-messages';
import { until } from '@releap/testing/world';
import { extract } from 'tar-stream';
import { json, rlp } from './rlp.ts';
import { type Project, type Service, startService } from './world.ts';

const service = await startService();
const folder = await mkdtemp(join(tmpdir(), 'rlp-image-'));
await writeFile(join(folder, 'Dockerfile'), 'FROM busybox\nCOPY hello /hello\n');
await writeFile(join(folder, 'hello'), 'hi');
const builds = { build: undefined as ScriptedBuild | undefined };
type ScriptedBuild = Service['runner']['options']['build'];
afterEach(() => {
  if (builds.build !== undefined) service.runner.options.build = builds.build;
  builds.build = undefined;
});
after(() => rm(folder, { recursive: true, force: true }));

/** What the host does with builds, until the test ends. */
function script(build: (job: BuildJob) => void): void {
  builds.build ??= service.runner.options.build;
  service.runner.options.build = build;
}
const digest = `sha256:${'ab'.repeat(32)}`;
const succeed = (job: BuildJob): void =>
  void service.runner.built(job, { manifest_name: digest, layer_count: 2, bytes: 5_000_000 });

const images = async (project: Project): Promise<Map<string, Record<string, unknown>>> =>
  new Map((await project.call('GET', '/images')).body.images.map((one: { name: string }) => [one.name, one]));

/** The log of a build, as its host serves it: its first reader makes it grow, until `end` is called. */
function serveLog(job: BuildJob, grow: (write: (text: string) => void, end: () => void) => void): void {
  const path = `/builds/${job.job_id}/logs`;
  let text = '';
  let started = false;
  service.runner.logs.set(path, (_request, response) => response.end(text));
  service.runner.logs.set(`${path}?follow=1`, (_request, response) => {
    response.write(text);
    if (started) {
      response.end();
      return;
    }
    started = true;
    const write = (more: string): void => {
      text += more;
      response.write(more);
    };
    grow(write, () => response.end());
  });
}

describe('rlp image build', () => {
  test('sends the folder, prints the log as it grows, and then the id', async () => {
    const project = await service.project();
    let context: Map<string, string> | undefined;
    script((job) => {
      serveLog(job, (write, end) => {
        write('STEP 1/2: FROM busybox\n');
        void readContext(job).then((files) => {
          context = files;
          write('STEP 2/2: COPY\n');
          succeed(job);
          end();
        });
      });
    });
    const { code, stdout, stderr } = await project.rlp(['image', 'build', '-t', 'app', folder]);
    const image = (await images(project)).get('app');
    assert.deepEqual(
      [code, stdout, stderr],
      [0, `${String(image?.['id'])}\n`, 'STEP 1/2: FROM busybox\nSTEP 2/2: COPY\n'],
    );
    assert.deepEqual(
      context,
      new Map([
        ['Dockerfile', 'FROM busybox\nCOPY hello /hello\n'],
        ['hello', 'hi'],
      ]),
    );
    assert.equal(image?.['status'], 'ready');
  });

  async function readContext({ root }: BuildJob): Promise<Map<string, string>> {
    assert.ok(root.type === 'dockerfile' && root.context !== undefined);
    const response = await fetch(`${service.world.internalUrl}/internal/blobs/${root.context.digest}`, {
      headers: { authorization: `Bearer ${credentialOf(service.runner.id)}` },
    });
    assert.equal(response.status, 200);
    const archive = extract();
    Readable.fromWeb(response.body as never).pipe(archive);
    const files = new Map<string, string>();
    for await (const entry of archive) {
      const chunks: Buffer[] = [];
      for await (const chunk of entry) chunks.push(chunk as Buffer);
      files.set(entry.header.name, Buffer.concat(chunks).toString());
    }
    return files;
  }

  test('that fails: exit code 1 and the reason, with the end of the log unless it was printed', async () => {
    const project = await service.project();
    const result = { error: 'step 2 of 2 has failed: exit code 7', log_tail: 'STEP 2\nno such file\n' };
    script((job) => {
      serveLog(job, (write, end) => {
        write(result.log_tail);
        service.runner.built(job, result);
        end();
      });
    });
    const shown = await project.rlp(['image', 'build', '-t', 'app', folder]);
    assert.deepEqual(
      [shown.code, shown.stdout, shown.stderr],
      [1, '', 'STEP 2\nno such file\nrlp: the build failed: step 2 of 2 has failed: exit code 7\n'],
    );
    script((job) => void service.runner.built(job, result));
    const quiet = await project.rlp(['image', 'build', '-q', '-t', 'app', folder]);
    assert.deepEqual(
      [quiet.code, quiet.stderr],
      [1, 'rlp: the build failed: step 2 of 2 has failed: exit code 7\nSTEP 2\nno such file\n'],
    );
    const asJson = await project.rlp(['--json', 'image', 'build', '-t', 'app', folder]);
    assert.equal(asJson.code, 1);
    assert.match(asJson.stderr, /^\{"error":"the build failed: /);
  });

  test('without a log is waited for; --no-wait and --json print what was posted', async () => {
    const project = await service.project();
    script(succeed);
    assert.equal((await project.rlp(['image', 'build', '-t', 'app', folder])).code, 0);
    const posted = await project.rlp(['--json', 'image', 'build', '--no-wait', '-t', 'app', folder]);
    assert.equal(json(posted)['status'], 'pending');
    const ready = await project.rlp(['--json', 'image', 'build', '-t', 'app', folder]);
    assert.equal(json(ready)['status'], 'ready');
  });

  test('passes the Dockerfile, --docker and --region on', async () => {
    const project = await service.project();
    const jobs: BuildJob[] = [];
    script((job) => {
      jobs.push(job);
      succeed(job);
    });
    await writeFile(join(folder, 'other'), 'FROM other');
    const options = ['-f', join(folder, 'other'), '--docker', '--region', 'here'];
    assert.equal((await project.rlp(['image', 'build', '-t', 'app', ...options, folder])).code, 0);
    const [job] = jobs;
    assert.deepEqual(
      [job?.docker, job?.root.type === 'dockerfile' && job.root.dockerfile],
      [true, { path: 'other' }],
    );
  });

  test('a refusal, a missing name and a file that cannot be read are errors; nothing is posted', async () => {
    const project = await service.project();
    const refused = await project.rlp(['image', 'build', '-t', 'a/b', folder]);
    assert.equal(refused.code, 1);
    assert.match(refused.stderr, /name must be 1 to 128 characters/);
    assert.equal((await project.rlp(['image', 'build', folder])).code, 2);
    const broken = await mkdtemp(join(tmpdir(), 'rlp-image-'));
    await writeFile(join(broken, 'Dockerfile'), '');
    await chmod(broken, 0o700);
    const none = await project.rlp(['image', 'build', '-t', 'app', '-f', join(broken, 'none'), broken]);
    await rm(broken, { recursive: true });
    assert.equal(none.code, 2);
    assert.match(none.stderr, /there is no Dockerfile/);
    assert.equal((await images(project)).has('app'), false);
  });

  test('Ctrl-C stops following, and the build continues', async () => {
    const project = await service.project();
    let running: BuildJob | undefined;
    script((job) => {
      running = job;
      serveLog(job, (write) => write('STEP 1\n'));
    });
    const outcome = await rlp(project, ['image', 'build', '-t', 'app', folder], {
      started: (child) => child.stderr?.once('data', () => child.kill('SIGINT')),
    });
    assert.equal(outcome.code, 130);
    assert.match(outcome.stderr, /the build continues, and rlp image logs -f app follows it/);
    assert.equal((await images(project)).get('app')?.['status'], 'pending');
    succeed(running as BuildJob);
    await until(async () => (await images(project)).get('app')?.['status'] === 'ready');
  });
});

describe('rlp run of a folder', () => {
  test('builds it and runs the image; the next run replaces the same image', async () => {
    const project = await service.project();
    script(succeed);
    const first = await project.rlp(['run', folder, '--name', 'one']);
    assert.equal(first.code, 0, first.stderr);
    assert.equal((await project.rlp(['run', '--dockerfile', join(folder, 'Dockerfile'), folder])).code, 0);
    const names = [...(await images(project)).keys()].filter((name) => name.startsWith('run-'));
    assert.equal(names.length, 1);
    const vm = (await project.call('GET', `/vms/${first.stdout.trim()}`)).body;
    assert.equal(vm.image_ref, names[0]);
  });

  test('that cannot be built creates no sandbox', async () => {
    const project = await service.project();
    script((job) => void service.runner.built(job, { error: 'no base image' }));
    const { code, stderr } = await project.rlp(['run', folder]);
    assert.equal(code, 1);
    assert.match(stderr, /the build failed: no base image/);
    assert.deepEqual((await project.call('GET', '/vms')).body.vms, []);
  });

  test('wrong usage', async () => {
    const project = await service.project();
    for (const args of [
      ['--dockerfile', 'Dockerfile', 'busybox'],
      ['--dockerfile', 'Dockerfile', '--from-snapshot', 'a'],
    ])
      assert.equal((await project.rlp(['run', ...args])).code, 2);
  });
});

describe('rlp image ls, create, logs and rm', () => {
  test('lists sizes, statuses, ages and sources', async () => {
    const project = await service.project();
    script(succeed);
    assert.equal((await project.rlp(['images', 'create', 'app', 'node:20'])).code, 0);
    assert.equal((await project.rlp(['image', 'build', '-t', 'built', folder])).code, 0);
    const { stdout } = await project.rlp(['image']);
    assert.match(stdout, /^NAME +STATUS +SIZE +AGE +SOURCE +DIGEST\n/);
    assert.match(stdout, /\nbuilt +ready +5 MiB +\d+ s +dockerfile:Dockerfile +sha256:abababababab\n/);
    assert.match(stdout, /\napp +ready +5 MiB +\d+ s +node:20 +sha256:abababababab\n/);
    assert.deepEqual((await project.rlp(['image', 'ls', '-q'])).stdout, 'built\napp\nbusybox\n');
    assert.equal((JSON.parse((await project.rlp(['image', 'ls', '--json'])).stdout) as unknown[]).length, 3);
  });

  test('create waits for its job and prints why it failed', async () => {
    const project = await service.project();
    const made = await project.rlp(['image', 'create', 'app', 'node:20']);
    assert.deepEqual(made, {
      code: 0,
      stdout: `${String((await images(project)).get('app')?.['id'])}\n`,
      stderr: '',
    });
    script((job) => void service.runner.built(job, { error: 'no such manifest' }));
    const failed = await project.rlp(['image', 'create', 'app', 'node:21']);
    assert.equal(failed.code, 1);
    assert.match(failed.stderr, /no such manifest/);
  });

  test('logs prints the newest build, and follows it until it ends', async () => {
    const project = await service.project();
    let job: BuildJob | undefined;
    script((one) => {
      job = one;
      serveLog(one, (write, end) => {
        write('one\n');
        succeed(one);
        end();
      });
    });
    assert.equal((await project.rlp(['image', 'build', '--no-wait', '-t', 'app', folder])).code, 0);
    await until(() => job !== undefined);
    assert.deepEqual(await project.rlp(['image', 'logs', '-f', 'app']), {
      code: 0,
      stdout: 'one\n',
      stderr: '',
    });
    assert.equal((await project.rlp(['image', 'logs', 'app'])).stdout, 'one\n');
    assert.equal((await project.rlp(['image', 'logs', 'none'])).code, 4);
    assert.equal((await project.rlp(['image', 'logs', 'busybox'])).code, 4);
  });

  test('rm deletes by name, and tells what does not exist', async () => {
    const project = await service.project();
    assert.equal((await project.rlp(['image', 'create', 'app', 'node:20'])).code, 0);
    const { code, stdout, stderr } = await project.rlp(['image', 'rm', 'app', 'none']);
    assert.deepEqual([code, stdout], [4, 'app\n']);
    assert.match(stderr, /image "none" not found/);
    assert.equal((await project.rlp(['image', 'rm', '-f', 'none'])).code, 0);
    assert.equal((await images(project)).has('app'), false);
  });
});

describe('rlp image prune', () => {
  async function threeImages(): Promise<Project> {
    const project = await service.project();
    script(succeed);
    for (const name of ['used', 'unused', 'kept']) await project.rlp(['image', 'create', name, 'node:20']);
    script((job) => void service.runner.built(job, { error: 'no such manifest' }));
    // One that has failed and was built before is in use, the other has nothing.
    for (const name of ['kept', 'broken']) await project.rlp(['image', 'create', name, 'node:21']);
    for (const image of ['used', 'kept']) await project.create(`of-${image}`, { image });
    return project;
  }
  const names = async (project: Project): Promise<string[]> => [...(await images(project)).keys()].sort();

  test('deletes failed images that were never built; with --unused those without a sandbox too', async () => {
    const project = await threeImages();
    const dry = await project.rlp(['image', 'prune', '--unused', '--dry-run']);
    assert.match(dry.stdout, /\nbroken +failed .*\nunused +unused /);
    assert.equal((await names(project)).length, 5);
    assert.deepEqual(await project.rlp(['image', 'prune', '--yes']), {
      code: 0,
      stdout: 'broken\n',
      stderr: '',
    });
    const pruned = await project.rlp(['--json', 'image', 'prune', '--unused', '-y']);
    assert.deepEqual(
      (JSON.parse(pruned.stdout) as { image: string; status: string }[]).map(({ image, status }) => [
        image,
        status,
      ]),
      [['unused', 'deleted']],
    );
    assert.deepEqual(await names(project), ['busybox', 'kept', 'used']);
    assert.deepEqual(await project.rlp(['image', 'prune', '--unused']), { code: 0, stdout: '', stderr: '' });
  });

  test('asks on a terminal alone, and deletes nothing without an answer', async () => {
    const project = await threeImages();
    const refused = await project.rlp(['image', 'prune']);
    assert.equal(refused.code, 2);
    assert.match(refused.stderr, /1 image would be deleted: give --yes/);
    assert.equal((await names(project)).length, 5);
  });
});
