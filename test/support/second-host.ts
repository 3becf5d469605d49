/** Two hosts of one deployment, started before the tests of the file that imports it: the service, and a runner of its own. */
import assert from 'node:assert/strict';
import { spawn, type ChildProcess } from 'node:child_process';
import { once } from 'node:events';
import { mkdir, mkdtemp, readFile, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, before } from 'node:test';
import { eventually } from '@releap/testing/eventually';
import { programOf } from '@releap/testing/program';
import { makeImagelessCache, REPO, Service } from '@releap/testing/service';

export const SMALL = { image: 'busybox', cpu: 0.125, mem_mib: 256, scratch_mib: 64 };
export const PATIENCE_MS = 400_000;
const MAIN = programOf(join(REPO, 'packages/server/src/main.ts'));

export interface Host {
  id: string;
  status: string;
  ready: boolean;
}

/** Of both hosts. */
export let service: Service;
/** Each file here is the name of a step at which a host dies once, and is removed then. */
export let crashes: string;
/** The host of the service. */
export let first: Host;

let dir: string;
let internalUrl = '';
let joinToken = '';
let operatorToken = '';

before(async () => {
  dir = await mkdtemp(join(tmpdir(), 'releap-second-host-'));
  crashes = join(dir, 'crashes');
  await mkdir(crashes);
  await makeImagelessCache(second.cache);
  service = await Service.start({ RELEAP_CRASH_AT: crashes });
  const read = async (name: string): Promise<string> =>
    (await readFile(join(service.home, name), 'utf8')).trim();
  joinToken = await read('join.token');
  operatorToken = await read('operator.token');
  internalUrl = service.bootstrap.internal_url ?? '';
  const [only] = await hosts();
  assert.ok(only);
  first = only;
  second.start();
});
after(async () => {
  await second.end();
  await service?.[Symbol.asyncDispose]();
  await rm(dir, { recursive: true, force: true });
});

export async function operator<T = Record<string, unknown>>(
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

export const hosts = async (): Promise<Host[]> =>
  (await operator<{ hosts: Host[] }>('GET', '/operator/hosts')).hosts;

/** Resolves when sandboxes can be placed on both. @returns the id of the second one */
export async function bothReady(): Promise<string> {
  return await eventually(
    'both hosts are ready',
    async () => {
      const ready = (await hosts()).filter((host) => host.ready);
      return ready.length === 2 && ready.find(({ id }) => id !== first.id)?.id;
    },
    PATIENCE_MS,
  );
}

export async function storeMetric(name: 'blobs' | 'uploads'): Promise<number> {
  const metrics = await operator<string>('GET', '/metrics');
  const full = name === 'blobs' ? 'releap_store_blobs' : 'releap_artifact_uploads';
  return Number(new RegExp(`^${full} (\\S+)$`, 'm').exec(metrics)?.[1] ?? Number.NaN);
}

/** The second host: a runner on a home of its own, started again whenever it dies. */
class SecondHost {
  /** The end of what it has written. */
  output = '';
  #child: ChildProcess | undefined;
  #stopping = false;

  get home(): string {
    return join(dir, 'second');
  }

  /** Its own: it has no image of the first host. */
  get cache(): string {
    return join(dir, 'cache');
  }

  start(): void {
    this.#stopping = false;
    const child = spawn(process.execPath, ['--enable-source-maps', MAIN, 'runner'], {
      env: {
        ...process.env,
        RELEAP_HOME: this.home,
        RELEAP_CACHE: this.cache,
        RELEAP_BUILDS: '0',
        RELEAP_WARM_POOL: '0',
        RELEAP_CONTROL_URL: internalUrl,
        RELEAP_JOIN_TOKEN: joinToken,
        RELEAP_CRASH_AT: crashes,
      },
      stdio: ['ignore', 'pipe', 'pipe'],
    });
    for (const stream of [child.stdout, child.stderr])
      stream.on('data', (chunk: Buffer) => (this.output = (this.output + chunk.toString()).slice(-20_000)));
    child.once('exit', () => {
      if (!this.#stopping) this.start();
    });
    this.#child = child;
  }

  async stop(signal: NodeJS.Signals): Promise<void> {
    this.#stopping = true;
    const child = this.#child;
    if (child === undefined || child.exitCode !== null || child.signalCode !== null) return;
    const exited = once(child, 'exit');
    child.kill(signal);
    await exited;
  }

  /** Its sandboxes outlive a kill: it ends them when it is stopped. */
  async end(): Promise<void> {
    if (this.#child?.signalCode === 'SIGKILL') this.start();
    await this.stop('SIGTERM');
  }
}

export const second = new SecondHost();
