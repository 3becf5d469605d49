import type { ChildProcess } from 'node:child_process';
import { LineReader } from '@releap/contract/netd';
import { Type } from 'typebox';
import type { Logger } from 'pino';
import { startProcess, toolEnvironment } from '../process/index.ts';
import { HOSTD } from './hostd.ts';

/** What the resident hostd is asked for; host/internal/serve reads it. */
export type HostdRequest = { create_slot: object } | { destroy_slot: object };

const Answer = Type.Object({ id: Type.Integer({ minimum: 1 }), error: Type.Optional(Type.String()) });
const ANSWER_MAX_BYTES = 64 * 1024;
/** Whatever takes longer hangs in the kernel, and is asked of another process. */
const REQUEST_DEADLINE_MS = 30_000;
const ATTEMPTS = 3;
const STDERR_TAIL_CHARS = 1024;

class HostdLostError extends Error {
  override name = 'HostdLostError';
}

interface Running {
  child: ChildProcess;
  waiting: Map<number, (error: Error | undefined) => void>;
}

/**
 * The resident hostd: a child of the runner that is started with the first request, and again when it has ended. It keeps no
 * state, and nothing depends on it between two requests. It ends with the runner.
 */
export class HostdService {
  readonly #log: Logger;
  #running: Running | undefined;
  #last = 0;
  #closed = false;

  constructor(log: Logger) {
    this.#log = log;
  }

  /** Of the process that runs now. */
  get pid(): number | undefined {
    return this.#running?.child.pid;
  }

  /**
   * Resolves when it is done. Rejects with what hostd says.
   * @param repeatable it does no harm to do it once more when hostd has ended meanwhile
   */
  async request(request: HostdRequest, repeatable: boolean): Promise<void> {
    for (let attempt = 1; ; attempt++) {
      try {
        return await this.#once(request);
      } catch (error) {
        if (!(error instanceof HostdLostError) || !repeatable || attempt === ATTEMPTS) throw error;
      }
    }
  }

  close(): void {
    this.#closed = true;
    this.#running?.child.stdin?.end();
  }

  #once(request: HostdRequest): Promise<void> {
    const running = (this.#running ??= this.#start());
    const id = ++this.#last;
    return new Promise((resolve, reject) => {
      const late = setTimeout(() => running.child.kill('SIGKILL'), REQUEST_DEADLINE_MS);
      running.waiting.set(id, (error) => {
        clearTimeout(late);
        running.waiting.delete(id);
        if (running.waiting.size === 0) idle(running.child);
        if (error === undefined) resolve();
        else reject(error);
      });
      busy(running.child);
      running.child.stdin?.write(`${JSON.stringify({ id, ...request })}\n`);
    });
  }

  #start(): Running {
    const failpoints = process.env['RELEAP_CRASH_AT'];
    const child = startProcess(HOSTD, ['serve'], {
      stdio: ['pipe', 'pipe', 'pipe'],
      env: { ...toolEnvironment(), ...(failpoints === undefined ? {} : { RELEAP_CRASH_AT: failpoints }) },
    });
    const running: Running = { child, waiting: new Map() };
    const reader = new LineReader(Answer, ANSWER_MAX_BYTES);
    let stderr = '';
    const ended = (how: string): void => {
      if (this.#running === running) this.#running = undefined;
      if (!this.#closed) this.#log.error({ how, stderr }, 'hostd ended');
      for (const settle of running.waiting.values())
        settle(new HostdLostError(`hostd ended: ${stderr.trim() || how}`));
    };
    child.once('error', (error) => ended(error.message));
    child.once('exit', (code, signal) => ended(`exit code ${code ?? 'none'}, signal ${signal ?? 'none'}`));
    // With no file descriptors left there are no pipes either.
    child.stdin?.on('error', () => undefined);
    child.stderr?.on('data', (chunk: Buffer) => {
      stderr = (stderr + chunk.toString('utf8')).slice(-STDERR_TAIL_CHARS);
    });
    child.stdout?.on('data', (chunk: Buffer) => {
      try {
        for (const { id, error } of reader.push(chunk))
          running.waiting.get(id)?.(error === undefined ? undefined : new Error(error));
      } catch {
        child.kill('SIGKILL');
      }
    });
    idle(child);
    return running;
  }
}

/** A process that only waits must not keep the runner from ending. */
function idle(child: ChildProcess): void {
  child.unref();
  for (const stream of [child.stdin, child.stdout, child.stderr])
    (stream as unknown as { unref?: () => void } | null)?.unref?.();
}

function busy(child: ChildProcess): void {
  child.ref();
  (child.stdout as unknown as { ref?: () => void } | null)?.ref?.();
}
