/** Image builds that end before they are done: the processes of the build end too. */
import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { readdir, readFile } from 'node:fs/promises';
import path from 'node:path';
import { after, before, beforeEach, describe, it } from 'node:test';
import { newUuid } from '@releap/contract';
import type { BuildAssignment, BuildReport } from '@releap/contract/runner';
import { until } from '@releap/testing/eventually';
import { sha256, tarOf, temporaryFolder, writeOciLayout } from '@releap/testing/oci';
import { childrenOf, processStatus } from '@releap/testing/processes';
import { handmadeRegistry, type HandmadeRegistry } from '@releap/testing/registry';
import { pino } from 'pino';
import { ImageBuilds } from '../src/build/image-builds.ts';
import { ImageStore } from '../src/image/image-store.ts';

const LAYER_BYTES = 1024 * 1024;
const log = pino({ level: 'silent' });

let scratch: Awaited<ReturnType<typeof temporaryFolder>>;
let registry: HandmadeRegistry;
let source: BuildAssignment['spec'];
/** The registry accepts requests for the layer and does not answer them. */
let isStalled = false;
/** Requests that wait for their answer. */
let stalled = 0;
let serial = 0;

before(async () => {
  scratch = await temporaryFolder();
  const layout = path.join(scratch.path, 'layout');
  const tar = await tarOf([{ name: 'large', content: Buffer.alloc(LAYER_BYTES, 'x') }]);
  const layer = sha256(tar);
  const manifest = await writeOciLayout(layout, [tar], { compression: 'none' });
  registry = await handmadeRegistry((asked, _request, response) => {
    const [kind, name = ''] = asked.split('/');
    if (name === layer && isStalled) {
      stalled += 1;
      return;
    }
    const digest = kind === 'blobs' ? name : manifest;
    const data = readFileSync(path.join(layout, 'blobs', 'sha256', digest.slice('sha256:'.length)));
    const type = kind === 'blobs' ? 'octet-stream' : 'vnd.oci.image.manifest.v1+json';
    response
      .writeHead(200, { 'content-type': `application/${type}`, 'content-length': data.length })
      .end(data);
  });
  source = { image_id: newUuid(), root: { type: 'registry', ref: `${registry.host}/app:1` }, docker: false };
});
after(async () => {
  await registry[Symbol.asyncDispose]();
  await scratch[Symbol.asyncDispose]();
});

interface Builder extends AsyncDisposable {
  builds: ImageBuilds;
  reports: BuildReport[];
  /** Folders of unfinished work. */
  unfinished(): Promise<string[]>;
}

function builder(): Builder {
  const cacheDir = path.join(scratch.path, `cache-${(serial += 1)}`);
  const images = new ImageStore({ cacheDir, log, privateHosts: ['loopback'] });
  const reports: BuildReport[] = [];
  const builds = new ImageBuilds({
    images,
    logPath: (jobId) => path.join(cacheDir, 'logs', jobId, 'build.log'),
    report: (report) => reports.push(report),
    log,
  });
  return {
    builds,
    reports,
    unfinished: () => readdir(path.join(cacheDir, 'images', 'staging')),
    [Symbol.asyncDispose]: async () => {
      await builds.close();
      await images.close();
    },
  };
}

async function descendants(of = process.pid): Promise<number[]> {
  const found: number[] = [];
  for (const child of await childrenOf(of)) found.push(child, ...(await descendants(child)));
  return found;
}

/** Stops (SIGSTOP) the process that asks for the layer: neither it nor what waits for it ends by itself. */
async function stopProcess(module: string): Promise<number[]> {
  let stopped: number[] = [];
  await until(() => stalled > 0);
  await until(async () => {
    const found = await descendants();
    for (const pid of found) {
      if (!(await commandOf(pid)).includes(module)) continue;
      try {
        process.kill(pid, 'SIGSTOP');
      } catch {
        // It has ended meanwhile.
        continue;
      }
      if (!(await processStatus(pid))?.get('State')?.startsWith('T')) continue;
      stopped = found;
    }
    return stopped.length > 0;
  });
  return stopped;
}

async function commandOf(pid: number): Promise<string> {
  return await readFile(`/proc/${pid}/cmdline`, 'utf8').catch(() => '');
}

async function areGone(pids: readonly number[]): Promise<boolean> {
  const statuses = await Promise.all(pids.map(processStatus));
  return statuses.every((status) => status === undefined);
}

const assignment = (): BuildAssignment => ({
  kind: 'build',
  id: newUuid(),
  generation: 1,
  desired: 'done',
  spec: source,
});

describe('a build that waits for a registry that does not answer', () => {
  beforeEach(() => {
    isStalled = true;
    stalled = 0;
  });

  it('ends its processes when control cancels it, and reports it as cancelled', async () => {
    await using own = builder();
    const build = assignment();
    own.builds.assign(build);
    const pids = await stopProcess('fetch-process');
    own.builds.assign({ ...build, desired: 'cancelled' });
    await until(() => areGone(pids));
    await until(() => own.reports.length > 0);
    const { id, generation } = build;
    assert.deepEqual(own.reports, [{ kind: 'build', id, generation, status: 'cancelled', detail: {} }]);
    await until(async () => (await own.unfinished()).length === 0);
  });

  it('ends its processes when control no longer assigns it, and reports nothing', async () => {
    await using own = builder();
    own.builds.assign(assignment());
    const pids = await stopProcess('fetch-process');
    own.builds.synced(new Set());
    await until(() => areGone(pids));
    await until(async () => (await own.unfinished()).length === 0);
    assert.deepEqual(own.reports, []);
  });

  it('ends its processes when a newer attempt replaces it, which builds the image', async () => {
    await using own = builder();
    const build = assignment();
    own.builds.assign(build);
    const pids = await stopProcess('fetch-process');
    isStalled = false;
    own.builds.assign({ ...build, generation: 2 });
    await until(() => areGone(pids));
    await until(() => own.reports.length > 0);
    assert.deepEqual(
      own.reports.map(({ generation, status }) => [generation, status]),
      [[2, 'done']],
    );
  });

  it('ends its processes when the runner stops', async () => {
    const own = builder();
    own.builds.assign(assignment());
    const pids = await stopProcess('fetch-process');
    await own[Symbol.asyncDispose]();
    await until(() => areGone(pids));
    assert.deepEqual([own.reports, await own.unfinished()], [[], []]);
  });
});
