import { type ChildProcess, execFile, spawn } from 'node:child_process';
import { mkdir, readdir, readFile, rm } from 'node:fs/promises';
import { join, resolve } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { createInterface } from 'node:readline';
import { promisify } from 'node:util';
import { parseSandboxId } from '@releap/contract';
import { programOf } from '@releap/runner/program';
import type { BootstrapFile } from '@releap/server';
import { eventually, PATIENCE } from './eventually.ts';
import { tracesOf } from './leftovers.ts';
import { freePort } from './ports.ts';
import { partPids, type Role, vmmPid } from './processes.ts';
import { temporaryFolder } from './temporary-folder.ts';
import { TEST_CACHE } from './test-cache.ts';

export const REPO = resolve(import.meta.dirname, '../../..');
const MAIN = programOf(join(REPO, 'packages/server/src/main.ts'));
const READY_DEADLINE_MS = 240_000 * PATIENCE;
const COPY_DEADLINE_MS = 60_000;
const STOP_DEADLINE_MS = 120_000 * PATIENCE;
const CALL_DEADLINE_MS = 300_000 * PATIENCE;
const OUTPUT_MAX = 200_000;
const LAST_WORDS = 3_000;

/**
 * Makes a cache without images, for tests whose images must be pulled. The templates are hard links to those of the
 * cache that tests share: a runner replaces a template and never writes into one.
 */
export async function makeImagelessCache(folder: string): Promise<string> {
  const templates = join(TEST_CACHE, 'templates');
  await mkdir(join(folder, 'templates'), { recursive: true, mode: 0o755 });
  const made = (await readdir(templates).catch(() => []))
    .filter((name) => !name.startsWith('.'))
    .map((name) => [join(templates, name), join(folder, 'templates')] as const);
  for (const [from, to] of [[join(TEST_CACHE, 'accelerator.json'), folder] as const, ...made]) {
    // What is not there, or is just being replaced, this service makes by itself.
    await promisify(execFile)('cp', ['--archive', '--link', from, to], { timeout: COPY_DEADLINE_MS }).catch(
      () => undefined,
    );
  }
  return folder;
}

/** The UUID in a sandbox's id: its name on the machine that runs it. */
export function uuidOf(id: string): string {
  const uuid = parseSandboxId(id)?.uuid;
  if (uuid === undefined) throw new Error(`not a sandbox id: ${id}`);
  return uuid;
}

/** Of a service for a test: nothing that takes longer than the test needs. */
function testEnvironment(home: string, port: number): NodeJS.ProcessEnv {
  return {
    ...process.env,
    RELEAP_HOME: home,
    RELEAP_PORT: String(port),
    RELEAP_CACHE: TEST_CACHE,
    RELEAP_WARM_POOL: '0',
    RELEAP_BUILTIN_IMAGES: 'busybox',
  };
}

/** The whole service as a user starts it, in a home of its own. Stops and removes everything on dispose. */
export class Service implements AsyncDisposable {
  readonly home: string;
  readonly port: number;
  readonly env: Record<string, string>;
  output = '';
  bootstrap!: BootstrapFile;
  /** It belongs to the run: this object neither stops nor removes it. */
  readonly shared: boolean;
  #process: ChildProcess | undefined;

  private constructor(home: string, port: number, env: Record<string, string>, shared = false) {
    this.shared = shared;
    this.home = home;
    this.port = port;
    this.env = env;
  }

  /**
   * A home and a port, and nothing that runs yet.
   * @param home made when absent, and removed at the end with the folder that it lies in
   */
  static async prepare(env: Record<string, string> = {}, home?: string): Promise<Service> {
    // The folder has mode 0700: the unprivileged parts must work below one that they cannot enter.
    const own = home ?? join(await temporaryFolder('releap-test-'), 'home');
    return new Service(own, await freePort(), env);
  }

  /** As `prepare`, and waits until it is ready. */
  static async start(env: Record<string, string> = {}, home?: string): Promise<Service> {
    const service = await Service.prepare(env, home);
    try {
      await service.boot();
    } catch (error) {
      await service[Symbol.asyncDispose]();
      throw error;
    }
    return service;
  }

