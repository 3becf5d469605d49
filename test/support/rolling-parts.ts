/** Parts of a deployment that are replaced one at a time: processes of their own, each on a home and ports of its own. */
import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import { eventually } from '@releap/testing/eventually';
import { isReady } from './balancer.ts';
import type { Installation } from './previous-version.ts';

const OUTPUT_MAX = 100_000;
export const PATIENCE_MS = 400_000;

export type Role = 'control' | 'gateway' | 'runner';

export class Part {
  readonly name: string;
  readonly role: Role;
  output = '';
  installation: Installation | undefined;
  readonly #env: NodeJS.ProcessEnv;
  /** URL of its probe. */
  readonly probe: string;
  readonly #isReady: () => Promise<boolean>;
  #child: ChildProcess | undefined;

  constructor(
    name: string,
    role: Role,
    env: Record<string, string>,
    ready: string | (() => Promise<boolean>),
  ) {
    this.name = name;
    this.role = role;
    this.#env = { ...process.env, RELEAP_WARM_POOL: '0', RELEAP_BUILTIN_IMAGES: 'busybox', ...env };
    this.probe = typeof ready === 'string' ? ready : '';
    this.#isReady = typeof ready === 'string' ? () => isReady(ready) : ready;
  }

  /** Starts it with a version, and waits until it takes requests. */
  async start(installation: Installation): Promise<void> {
    this.installation = installation;
    const child = spawn(process.execPath, ['--enable-source-maps', installation.main, this.role], {
      env: this.#env,
      stdio: ['ignore', 'pipe', 'pipe'],
    });
    this.#child = child;
    for (const stream of [child.stdout, child.stderr])
      stream.on(
        'data',
        (chunk: Buffer) => (this.output = (this.output + chunk.toString()).slice(-OUTPUT_MAX)),
      );
    await eventually(
      `${this.name} is ready`,
      async () => {
        if (child.exitCode !== null) return true;
        return await this.#isReady().catch(() => false);
      },
      PATIENCE_MS,
    ).catch((error: unknown) => {
      throw new Error(`${String(error)}\n${this.output}`);
    });
    if (child.exitCode !== null)
      throw new Error(`${this.name} ended with ${child.exitCode}:\n${this.output}`);
  }

  /** Sends SIGTERM. @returns a promise of the exit code, when it has drained */
  signal(): Promise<number | null> {
    const child = this.#child;
    if (child === undefined || child.exitCode !== null) return Promise.resolve(child?.exitCode ?? null);
    const ended = once(child, 'exit').then(([code]) => code as number | null);
    child.kill('SIGTERM');
    return ended;
  }

  async end(): Promise<void> {
    const ended = this.signal();
    // The second one ends the drain.
    this.#child?.kill('SIGTERM');
    await ended;
  }
}
