/** One runner's connection: what it says is taken in order, what it is told is bounded and never repeated in vain. */
import {
  type Assignment,
  type ControlMessage,
  LINK_MESSAGE_MAX_BYTES,
  type RunnerFacts,
  type RunnerMessage,
  type SnapshotAssignment,
} from '@releap/contract';
import type { Logger } from 'pino';
import type { WebSocket } from 'ws';
import type { AssignableRow } from '../sandboxes/environment.ts';
import { toSnapshotAssignment } from '../snapshots/assignment.ts';
import type { SnapshotRow } from '@releap/database';
import { toAssignment } from './assignment.ts';
import { readRunnerMessage, SYNC_PART_BYTES } from './messages.ts';

export type Hello = Extract<RunnerMessage, { type: 'hello' }>;

export interface LinkEvents {
  /** Gives the connection's epoch and what the runner is to hold. Throws to refuse the runner. */
  hello(
    link: Link,
    hello: Hello,
  ): Promise<{ epoch: string; held: AssignableRow[]; snapshots: SnapshotRow[] }>;
  observe(link: Link, message: Extract<RunnerMessage, { type: 'observe' }>): Promise<void>;
  observeSnapshots(link: Link, message: Extract<RunnerMessage, { type: 'observe-snapshots' }>): Promise<void>;
  buildResult(link: Link, message: Extract<RunnerMessage, { type: 'build-result' }>): Promise<void>;
  usage(link: Link, message: Extract<RunnerMessage, { type: 'usage' }>): void;
  ready(link: Link, ready: boolean): Promise<void>;
  /** It is over: nothing more can be sent. */
  closed(link: Link): void;
  /** The same, once the message that was being worked on is done: nothing of this link is written any more. */
  ended(link: Link): void;
}

/** Close codes of our own (RFC 6455 gives 4000 to 4999 to applications). */
export const CLOSE = {
  replaced: 4000,
  badMessage: 4001,
  refused: 4002,
  silent: 4003,
  failed: 4004,
  slow: 4005,
} as const;

const HELLO_MS = 10_000;
/** Unsent bytes above which a runner counts as stuck. */
const OUTBOUND_MAX_BYTES = 4 * LINK_MESSAGE_MAX_BYTES;
/** Messages taken from the socket and not yet worked on, above which reading pauses. */
const INBOUND_HIGH = 64;

export class Link {
  runnerId = '';
  region = '';
  epoch = '0';
  ready = false;
  facts: RunnerFacts | undefined;
  /** On the monotonic clock. */
  lastHeard = performance.now();
  /** Newest generation that was sent of each sandbox and each snapshot. */
  readonly sent = new Map<string, number>();
  /** Builds it was given and has not answered: job id to attempt. */
  readonly builds = new Map<string, number>();

  readonly #socket: WebSocket;
  readonly #events: LinkEvents;
  readonly #log: Logger;
  #synced = false;
  #early: (() => void)[] = [];
  #closed = false;
  #inbound: string[] = [];
  #working = false;
  readonly #helloTimer: NodeJS.Timeout;

