/** One runner's connection: handles its messages in order, and sends it its assignments. */
import {
  FramingError,
  LINK_CLOSE,
  LINK_MESSAGE_MAX_BYTES,
  readRunnerMessage,
  type AckMessage,
  type DialMessage,
  type HeldMemory,
  type HelloMessage,
  type Reading,
  type Report,
  type RunnerMessage,
  type UnsupportedItem,
  type UsageHistoryMessage,
  type UsageMessage,
  type UsageStoredMessage,
  type WelcomeMessage,
} from '@releap/contract/runner';
import type { Logger } from 'pino';
import type { WebSocket } from 'ws';
import { AssignmentSender } from './assignment-sender.ts';
import type { ReconciledKind } from '../../platform/reconciled-kind.ts';

export interface LinkHandlers {
  readonly kinds: readonly ReconciledKind[];
  /** Returns the connection's epoch and the welcome. To refuse the runner, closes the link and returns undefined. */
  hello(link: Link, hello: HelloMessage): Promise<{ epoch: string; welcome: WelcomeMessage } | undefined>;
  /** Resolves when everything is stored. */
  report(link: Link, items: readonly Report[]): Promise<void>;
  usage(link: Link, message: UsageMessage): void;
  /** @returns whether it is stored */
  usageHistory(link: Link, message: UsageHistoryMessage): Promise<boolean>;
  ready(link: Link, ready: boolean): Promise<void>;
  /** Something of this runner was ignored: see `IgnoredCounts`. */
  ignored(what: keyof IgnoredCounts, count: number): void;
  /** The link is closed: nothing more can be sent. */
  closed(link: Link): void;
  /** The link is closed and its last message is handled: it writes nothing more. */
  ended(link: Link): void;
}

/** Counts of received and ignored items, since the start of this server. */
export interface IgnoredCounts {
  /** Messages of a type that is not known. */
  messageTypes: number;
  /** Messages of a known type that cannot be read. */
  messages: number;
  /** Items of a kind that is not known, or that cannot be read. */
  items: number;
}

const HELLO_MS = 10_000;
/** Longest that the socket may take to accept one message. */
const SEND_DEADLINE_MS = 60_000;
/** Unsent bytes above which a runner counts as one that does not read. */
const OUTBOUND_MAX_BYTES = 4 * LINK_MESSAGE_MAX_BYTES;
/** Messages read from the socket and not yet handled, above which reading pauses. */
const INBOUND_HIGH = 64;
/** Most bytes of a close frame's reason. */
const REASON_BYTES = 123;

export class Link {
  runnerId = '';
  region = '';
  epoch = '0';
  ready = false;
  /** From the last heartbeat. */
  heldMemory: HeldMemory = { mem_mib: 0, reclaimable_mib: 0 };
  /** Null: it does not say. */
  freeDiskMib: number | null = null;
  /** Kinds that the runner reconciles. */
  kinds: ReadonlySet<string> = new Set();
  capabilities: ReadonlySet<string> = new Set();
  /** On the monotonic clock. */
  lastHeard = performance.now();

  readonly #socket: WebSocket;
  readonly #credentialOf: string;
  readonly #handlers: LinkHandlers;
  readonly #log: Logger;
  readonly #kindNames: readonly string[];
  /** Set by the welcome. */
  #sender: AssignmentSender | undefined;
  #synced = false;
  /** From the last heartbeat; valid once everything was sent. */
  #saidReady = false;
  #closed = false;
  #inbound: string[] = [];
  #working = false;
  readonly #logged = new Set<string>();
  readonly #helloTimer: NodeJS.Timeout;

