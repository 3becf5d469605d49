import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import { mkdtemp, readdir, readFile, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import type { BootstrapFile } from '../../packages/server/src/index.ts';
import { freePort, REPO, testEnvironment } from './service.ts';

const MAIN = path.join(REPO, 'packages/server/src/main.ts');
const DEADLINE_MS = 240_000;

/** The whole service as a process of its own. Dispose of it: that stops it and removes its home. */
export class AllInOne implements AsyncDisposable {
  readonly home: string;
  readonly port: number;
  output = '';
  #process: ChildProcess | undefined;

  private constructor(home: string, port: number) {
    this.home = home;
    this.port = port;
  }

  static async create(): Promise<AllInOne> {
    const folder = await mkdtemp(path.join(tmpdir(), 'releap-server-'));
    return new AllInOne(path.join(folder, 'home'), await freePort());
  }

  get pid(): number {
    const pid = this.#process?.pid;
    if (pid === undefined) throw new Error('it does not run');
    return pid;
  }

  /** Starts the process and gives it; does not wait for it to be ready. */
  spawn(env: Record<string, string> = {}): ChildProcess {
    const child = spawn(process.execPath, [MAIN], {
      env: { ...testEnvironment(this.home, this.port), ...env },
      stdio: ['ignore', 'pipe', 'pipe'],
    });
    const collect = (chunk: Buffer): void => {
      this.output = (this.output + chunk.toString('utf8')).slice(-100_000);
    };
    child.stdout.on('data', collect);
    child.stderr.on('data', collect);
    return child;
  }

  async start(): Promise<void> {
    this.#process = this.spawn();
    await this.until('healthy', async () => {
      if (this.#process?.exitCode !== null) throw new Error('it ended');
      return (await this.get('/healthz')) === 200;
    });
  }

  /** The status of a GET with the key, undefined when nobody answers. */
  async get(where: string): Promise<number | undefined> {
    const key = (await this.bootstrap().catch(() => undefined))?.api_key ?? '';
    const answer = await fetch(`http://127.0.0.1:${this.port}${where}`, {
      headers: { authorization: `Bearer ${key}` },
      signal: AbortSignal.timeout(10_000),
    }).catch(() => undefined);
    await answer?.arrayBuffer();
    return answer?.status;
  }

  async bootstrap(): Promise<BootstrapFile> {
    return JSON.parse(await readFile(path.join(this.home, 'bootstrap.json'), 'utf8')) as BootstrapFile;
  }

  async until(what: string, holds: () => Promise<boolean>): Promise<void> {
    for (const end = Date.now() + DEADLINE_MS; ; await sleep(100)) {
      try {
        if (await holds()) return;
      } catch (error) {
        throw new Error(`while waiting for ${what}:\n${this.output}`, { cause: error });
      }
      if (Date.now() > end) throw new Error(`never ${what}:\n${this.output}`);
    }
  }

  /** Live processes of this home, by what they are. */
  async processes(): Promise<Map<string, number>> {
    const found = new Map<string, number>();
    for (const name of await readdir('/proc')) {
      if (!/^\d+$/.test(name)) continue;
      const [line, environ] = await Promise.all(
        ['cmdline', 'environ'].map((file) => readFile(`/proc/${name}/${file}`, 'utf8').catch(() => '')),
      );
      if (environ?.includes(`RELEAP_HOME=${this.home}\0`) === true) {
        const role = /main\.ts\0(\w+)/.exec(line ?? '')?.[1] ?? 'supervisor';
        if (line?.includes('main.ts') === true) found.set(role, Number(name));
      }
    }
    const pidFile = path.join(this.home, 'postgres/data/postmaster.pid');
    const postgres = Number.parseInt(await readFile(pidFile, 'utf8').catch(() => ''), 10);
    if (
      postgres > 0 &&
      (await readFile(`/proc/${postgres}/cmdline`, 'utf8').catch(() => '')).includes('postgres')
    ) {
      found.set('postgres', postgres);
    }
    return found;
  }

  /** Sends a signal to the supervisor and gives its exit code, null when it was killed. */
  async end(signal: NodeJS.Signals): Promise<number | null> {
    const child = this.#process;
    this.#process = undefined;
    if (child === undefined || child.exitCode !== null || child.signalCode !== null)
      return child?.exitCode ?? null;
    const exited = once(child, 'exit') as Promise<[number | null]>;
    child.kill(signal);
    return (await exited)[0];
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.end('SIGTERM');
    await rm(path.dirname(this.home), { recursive: true, force: true });
  }
}