  /** A service that another process has started, and that continues afterwards. */
  static async attach(home: string, port: number): Promise<Service> {
    const service = new Service(home, port, {}, true);
    await service.#readBootstrap();
    return service;
  }

  async #readBootstrap(): Promise<void> {
    this.bootstrap = JSON.parse(await readFile(join(this.home, 'bootstrap.json'), 'utf8')) as BootstrapFile;
  }

  /** Starts a process on this home, and waits for nothing. */
  spawn(env: Record<string, string> = {}): ChildProcess {
    const child = spawn(process.execPath, ['--max-semi-space-size=2', '--enable-source-maps', MAIN, 'all'], {
      env: { ...testEnvironment(this.home, this.port), ...this.env, ...env },
      stdio: ['ignore', 'pipe', 'pipe'],
    });
    const collect = (chunk: Buffer): void => {
      this.output = (this.output + chunk.toString('utf8')).slice(-OUTPUT_MAX);
    };
    child.stdout.on('data', collect);
    child.stderr.on('data', collect);
    return child;
  }

  /** Starts the process, again on the same home after `stop` or `kill`, and waits until it is ready. */
  async boot(env: Record<string, string> = {}): Promise<void> {
    const child = this.spawn(env);
    this.#process = child;
    // After a kill the control plane of the run before may still answer.
    let ready = false;
    const banner = `127.0.0.1:${this.port}/openapi.json`;
    for (const lines of [child.stdout, child.stderr]) {
      if (lines !== null)
        createInterface({ input: lines }).on('line', (line) => {
          ready ||= line.includes(banner);
        });
    }
    await this.#ready(() => ready);
    await this.#readBootstrap();
  }

  get pid(): number {
    const pid = this.#process?.pid;
    if (pid === undefined) throw new Error('it does not run');
    return pid;
  }

  /** The end of its output, for the message of a failure. */
  get lastWords(): string {
    return this.output.slice(-LAST_WORDS);
  }

  async #ready(saysSo: () => boolean): Promise<void> {
    const deadline = Date.now() + READY_DEADLINE_MS;
    for (;;) {
      if (this.#process?.exitCode !== null) throw new Error(`the service exited early:\n${this.lastWords}`);
      if (saysSo()) {
        const answer = await fetch(`http://127.0.0.1:${this.port}/healthz`);
        if (answer.status === 200) return;
        throw new Error(
          `it says that it is ready, but /healthz answers ${answer.status}:\n${this.lastWords}`,
        );
      }
      if (Date.now() > deadline) throw new Error(`not ready:\n${this.lastWords}`);
      await sleep(50);
    }
  }

  /** One API call with the bootstrap key; the body of the answer is parsed if it is JSON. */
  async call<T = Record<string, unknown>>(
    method: string,
    path: string,
    body?: unknown,
    key: string = this.bootstrap.api_key,
  ): Promise<{ status: number; body: T; headers: Headers }> {
    const answer = await fetch(`${this.bootstrap.base_url}${path}`, {
      method,
      headers: {
        authorization: `Bearer ${key}`,
        ...(body === undefined ? {} : { 'content-type': 'application/json' }),
      },
      ...(body === undefined ? {} : { body: JSON.stringify(body) }),
      signal: AbortSignal.timeout(CALL_DEADLINE_MS),
    });
    const text = await answer.text();
    const json = answer.headers.get('content-type')?.includes('json') === true;
    return { status: answer.status, body: (json ? JSON.parse(text) : text) as T, headers: answer.headers };
  }

  async toolboxUrl(): Promise<string> {
    const { body } = await this.call<{ toolbox_proxy_url: string }[]>('GET', '/regions');
    const url = body[0]?.toolbox_proxy_url;
    if (url === undefined) throw new Error('the region has no toolbox_proxy_url');
    return url;
  }

  /** Creates a sandbox and waits until it runs; throws with the sandbox's error otherwise. */
  async create(request: Record<string, unknown> = {}): Promise<{ id: string; token: string }> {
    const made = await this.call<{ vm_id: string; access_token: string; error?: string }>('POST', '/vms', {
      image: 'busybox',
      ...request,
    });
    if (made.status >= 300) throw new Error(`create answered ${made.status}: ${JSON.stringify(made.body)}`);
    const id = made.body.vm_id;
    const vm = await this.waitFor(id, 'running');
    if (vm['status'] !== 'running') {
      throw new Error(`sandbox is ${String(vm['status'])}: ${String(vm['error'])}\n${this.lastWords}`);
    }
    return { id, token: made.body.access_token };
  }

  async waitFor(id: string, status: string, tries = 3): Promise<Record<string, unknown>> {
    for (let i = 0; ; i++) {
      const { body } = await this.call('GET', `/vms/${id}?wait_exact=${status}&timeout_ms=60000`);
      const now = String(body['status']);
      if (now === status || ['failed', 'lost', 'deleted'].includes(now) || i >= tries) return body;
    }
  }

  /** Deletes a sandbox, waits until it is gone, and until nothing is left of it on this machine. */
  async remove(id: string): Promise<void> {
    const { status, body } = await this.call('DELETE', `/vms/${id}`);
    if (status !== 200) throw new Error(`DELETE answered ${status}: ${JSON.stringify(body)}`);
    const vm = await this.waitFor(id, 'deleted');
    if (vm['status'] !== 'deleted') throw new Error(`sandbox is ${String(vm['status'])}\n${this.lastWords}`);
    await this.untilNoTraceOf(id);
  }

  /** Waits until nothing is left of a sandbox on this machine but its logs. */
  async untilNoTraceOf(id: string): Promise<void> {
    await eventually(`nothing left of ${id}`, async () => {
      const traces = await tracesOf(this.home, uuidOf(id));
      if (traces.length === 0) return true;
      throw new Error(traces.join('\n'));
    });
  }

  /** Kills one part with SIGKILL, as a crash would; the supervisor starts it again. Resolves when a new one is there. */
  async kill9(role: Role): Promise<void> {
    const pid = (await partPids(this.home))[role];
    if (pid === undefined) throw new Error(`there is no ${role} to kill`);
    process.kill(pid, 'SIGKILL');
    await this.untilRestarted(role, pid);
  }

  /** Waits until another process plays this part. */
  async untilRestarted(role: Role, before: number | undefined): Promise<number> {
    return await eventually(`another ${role}`, async () => {
      const now = (await partPids(this.home))[role];
      return now === before ? undefined : now;
    });
  }

  /** Pid of the VMM of a sandbox. */
  async vmm(id: string): Promise<number> {
    return await eventually(`a VMM of ${id}`, () => vmmPid(this.home, uuidOf(id)));
  }

  async exec(
    id: string,
    command: string,
    options: Record<string, unknown> = {},
  ): Promise<{ exitCode: number; result: string }> {
    const answer = await fetch(`${await this.toolboxUrl()}/${id}/process/execute`, {
      method: 'POST',
      headers: { authorization: `Bearer ${this.bootstrap.api_key}`, 'content-type': 'application/json' },
      body: JSON.stringify({ command, ...options }),
      signal: AbortSignal.timeout(CALL_DEADLINE_MS),
    });
    if (answer.status !== 200) throw new Error(`exec answered ${answer.status}: ${await answer.text()}`);
    return (await answer.json()) as { exitCode: number; result: string };
  }

  /** SIGTERM, as Ctrl-C does it; resolves with the exit code. */
  async stop(): Promise<number | null> {
    if (this.shared) throw new Error('the run stops the service that its files share');
    return await this.#end('SIGTERM');
  }

  /** Kills the supervisor with SIGKILL. */
  async kill(): Promise<void> {
    await this.#end('SIGKILL');
  }

  async #end(signal: NodeJS.Signals): Promise<number | null> {
    const child = this.#process;
    this.#process = undefined;
    if (!child || child.exitCode !== null || child.signalCode !== null) return child?.exitCode ?? null;
    const exited = new Promise<number | null>((done) => child.once('exit', (code) => done(code)));
    child.kill(signal);
    const ended = await Promise.race([exited, sleep(STOP_DEADLINE_MS, undefined, { ref: false })]);
    if (ended === undefined) {
      child.kill('SIGKILL');
      await exited;
      throw new Error(`the service did not stop within ${STOP_DEADLINE_MS} ms:\n${this.lastWords}`);
    }
    return ended;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    if (this.shared) return;
    try {
      await this.stop();
    } finally {
      await rm(resolve(this.home, '..'), { recursive: true, force: true });
    }
  }
}
