/**
 * Two hosts of one deployment: an image that one has built boots on the other, and a disk snapshot of one is restored on the
 * other, through kills of each at each step.
 */
import assert from 'node:assert/strict';
import { spawn, type ChildProcess } from 'node:child_process';
import { once } from 'node:events';
import { mkdir, mkdtemp, readdir, readFile, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, before, test } from 'node:test';
import { eventually } from '@releap/testing/eventually';
import { makeImagelessCache, REPO, Service } from '@releap/testing/service';
import { tarOf } from '@releap/testing/oci';
import { appImage } from './support/app-image.ts';

const SMALL = { image: 'busybox', cpu: 0.125, mem_mib: 256, scratch_mib: 64 };
const PATIENCE_MS = 400_000;

let dir: string;
let crashes: string;
let service: Service;
let second: ChildProcess | undefined;
let output = '';
let stopping = false;

/** The second host: a runner on a home of its own, started again whenever it dies. */
function startSecond(): void {
  const child = spawn(process.execPath, [join(REPO, 'packages/server/src/main.ts'), 'runner'], {
    env: {
      ...process.env,
      RELEAP_HOME: join(dir, 'second'),
      // Its own: it has no image of the first host.
      RELEAP_CACHE: join(dir, 'cache'),
      RELEAP_BUILDS: '0',
      RELEAP_WARM_POOL: '0',
      RELEAP_CONTROL_URL: internalUrl,
      RELEAP_JOIN_TOKEN: joinToken,
      RELEAP_CRASH_AT: crashes,
    },
    stdio: ['ignore', 'pipe', 'pipe'],
  });
  for (const stream of [child.stdout, child.stderr])
    stream.on('data', (chunk: Buffer) => (output = (output + chunk.toString()).slice(-20_000)));
  child.once('exit', () => {
    if (!stopping) startSecond();
  });
  second = child;
}

async function stopSecond(signal: NodeJS.Signals): Promise<void> {
  stopping = true;
  const child = second;
  if (child === undefined || child.exitCode !== null || child.signalCode !== null) return;
  const exited = once(child, 'exit');
  child.kill(signal);
  await exited;
}

let internalUrl = '';
let joinToken = '';
let operatorToken = '';

async function operator<T = Record<string, unknown>>(
  method: string,
  path: string,
  body?: object,
): Promise<T> {
  const answer = await fetch(`${internalUrl}${path}`, {
    method,
    headers: { authorization: `Bearer ${operatorToken}`, 'content-type': 'application/json' },
    ...(body === undefined ? {} : { body: JSON.stringify(body) }),
  });
  const text = await answer.text();
  assert.equal(answer.status, 200, `${path}: ${text}`);
  return (text.startsWith('{') ? JSON.parse(text) : text) as T;
}

interface Host {
  id: string;
  status: string;
  ready: boolean;
}
const hosts = async (): Promise<Host[]> =>
  (await operator<{ hosts: Host[] }>('GET', '/operator/hosts')).hosts;

before(async () => {
  dir = await mkdtemp(join(tmpdir(), 'releap-second-host-'));
  crashes = join(dir, 'crashes');
  await mkdir(crashes);
  await makeImagelessCache(join(dir, 'cache'));
  service = await Service.start({ RELEAP_CRASH_AT: crashes });
  const read = async (name: string): Promise<string> =>
    (await readFile(join(service.home, name), 'utf8')).trim();
  joinToken = await read('join.token');
  operatorToken = await read('operator.token');
  internalUrl = service.bootstrap.internal_url ?? '';
});
after(async () => {
  // Its sandboxes outlive it, where the test has failed: it ends them when it is stopped.
  if (second?.signalCode === 'SIGKILL') startSecond();
  await stopSecond('SIGTERM');
  await service?.[Symbol.asyncDispose]();
  await rm(dir, { recursive: true, force: true });
});

async function storeMetric(name: 'blobs' | 'uploads'): Promise<number> {
  const metrics = await operator<string>('GET', '/metrics');
  const full = name === 'blobs' ? 'releap_store_blobs' : 'releap_artifact_uploads';
  return Number(new RegExp(`^${full} (\\S+)$`, 'm').exec(metrics)?.[1] ?? Number.NaN);
}

