import { type ChildProcess, fork } from 'node:child_process';
import { once } from 'node:events';
import { basename, join } from 'node:path';
import { programOf } from '@releap/runner/program';
import { endOf } from '../processes.ts';
import type { ServerReady } from './messages.ts';

/** Those of the service's own processes. */
const OPTIONS = ['--disable-warning=DeprecationWarning', '--enable-source-maps', '--max-semi-space-size=2'];
const START_DEADLINE_MS = 60_000;

/** A server in a process of its own, which ends with ours. */
export class Server implements AsyncDisposable {
  readonly ready: ServerReady;
  readonly #process: ChildProcess;

  private constructor(child: ChildProcess, ready: ServerReady) {
    this.#process = child;
    this.ready = ready;
  }

  /** @param file a module, relative to this folder */
  static async start(file: string, args: string[]): Promise<Server> {
    const program = programOf(join(import.meta.dirname, file));
    const child = fork(program, args, { execArgv: [...OPTIONS, ...profiling(file)] });
    try {
      const ready = await new Promise<ServerReady>((resolve, reject) => {
        child.once('message', (message) => resolve(message as ServerReady));
        child.once('exit', (code) => reject(new Error(`${file} ended with ${code}`)));
        setTimeout(() => reject(new Error(`${file} did not start`)), START_DEADLINE_MS).unref();
      });
      return new Server(child, ready);
    } catch (error) {
      child.kill('SIGKILL');
      throw error;
    }
  }

  get pid(): number {
    if (this.#process.pid === undefined) throw new Error('the server did not start');
    return this.#process.pid;
  }

  /** Sends it a message and returns its next one. */
  async ask<Answer>(question: string): Promise<Answer> {
    const answer = once(this.#process, 'message', { signal: AbortSignal.timeout(START_DEADLINE_MS) });
    this.#process.send(question);
    return ((await answer) as [Answer])[0];
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.#process.disconnect();
    await endOf(this.#process);
  }
}

/** `RELEAP_BENCH_PROFILE=<folder>` leaves a CPU profile of each server there. */
function profiling(file: string): string[] {
  const folder = process.env['RELEAP_BENCH_PROFILE'];
  return folder === undefined
    ? []
    : ['--cpu-prof', `--cpu-prof-dir=${folder}`, `--cpu-prof-name=${basename(file)}.cpuprofile`];
}