  constructor(socket: WebSocket, events: LinkEvents, log: Logger) {
    this.#socket = socket;
    this.#events = events;
    this.#log = log;
    this.#helloTimer = setTimeout(() => this.close(CLOSE.silent, 'no hello in time'), HELLO_MS);
    socket.on('message', (data, binary) => {
      this.lastHeard = performance.now();
      if (binary) return this.close(CLOSE.badMessage, 'messages are JSON text');
      this.#inbound.push((data as Buffer).toString('utf8'));
      if (this.#inbound.length >= INBOUND_HIGH) socket.pause();
      if (!this.#working) void this.#work();
    });
    socket.on('error', (error) => this.#log.warn({ err: error, runner: this.runnerId }, 'runner link broke'));
    socket.on('close', () => this.#end());
  }

  get closed(): boolean {
    return this.#closed;
  }

  close(code: number, reason: string): void {
    if (this.#closed) return;
    this.#log.info({ runner: this.runnerId, code, reason }, 'closing a runner link');
    this.#socket.close(code, reason.slice(0, 120));
    // A peer that does not answer the close must not keep the connection.
    setTimeout(() => this.#socket.terminate(), 2_000).unref();
    this.#end();
  }

  /** Tells the runner what is to be of this sandbox, unless it knows. */
  assign(row: AssignableRow): void {
    this.#tell(row, () => ({ type: 'assign', assignment: toAssignment(row) }));
  }

  /** The same of a snapshot. */
  assignSnapshot(row: SnapshotRow): void {
    this.#tell(row, () => ({ type: 'assign-snapshot', snapshot: toSnapshotAssignment(row) }));
  }

  #tell(row: AssignableRow | SnapshotRow, message: () => ControlMessage): void {
    if (this.#closed) return;
    if (!this.#synced) {
      // It may have changed after the rows of the sync were read.
      this.#early.push(() => this.#tell(row, message));
      return;
    }
    if (!row.assigned_to_runner) {
      this.sent.delete(row.id);
      return;
    }
    if ((this.sent.get(row.id) ?? -1) >= row.generation) return;
    this.sent.set(row.id, row.generation);
    this.send(message());
  }

  send(message: ControlMessage): void {
    if (this.#closed) return;
    if (this.#socket.bufferedAmount > OUTBOUND_MAX_BYTES)
      return this.close(CLOSE.slow, 'the runner does not read');
    this.#socket.send(JSON.stringify(message));
  }

  /** Sends, and waits until it has left or cannot any more. */
  async #deliver(message: ControlMessage): Promise<void> {
    if (this.#closed) return;
    await new Promise<void>((resolve) => this.#socket.send(JSON.stringify(message), () => resolve()));
  }

  #end(): void {
    if (this.#closed) return;
    this.#closed = true;
    this.#inbound = [];
    clearTimeout(this.#helloTimer);
    this.#events.closed(this);
    if (!this.#working) this.#events.ended(this);
  }

  async #work(): Promise<void> {
    this.#working = true;
    try {
      for (
        let data = this.#inbound.shift();
        data !== undefined && !this.#closed;
        data = this.#inbound.shift()
      ) {
        if (this.#inbound.length < INBOUND_HIGH / 2 && this.#socket.isPaused) this.#socket.resume();
        let message: RunnerMessage;
        try {
          message = readRunnerMessage(data);
        } catch (error) {
          this.close(CLOSE.badMessage, (error as Error).message);
          return;
        }
        await this.#take(message);
      }
    } catch (error) {
      // Nothing was acknowledged: the runner connects again and repeats it.
      this.#log.error({ err: error, runner: this.runnerId }, 'a message of a runner could not be taken in');
      this.close(CLOSE.failed, 'the control plane could not take this in');
    } finally {
      this.#working = false;
      if (this.#closed) this.#events.ended(this);
    }
  }

  async #take(message: RunnerMessage): Promise<void> {
    if (message.type === 'hello') return this.#greet(message);
    if (!this.#synced) return this.close(CLOSE.badMessage, 'the first message must be hello');
    switch (message.type) {
      case 'observe':
        await this.#events.observe(this, message);
        this.send({ type: 'ack', seq: message.seq });
        break;
      case 'observe-snapshots':
        await this.#events.observeSnapshots(this, message);
        this.send({ type: 'ack', seq: message.seq });
        break;
      case 'build-result':
        await this.#events.buildResult(this, message);
        this.send({ type: 'ack', seq: message.seq });
        break;
      case 'usage':
        this.#events.usage(this, message);
        break;
      case 'heartbeat':
        if (message.ready !== this.ready) {
          this.ready = message.ready;
          await this.#events.ready(this, message.ready);
        }
        break;
    }
  }

  async #greet(hello: Hello): Promise<void> {
    if (this.runnerId !== '') return this.close(CLOSE.badMessage, 'hello is said once');
    clearTimeout(this.#helloTimer);
    this.runnerId = hello.runner_id;
    this.region = hello.region;
    this.facts = hello.facts;
    const { epoch, held, snapshots } = await this.#events.hello(this, hello);
    this.epoch = epoch;
    if (this.#closed) return;
    await this.#sync(held, snapshots);
  }

  /**
   * In parts when it is large, and each when the one before has left: no tenant's environments can make it too large to
   * send, or the runner look stuck.
   */
  async #sync(rows: AssignableRow[], snapshots: SnapshotRow[]): Promise<void> {
    let part: { assignments: Assignment[]; snapshots: SnapshotAssignment[] } = {
      assignments: [],
      snapshots: [],
    };
    let bytes = 0;
    const add = async (one: { assignment: Assignment } | { snapshot: SnapshotAssignment }): Promise<void> => {
      const size = Buffer.byteLength(JSON.stringify(one));
      if (bytes > 0 && bytes + size > SYNC_PART_BYTES) {
        await this.#deliver({ type: 'sync', ...part, more: true });
        part = { assignments: [], snapshots: [] };
        bytes = 0;
      }
      bytes += size;
      if ('assignment' in one) part.assignments.push(one.assignment);
      else part.snapshots.push(one.snapshot);
    };
    for (const row of [...rows, ...snapshots])
      this.sent.set(row.id, Math.max(row.generation, this.sent.get(row.id) ?? -1));
    // Snapshots first: what begins with one may come only after it.
    for (const row of snapshots) await add({ snapshot: toSnapshotAssignment(row) });
    for (const row of rows) await add({ assignment: toAssignment(row) });
    await this.#deliver({ type: 'sync', ...part });
    this.#synced = true;
    for (const tell of this.#early) tell();
    this.#early = [];
  }
}
