/**
 * A client of the QEMU Machine Protocol over a unix socket (QEMU's docs/interop/qmp-spec).
 *
 * The VMM is less trusted than the runner: its input is bounded, and every command has a deadline, so that a VMM that hangs
 * or was taken over by its guest causes one error and never blocks the runner.
 */
import type { Socket } from 'node:net';
import { IntakeBudget } from '../../budget/intake-budget.ts';
import { connectUnix } from '../connect-unix.ts';
import { DEADLINES_MS } from '../tuning.ts';

/** Longest accepted line, in bytes. Valid responses have at most a few kilobytes. */
const LINE_MAX_BYTES = 1024 * 1024;
/** Most commands in flight; more indicates a bug of the caller. */
const IN_FLIGHT_MAX = 64;
/** Lines a second, where each 4 KiB of a line count as one more. A correct VMM sends some tens, and hundreds on a full disk. */
const LINES_PER_SECOND = 2_000;
const LINES_BURST = 4_000;
const LINE_UNIT_BYTES = 4096;

/** The VMM responded with an error, or did not respond. */
export class QmpError extends Error {
  /** QMP's error class, or `Timeout`, `Closed` or `Protocol` for errors of the connection. */
  readonly kind: string;
  constructor(kind: string, message: string) {
    super(message);
    this.name = 'QmpError';
    this.kind = kind;
  }
}

export interface QmpEvent {
  event: string;
  data: Record<string, unknown>;
}

interface Pending {
  command: string;
  resolve: (value: unknown) => void;
  reject: (error: Error) => void;
  timer: NodeJS.Timeout;
}

type Listener = (event: QmpEvent) => void;

/** One connected QMP session. Commands may be sent without waiting for earlier ones; QEMU runs them in order. */
export class QmpClient {
  readonly #socket: Socket;
  readonly #pending = new Map<number, Pending>();
  readonly #listeners = new Set<Listener>();
  readonly #closeListeners = new Set<(error: Error) => void>();
  #chunks: Buffer[] = [];
  #buffered = 0;
  #nextId = 1;
  #closed: Error | undefined;
  #onGreeting: (() => void) | undefined;
  readonly #budget: IntakeBudget;