  /** @param credentialOf the runner whose credential opened the connection */
  constructor(socket: WebSocket, credentialOf: string, handlers: LinkHandlers, log: Logger) {
    this.#credentialOf = credentialOf;
    this.#socket = socket;
    this.#handlers = handlers;
    this.#log = log;
    this.#kindNames = handlers.kinds.map(({ kind }) => kind);
    this.#helloTimer = setTimeout(() => this.close(LINK_CLOSE.silent, 'no hello in time'), HELLO_MS);
    socket.on('message', (data, binary) => {
      this.lastHeard = performance.now();
      if (binary) return this.close(LINK_CLOSE.framing, 'messages are JSON text');
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
    this.#socket.close(code, cutBytes(reason, REASON_BYTES));
    // A peer that does not answer the close must not keep the connection.
    setTimeout(() => this.#socket.terminate(), 2_000).unref();
    this.#end();
  }

  /** Sends the runner its assignment of this resource, unless it has it. @param generation the newest, if known */
  changed(kind: ReconciledKind, id: string, generation?: number): void {
    this.#sender?.changed(kind, id, generation);
  }

  /** The resource is no longer assigned to this runner. */
  released(id: string): void {
    this.#sender?.released(id);
  }

  /** A gateway or a control server at this address needs connections that the runner opens. */
  dial(address: string): void {
    if (this.epoch !== '0') this.#send({ type: 'dial', address });
  }

  #send(message: DialMessage | AckMessage | WelcomeMessage | UsageStoredMessage): void {
    if (this.#closed) return;
    if (this.#socket.bufferedAmount > OUTBOUND_MAX_BYTES)
      return this.close(LINK_CLOSE.slow, 'the runner does not read');
    this.#socket.send(JSON.stringify(message));
  }

  /** Sends, and resolves when the socket has taken it or is closed. */
  async #deliver(text: string): Promise<void> {
    if (this.#closed) return;
    const late = setTimeout(() => this.close(LINK_CLOSE.slow, 'the runner does not read'), SEND_DEADLINE_MS);
    await new Promise<void>((resolve) => this.#socket.send(text, () => resolve()));
    clearTimeout(late);
  }

  #end(): void {
    if (this.#closed) return;
    this.#closed = true;
    this.#inbound = [];
    clearTimeout(this.#helloTimer);
    this.#handlers.closed(this);
    if (!this.#working) this.#handlers.ended(this);
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
        let reading: Reading<RunnerMessage>;
        try {
          reading = readRunnerMessage(data, this.#kindNames);
        } catch (error) {
          if (!(error instanceof FramingError)) throw error;
          this.close(LINK_CLOSE.framing, error.message);
          return;
        }
        await this.#handle(reading);
      }
    } catch (error) {
      this.#failed(error);
    } finally {
      this.#working = false;
      if (this.#closed) this.#handlers.ended(this);
    }
  }

  /** Nothing was acknowledged: the runner reconnects and repeats it. */
  #failed(error: unknown): void {
    if (this.#closed) return;
    this.#log.error({ err: error, runner: this.runnerId }, 'the link of a runner failed');
    this.close(LINK_CLOSE.failed, 'the control plane failed: reconnect');
  }

  async #handle(reading: Reading<RunnerMessage>): Promise<void> {
    if (reading.outcome === 'unreadable' && reading.type === 'hello')
      return this.close(LINK_CLOSE.refused, `hello: ${reading.error}`);
    const isHello = reading.outcome === 'message' && reading.message.type === 'hello';
    if (!isHello && this.#sender === undefined)
      return this.close(LINK_CLOSE.framing, 'the first message must be hello');
    if (reading.outcome === 'unknown-type') {
      this.#ignored('messageTypes', 1, reading.type, 'messages of an unknown type are ignored');
      return;
    }
    if (reading.outcome === 'unreadable') {
      this.#ignored('messages', 1, reading.type, 'a message cannot be read and is ignored', reading.error);
      return;
    }
    const { message, unsupported, dropped } = reading;
    for (const { kind, error } of unsupported)
      this.#ignored('items', 1, `${message.type} ${kind}`, 'an item cannot be read and is ignored', error);
    if (dropped > 0) this.#ignored('items', dropped, message.type, 'items cannot be read and are ignored');
    await this.#take(message, unsupported);
  }

  /** Always counted, logged once per link. */
  #ignored(what: keyof IgnoredCounts, count: number, of: string, text: string, error?: string): void {
    this.#handlers.ignored(what, count);
    if (this.#logged.has(of) || this.#logged.size >= INBOUND_HIGH) return;
    this.#logged.add(of);
    this.#log.warn({ runner: this.runnerId, of, error }, text);
  }

  async #take(message: RunnerMessage, unsupported: UnsupportedItem[]): Promise<void> {
    switch (message.type) {
      case 'hello':
        return this.#handleHello(message);
      case 'report':
        await this.#handlers.report(this, message.items);
        this.#send({
          type: 'ack',
          seq: message.seq,
          ...(unsupported.length === 0 ? {} : { unsupported }),
        });
        break;
      case 'usage':
        this.#handlers.usage(this, message);
        break;
      case 'usage_history':
        if (await this.#handlers.usageHistory(this, message))
          this.#send({ type: 'usage_stored', seq: message.seq });
        break;
      case 'heartbeat':
        this.#saidReady = message.ready;
        if (message.held_memory !== undefined) this.heldMemory = message.held_memory;
        this.freeDiskMib = message.free_disk_mib ?? null;
        await this.#becomeReady();
        break;
    }
  }

  async #becomeReady(): Promise<void> {
    if (!this.#synced || this.#saidReady === this.ready) return;
    this.ready = this.#saidReady;
    await this.#handlers.ready(this, this.ready);
  }

  async #handleHello(hello: HelloMessage): Promise<void> {
    if (this.runnerId !== '') return this.close(LINK_CLOSE.framing, 'a second hello');
    clearTimeout(this.#helloTimer);
    if (hello.runner_id !== this.#credentialOf)
      return this.close(LINK_CLOSE.refused, `the credential belongs to runner ${this.#credentialOf}`);
    this.runnerId = hello.runner_id;
    this.region = hello.region;
    this.kinds = new Set(hello.kinds);
    this.capabilities = new Set(hello.capabilities);
    const sender = new AssignmentSender({
      runnerId: hello.runner_id,
      kinds: this.#handlers.kinds,
      send: (text) => this.#deliver(text),
      isClosed: () => this.#closed,
      onError: (error) => this.#failed(error),
    });
    // Later changes are not in the pages below, or are sent again.
    this.#sender = sender;
    const answer = await this.#handlers.hello(this, hello);
    if (answer === undefined) return;
    // Also of a link that was closed meanwhile: its end makes the runner offline.
    this.epoch = answer.epoch;
    if (this.#closed) return;
    this.#send(answer.welcome);
    // Reports are handled meanwhile: a runner answers the first page before the last one is read.
    sender
      .sync()
      .then(() => {
        this.#synced = !this.#closed;
        return this.#becomeReady();
      })
      .catch((error: unknown) => this.#failed(error));
  }
}

function cutBytes(text: string, bytes: number): string {
  const buffer = Buffer.from(text);
  return buffer.length <= bytes
    ? text
    : new TextDecoder().decode(buffer.subarray(0, bytes)).replace(/\uFFFD+$/, '');
}
