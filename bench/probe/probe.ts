/**
 * How long a guest is paused, measured from outside. A guest's own clock is paused with it, and its own report covers
 * only before and after. So a client talks to it all the time, in a process that does nothing else, and the
 * longest time without an answer is an upper bound: it has a millisecond of waiting and the way there and back in it,
 * and all else that kept either side from running.
 */
import { type ChildProcess, spawn, spawnSync } from 'node:child_process';
import { once } from 'node:events';
import { join } from 'node:path';
import { endOf } from '../processes.ts';
import type { Answer, Question } from './client.ts';

/** Milliseconds of the machine's monotonic clock, the same in all processes. */
export const monotonic = (): number => Number(process.hrtime.bigint()) / 1e6;

export interface Gap {
  largest: number;
  /** When it began. */
  at: number;
  /** How often the guest answered in that time. */
  answers: number;
}

export class Probe implements AsyncDisposable {
  /** Whether it runs before everything else, so that it is not its own turn that it waits for. */
  readonly first: boolean;
  readonly #process: ChildProcess;

  private constructor(child: ChildProcess, first: boolean) {
    this.#process = child;
    this.first = first;
  }

  static async start(): Promise<Probe> {
    const command = [process.execPath, join(import.meta.dirname, 'client.ts')];
    // sched(7): a real-time process runs as soon as it can.
    const realTime = ['chrt', '--fifo', '1'];
    const first = spawnSync(realTime[0] as string, [...realTime.slice(1), 'true']).status === 0;
    const [program = '', ...args] = first ? [...realTime, ...command] : command;
    const child = spawn(program, args, { stdio: ['ignore', 'ignore', 'inherit', 'ipc'] });
    await once(child, 'spawn');
    return new Probe(child, first);
  }

  /** Talks to this echo server from now on. Resolves with its first answer. */
  async connect(host: string, port: number): Promise<void> {
    await this.#ask({ type: 'connect', host, port });
  }

  async disconnect(): Promise<void> {
    await this.#ask({ type: 'disconnect' });
  }

  /** The longest time without an answer that overlaps the time between two readings of the monotonic clock. */
  async gap(from: number, to: number): Promise<Gap> {
    const said = await this.#ask({ type: 'gap', from, to });
    if (said.type !== 'gap') throw new Error(`the probe said ${said.type}`);
    return { largest: said.largest, at: said.at, answers: said.answers };
  }

  /** When it was answered last. */
  async lastAnswer(): Promise<number> {
    const said = await this.#ask({ type: 'last' });
    if (said.type !== 'last') throw new Error(`the probe said ${said.type}`);
    return said.at;
  }

  async #ask(question: Question): Promise<Answer> {
    const ended = new AbortController();
    const onExit = (): void => ended.abort(new Error('the probe has ended'));
    this.#process.once('exit', onExit);
    try {
      const heard = once(this.#process, 'message', { signal: ended.signal });
      this.#process.send(question);
      const [said] = (await heard) as [Answer];
      if (said.type === 'error') throw new Error(`the probe: ${said.error}`);
      return said;
    } finally {
      this.#process.off('exit', onExit);
    }
  }

  async [Symbol.asyncDispose](): Promise<void> {
    if (this.#process.connected) this.#process.disconnect();
    await endOf(this.#process);
  }
}