  private constructor(socket: Socket) {
    this.#socket = socket;
    this.#budget = new IntakeBudget({
      perSecond: LINES_PER_SECOND,
      burst: LINES_BURST,
      pause: () => socket.pause(),
      resume: () => socket.resume(),
      onExcess: () => this.#fail(new QmpError('Protocol', 'the VMM sends events without end')),
    });
    socket.on('data', (chunk: Buffer) => this.#receive(chunk));
    socket.on('error', (error) =>
      this.#fail(new QmpError('Closed', `QMP connection failed: ${error.message}`)),
    );
    socket.on('close', () => this.#fail(new QmpError('Closed', 'QMP connection closed by the VMM')));
  }

  /**
   * Connects to the socket of a VMM that may still be starting: waits for the socket to appear, then for the
   * greeting, and negotiates capabilities.
   * @param options.alive called between attempts; false ends the wait (the VMM has ended)
   * @throws QmpError when there is no greeting within `deadlineMs`
   */
  static async connect(
    path: string,
    options: { deadlineMs?: number; alive?: () => boolean; signal?: AbortSignal } = {},
  ): Promise<QmpClient> {
    const deadline = performance.now() + (options.deadlineMs ?? DEADLINES_MS.qmpQuery);
    const left = (): number => Math.max(1, Math.ceil(deadline - performance.now()));
    const socket = await connectUnix(path, { ...options, deadlineMs: left() });
    const client = new QmpClient(socket);
    try {
      await client.#greeting(left());
      await client.execute('qmp_capabilities', undefined, { deadlineMs: left() });
      return client;
    } catch (error) {
      client.close();
      throw error;
    }
  }

  get closed(): boolean {
    return this.#closed !== undefined;
  }

  /** Executes a command and resolves with its `return`. Rejects on an error, at the deadline and when the connection is lost. */
  execute(
    command: string,
    args?: Record<string, unknown>,
    options: { deadlineMs?: number } = {},
  ): Promise<unknown> {
    if (this.#closed !== undefined) return Promise.reject(this.#closed);
    if (this.#pending.size >= IN_FLIGHT_MAX) {
      return Promise.reject(new QmpError('Protocol', `more than ${IN_FLIGHT_MAX} QMP commands in flight`));
    }
    const id = this.#nextId++;
    const usual = command.startsWith('query-') ? DEADLINES_MS.qmpQuery : DEADLINES_MS.qmpChange;
    const deadlineMs = options.deadlineMs ?? usual;
    return new Promise((resolve, reject) => {
      const timer = setTimeout(() => {
        this.#pending.delete(id);
        reject(new QmpError('Timeout', `the VMM did not answer ${command} within ${deadlineMs} ms`));
      }, deadlineMs);
      this.#pending.set(id, { command, resolve, reject, timer });
      this.#socket.write(`${JSON.stringify({ execute: command, id, ...(args && { arguments: args }) })}\n`);
    });
  }

  /** Adds a listener for events. @returns a function that removes it */
  onEvent(listener: Listener): () => void {
    this.#listeners.add(listener);
    return () => this.#listeners.delete(listener);
  }

  /** Calls `listener` once when the connection is closed, or at once if it already is. @returns a function that removes it */
  onClose(listener: (error: Error) => void): () => void {
    if (this.#closed !== undefined) {
      const error = this.#closed;
      queueMicrotask(() => listener(error));
      return () => {};
    }
    this.#closeListeners.add(listener);
    return () => this.#closeListeners.delete(listener);
  }

  /** Resolves with the first event that `accept` returns true for. */
  waitEvent(accept: (event: QmpEvent) => boolean, deadlineMs: number): Promise<QmpEvent> {
    return new Promise((resolve, reject) => {
      const finish = (settle: () => void): void => {
        clearTimeout(timer);
        offEvent();
        offClose();
        settle();
      };
      const timer = setTimeout(
        () => finish(() => reject(new QmpError('Timeout', `no expected QMP event within ${deadlineMs} ms`))),
        deadlineMs,
      );
      const offEvent = this.onEvent((event) => {
        if (accept(event)) finish(() => resolve(event));
      });
      const offClose = this.onClose((error) => finish(() => reject(error)));
    });
  }

  close(): void {
    this.#fail(new QmpError('Closed', 'QMP connection closed by us'));
  }

  #greeting(deadlineMs: number): Promise<void> {
    return new Promise((resolve, reject) => {
      const timer = setTimeout(() => {
        off();
        reject(new QmpError('Timeout', `no QMP greeting within ${deadlineMs} ms`));
      }, deadlineMs);
      const off = this.onClose((error) => {
        clearTimeout(timer);
        reject(error);
      });
      this.#onGreeting = () => {
        clearTimeout(timer);
        off();
        resolve();
      };
    });
  }

  #receive(chunk: Buffer): void {
    let rest = chunk;
    for (let end = rest.indexOf(10); end >= 0; end = rest.indexOf(10)) {
      const line = Buffer.concat([...this.#chunks, rest.subarray(0, end)]).toString('utf8');
      this.#chunks = [];
      this.#buffered = 0;
      rest = rest.subarray(end + 1);
      this.#line(line.trim());
      if (this.#closed !== undefined) return;
    }
    if (rest.length === 0) return;
    this.#chunks.push(rest);
    this.#buffered += rest.length;
    if (this.#buffered > LINE_MAX_BYTES) {
      this.#fail(new QmpError('Protocol', `the VMM sent a line of more than ${LINE_MAX_BYTES} bytes`));
    }
  }

  #line(line: string): void {
    this.#budget.take(1 + line.length / LINE_UNIT_BYTES);
    if (line === '') return;
    let message: unknown;
    try {
      message = JSON.parse(line);
    } catch {
      this.#fail(new QmpError('Protocol', 'the VMM sent a line that is not JSON'));
      return;
    }
    if (typeof message !== 'object' || message === null) {
      this.#fail(new QmpError('Protocol', 'the VMM sent JSON that is not an object'));
      return;
    }
    const fields = message as Record<string, unknown>;
    if ('QMP' in fields) {
      this.#onGreeting?.();
      this.#onGreeting = undefined;
    } else if (typeof fields['event'] === 'string') {
      const data = fields['data'];
      const event = {
        event: fields['event'],
        data: typeof data === 'object' && data !== null ? (data as Record<string, unknown>) : {},
      };
      for (const listener of this.#listeners) listener(event);
    } else {
      this.#answer(fields);
    }
  }

  #answer(fields: Record<string, unknown>): void {
    const pending = typeof fields['id'] === 'number' ? this.#pending.get(fields['id']) : undefined;
    // A late response to a command whose deadline has passed is ignored.
    if (pending === undefined) return;
    this.#pending.delete(fields['id'] as number);
    clearTimeout(pending.timer);
    const error = fields['error'];
    if (typeof error === 'object' && error !== null) {
      const { class: kind, desc } = error as { class?: unknown; desc?: unknown };
      pending.reject(new QmpError(String(kind), `${pending.command}: ${String(desc).slice(0, 1000)}`));
    } else {
      pending.resolve(fields['return']);
    }
  }

  #fail(error: Error): void {
    if (this.#closed !== undefined) return;
    this.#closed = error;
    this.#chunks = [];
    this.#budget[Symbol.dispose]();
    this.#socket.destroy();
    for (const pending of this.#pending.values()) {
      clearTimeout(pending.timer);
      pending.reject(error);
    }
    this.#pending.clear();
    const listeners = [...this.#closeListeners];
    this.#closeListeners.clear();
    for (const listener of listeners) listener(error);
  }
}
