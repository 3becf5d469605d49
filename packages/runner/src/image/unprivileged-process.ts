/** The processes that handle untrusted input: without privileges, files of the host, and a network unless they fetch. */
import type { Writable } from 'node:stream';
import { setTimeout as sleep } from 'node:timers/promises';
import { ImageError, show } from './image-error.ts';
import type { ImageJail } from './image-jails.ts';
import { runTool } from './image-tool.ts';
import { ProcessError } from '../process/index.ts';
import type { RunResult } from '../process/index.ts';
import { jailedModule } from '../process/jailed-module.ts';

export interface StartOptions {
  /** With its working directory, the only place that it can write to; paths in its job are relative to that. */
  jail: Omit<ImageJail, typeof Symbol.asyncDispose>;
  network: boolean;
  heapMib: number;
  /** Largest file that it may write, bytes. */
  fileMax: number;
}

export interface JobOptions<M> {
  deadlineMs: number;
  signal?: AbortSignal | undefined;
  onMessage: (message: M) => void;
}

/** Longer than one waits for a job and works on it. */
const LIFE_MAX_MS = 24 * 60 * 60_000;

/** A process that does one job. It is started before that is known, so that its start is not waited for. */
export class UnprivilegedProcess<M> implements AsyncDisposable {
  readonly #end = new AbortController();
  readonly #exit: Promise<RunResult>;
  #stdin = Promise.withResolvers<Writable>();
  #onMessage: (message: M) => void = () => undefined;
  #hasEnded = false;

  private constructor(module: string, options: StartOptions) {
    this.#exit = this.#start(module, options).finally(() => {
      this.#hasEnded = true;
    });
    this.#exit.catch((error: unknown) => this.#stdin.reject(error));
    this.#stdin.promise.catch(() => undefined);
  }

  /** @param module absolute path of a module that calls `dropPrivileges` before it reads its job */
  static start<M>(module: string, options: StartOptions): UnprivilegedProcess<M> {
    return new UnprivilegedProcess<M>(module, options);
  }

  get hasEnded(): boolean {
    return this.#hasEnded;
  }

  /** Sends its job, once. @returns how it ended @throws ImageError */
  async run(job: object, { deadlineMs, signal, onMessage }: JobOptions<M>): Promise<RunResult> {
    this.#onMessage = onMessage;
    const done = new AbortController();
    const late = sleep(deadlineMs, undefined, { signal: done.signal, ref: false }).then(
      () => {
        throw new ImageError('timeout', `an image process did not end within ${deadlineMs} ms`);
      },
      () => undefined,
    );
    const onAbort = (): void => this.#end.abort();
    signal?.addEventListener('abort', onAbort, { once: true });
    if (signal?.aborted) onAbort();
    try {
      this.send(job);
      await Promise.race([this.#exit, late]);
      return await this.#exit;
    } catch (error) {
      this.#end.abort();
      await this.#exit.catch(() => undefined);
      throw error;
    } finally {
      done.abort();
      signal?.removeEventListener('abort', onAbort);
    }
  }

  /** Sends one more line. */
  send(message: object): void {
    this.#stdin.promise.then((stdin) => stdin.write(`${JSON.stringify(message)}\n`)).catch(() => undefined);
  }

  /** Ends it, if it runs, and waits until it has ended. */
  async [Symbol.asyncDispose](): Promise<void> {
    this.#end.abort();
    await this.#exit.catch(() => undefined);
  }

  async #start(module: string, { heapMib, jail, network, fileMax }: StartOptions): Promise<RunResult> {
    const { folder, uid, cgroups, threadsMax } = jail;
    const { program, args, env } = await jailedModule(module, [`--max-old-space-size=${heapMib}`], {
      folder,
      network,
      fileMax,
      threadsMax,
      extra: cgroups.flatMap((procs) => ['--cgroup', procs]),
      args: [String(uid)],
    });
    return await runTool(program, args, {
      deadlineMs: LIFE_MAX_MS,
      signal: this.#end.signal,
      env: { ...environment(), ...env },
      // Its standard input stays open: the end of that is how the process learns that we have ended.
      feed: (stdin) => this.#stdin.resolve(stdin),
      onLine: (line) => this.#onMessage(parseMessage<M>(line)),
    }).catch((error: unknown) => {
      const { cause } = error as Error;
      if (!(cause instanceof ProcessError) || cause.failure !== 'killed') throw error;
      const message = `an image process was killed: those of a pull may use ${jail.memoryMib} MiB of memory`;
      throw new ImageError('failed', message, { cause });
    });
  }
}

function parseMessage<M>(line: string): M {
  try {
    return JSON.parse(line) as M;
  } catch {
    throw new ImageError('failed', `an image process printed something else: ${show(line, 200)}`);
  }
}

/** Nothing of the runner's but the way out, which those without a network cannot take. */
function environment(): NodeJS.ProcessEnv {
  const env: NodeJS.ProcessEnv = { NODE_NO_WARNINGS: '1', LC_ALL: 'C.UTF-8' };
  for (const name of KEPT) {
    const value = process.env[name];
    if (value !== undefined) env[name] = value;
  }
  return env;
}
const KEPT = [
  'PATH',
  'SSL_CERT_FILE',
  'HTTP_PROXY',
  'HTTPS_PROXY',
  'NO_PROXY',
  'http_proxy',
  'https_proxy',
  'no_proxy',
];