/** The first host, which takes no new sandboxes after the first test. */
let first: Host;

test('an image that one host has built boots on another one', async () => {
  const [only] = await hosts();
  assert.ok(only);
  first = only;
  startSecond();
  await eventually(
    'the second host is ready',
    async () => (await hosts()).some(({ id, ready }) => id !== first.id && ready),
    PATIENCE_MS,
  );
  const [base] = await appImage();
  const context = await tarOf([
    { name: 'base.tar', content: base ?? '' },
    { name: 'words', content: 'built on the first host\n' },
    { name: 'Dockerfile', content: 'FROM scratch\nADD base.tar /\nCOPY words /words\n' },
  ]);
  const form = new FormData();
  form.set('name', 'moved');
  form.set('context', new Blob([new Uint8Array(context)]));
  const { base_url: url, api_key: key } = service.bootstrap;
  const headers = { authorization: `Bearer ${key}` };
  const posted = await fetch(`${url}/images`, { method: 'POST', headers, body: form });
  assert.equal(posted.status, 200);
  const { job_id: job } = (await posted.json()) as { job_id: string };
  await eventually(
    'the image is built and in the store',
    async () => {
      const { status, error } = (await service.call('GET', `/jobs/${job}`)).body;
      assert.notEqual(status, 'failed', String(error));
      return status === 'done' && (await storeMetric('blobs')) > 0 && (await storeMetric('uploads')) === 0;
    },
    PATIENCE_MS,
  );

  await operator('POST', `/operator/hosts/${first.id}/drain`, {});
  const { id } = await service.create({ ...SMALL, image: 'moved' });
  const { body } = await service.call('GET', `/vms/${id}`);
  assert.notEqual(body['runner_id'], first.id);
  const { result } = await eventually('exec', () => service.exec(id, 'cat /words'));
  assert.equal(result, 'built on the first host\n');
  const digest = String(body['manifest_name']).replace(':', '-');
  assert.ok((await readdir(join(dir, 'cache/images', digest))).includes('root.squashfs'));
  await service.remove(id);
});

test('a disk snapshot of a host that is gone is restored on another one', async () => {
  const source = await service.create(SMALL);
  const wrote = await eventually('exec', () => service.exec(source.id, 'echo moved > /on-disk; sync'));
  assert.equal(wrote.exitCode, 0, wrote.result);

  // The uploading host dies at each step; the next process repeats it.
  const uploads = ['artifact:described', 'artifact:part-uploaded', 'artifact:uploaded'];
  for (const name of uploads) await writeFile(join(crashes, name), '');
  const taken = await service.call<{ id: string }>('POST', `/vms/${source.id}/snapshots`, { name: 'moving' });
  assert.equal(taken.status, 200, JSON.stringify(taken.body));
  const home = join(dir, 'second/runner/snapshots');
  await eventually(
    'the snapshot is in the store',
    async () => {
      return (await readdir(crashes)).length === 0 && (await storeMetric('uploads')) === 0;
    },
    PATIENCE_MS,
  ).catch((error: unknown) => {
    throw new Error(`${String(error)}\n${output}`);
  });
  assert.deepEqual(await readdir(home), [taken.body.id]);

  await stopSecond('SIGKILL');
  await operator('POST', `/operator/hosts/${first.id}/undrain`, {});
  for (const name of ['artifact:part-fetched', 'artifact:placed']) await writeFile(join(crashes, name), '');
  const copy = await service.create({ ...SMALL, image: { type: 'snapshot', name: 'moving' } });
  assert.deepEqual(await readdir(crashes), []);
  const { result } = await eventually('exec', () => service.exec(copy.id, 'cat /on-disk'));
  assert.equal(result.trim(), 'moved');
  await service.remove(copy.id);

  // It returns, with the sandbox that runs there, and removes what is deleted.
  stopping = false;
  startSecond();
  await service.call('DELETE', `/vms/${source.id}`);
  assert.equal((await service.waitFor(source.id, 'deleted'))['status'], 'deleted');
  assert.equal((await service.call('DELETE', `/snapshots/${taken.body.id}`)).status, 200);
  for (const folder of [home, join(service.home, 'runner/snapshots')])
    await eventually(`nothing in ${folder}`, async () => (await readdir(folder)).length === 0, PATIENCE_MS);
});
