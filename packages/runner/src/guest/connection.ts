/**
 * One connection to a guest agent over the socket behind its virtio-serial port: finds the start of the session,
 * multiplexes requests, bounds every buffer, and disconnects a guest that violates the protocol.
 */
import { randomBytes } from 'node:crypto';
import { EventEmitter, once } from 'node:events';
import { type Socket, createConnection } from 'node:net';
import type { Logger } from 'pino';
import { IntakeBudget } from '../budget/intake-budget.ts';
import { type EntrypointListener, EntrypointReceiver } from './entrypoint-output.ts';
import {
  Channel,
  type Frame,
  FrameDecoder,
  FrameType,
  decodeObject,
  encodeFrame,
  encodeHello,
  encodeMessage,
  encodeResync,
} from './frames.ts';
import { GuestError, toGuestError } from './guest-error.ts';
import type { GuestStream } from './guest-stream.ts';
import { FrameWriter } from './frame-writer.ts';
import { RequestStream } from './request-stream.ts';
import {
  type EntrypointState,
  type GuestHello,
  readBag,
  readEntrypoint,
  readHello,
  readText,
} from './replies.ts';

/** The agent refuses more than 256; some are reserved for requests that must always be possible, such as a shutdown. */
const MAX_STREAMS = 240;
/** Requests are refused while this much is queued: a guest that reads nothing must not grow this process. */
const REQUESTS_WAITING_MAX_BYTES = 16 * 1024 * 1024;

/** Silence is counted in steps of this: after a time in which this process stalled, the answer may be there and not read yet. */
const SILENCE_STEP_MS = 50;

/** Frames of any type: a window bounds the bytes of DATA frames, but not the number of empty ones. */
const FRAMES = { perSecond: 20_000, burst: 20_000 };
/** Frames that no window bounds and that a correct agent sends rarely. A guest that exceeds this is disconnected. */
const LOOSE_FRAMES = { perSecond: 500, burst: 2_000 };

export interface GuestEvents {
  /** The entrypoint started, ended or could not start. */
  entrypoint: [EntrypointState];
  /** The connection has ended. */
  close: [GuestError];
}

export interface ConnectOptions {
  log: Logger;
  signal?: AbortSignal;
  /** Limit for the socket to accept, and again for the agent to respond. */
  deadlineMs?: number;
}

export class GuestConnection extends EventEmitter<GuestEvents> {
  /** The agent's response to the HELLO. Rejects when the connection ends. */
  readonly hello: Promise<GuestHello>;
  readonly writer: FrameWriter;
  readonly #socket: Socket;
  readonly #log: Logger;
  readonly #streams = new Map<number, RequestStream>();
  readonly #pings = new Map<string, () => void>();
  readonly #decoder: FrameDecoder;
  readonly #helloSettled = Promise.withResolvers<GuestHello>();
  #nextStream = 1;
  #entrypoint: EntrypointReceiver | undefined;
  #entrypointStream = 0;
  #listener: EntrypointListener | undefined;
  #error: GuestError | undefined;
  #entrypointState: EntrypointState | undefined;
  readonly #frames: IntakeBudget;
  readonly #looseFrames: IntakeBudget;
  /** Number of intake budgets that are exhausted. */
  #pauses = 0;

  private constructor(socket: Socket, log: Logger) {
    super();
    this.setMaxListeners(2 * MAX_STREAMS);
    this.#socket = socket;
    const pauses = {
      pause: (): void => {
        if (this.#pauses++ === 0) socket.pause();
      },
      resume: (): void => {
        if (--this.#pauses === 0) socket.resume();
      },
    };
    this.#frames = new IntakeBudget({ ...FRAMES, ...pauses });
    this.#looseFrames = new IntakeBudget({
      ...LOOSE_FRAMES,
      ...pauses,
      onExcess: () =>
        this.#end(new GuestError('protocol', 'the guest sends events, answers and greetings without end')),
    });
    this.writer = new FrameWriter(socket);
    this.#log = log;
    this.#decoder = new FrameDecoder(randomBytes(16).toString('hex'));
    this.hello = this.#helloSettled.promise;
    this.hello.catch(() => undefined);
    socket.on('data', (chunk: Buffer) => this.#receive(chunk));
    socket.on('error', (error) => this.#end(toGuestError(error, 'disconnected')));
    socket.on('close', () =>
      this.#end(new GuestError('disconnected', 'the connection to the guest was closed')),
    );
    socket.write(encodeHello(this.#decoder.nonce));
  }

  /**
   * Connects and sends HELLO without waiting for its response, so that requests can be sent right after it, even before the
   * machine runs.
   */
  static async open(socketPath: string, options: ConnectOptions): Promise<GuestConnection> {
    const deadline = AbortSignal.timeout(options.deadlineMs ?? 10_000);
    const signal = options.signal === undefined ? deadline : AbortSignal.any([deadline, options.signal]);
    const socket = createConnection(socketPath);
    try {
      await once(socket, 'connect', { signal });
    } catch (error) {
      socket.destroy();
      throw new GuestError(
        options.signal?.aborted === true ? 'aborted' : deadline.aborted ? 'timeout' : 'disconnected',
        `cannot connect to the guest at ${socketPath}: ${error instanceof Error ? error.message : String(error)}`,
        { cause: error },
      );
    }
    return new GuestConnection(socket, options.log);
  }

  get closed(): boolean {
    return this.#error !== undefined;
  }

  /** Why the connection is over. */
  get error(): GuestError | undefined {
    return this.#error;
  }

  /** The entrypoint's state, as the agent has reported it last. */
  get entrypointState(): EntrypointState | undefined {
    return this.#entrypointState;
  }

  /**
   * Waits for the response to HELLO. With `resyncAfterMs`, only for connections on which nothing was sent yet: if the guest does
   * not respond in that time, completes a frame that an earlier host may have left truncated, and sends HELLO again.
   */
  async greet(
    deadlineMs: number,
    options: { signal?: AbortSignal | undefined; resyncAfterMs?: number } = {},
  ): Promise<GuestHello> {
    const timer = setTimeout(() => {
      this.#end(new GuestError('timeout', `the guest agent did not answer within ${deadlineMs} ms`));
    }, deadlineMs);
    let silentMs = 0;
    const resync = setInterval(() => {
      silentMs += SILENCE_STEP_MS;
      if (silentMs < (options.resyncAfterMs ?? Infinity)) return;
      clearInterval(resync);
      if (this.closed || this.#decoder.synced) return;
      this.#log.info('the guest agent does not answer; clearing its input');
      this.#decoder.nonce = randomBytes(16).toString('hex');
      this.#socket.write(encodeResync(this.#decoder.nonce));
    }, SILENCE_STEP_MS);
    const abort = (): void => this.#end(new GuestError('aborted', 'connecting to the guest was cancelled'));
    options.signal?.addEventListener('abort', abort, { once: true });
    if (options.signal?.aborted === true) abort();
    try {
      return await this.hello;
    } finally {
      clearTimeout(timer);
      clearInterval(resync);
      options.signal?.removeEventListener('abort', abort);
    }
  }

  /** Sends a request. @throws GuestError when the connection is over, or too much is asked of the guest already */
  request(method: string, params: Record<string, unknown>): GuestStream {
    if (this.#error !== undefined) throw this.#error;
    if (this.#streams.size >= MAX_STREAMS)
      throw new GuestError('state', `more than ${MAX_STREAMS} requests to one guest at once`);
    if (this.writer.waitingBytes > REQUESTS_WAITING_MAX_BYTES)
      throw new GuestError('state', 'the guest does not read what it is asked');
    const id = this.#nextStream;
    const message = encodeMessage(FrameType.open, id, { ...params, method });
    this.#nextStream += 2;
    const stream = new RequestStream(this.writer, id, () => this.#streams.delete(id));
    this.#streams.set(id, stream);
    this.writer.send(message);
    return stream;
  }

  /** Resolves when the agent has echoed; rejects when the deadline passes or the connection ends. */
  async ping(deadlineMs: number): Promise<void> {
    if (this.#error !== undefined) throw this.#error;
    const token = randomBytes(8);
    const key = token.toString('hex');
    const answered = Promise.withResolvers<void>();
    const timer = setTimeout(() => {
      answered.reject(
        new GuestError('timeout', `the guest agent did not answer a ping within ${deadlineMs} ms`),
      );
    }, deadlineMs);
    const onClose = (error: GuestError): void => answered.reject(error);
    this.once('close', onClose);
    this.#pings.set(key, answered.resolve);
    this.writer.send(encodeFrame(FrameType.ping, 0, token));
    try {
      await answered.promise;
    } finally {
      clearTimeout(timer);
      this.off('close', onClose);
      this.#pings.delete(key);
    }
  }

  /** Sets the only listener: it also gets output that came before. */
  onEntrypointOutput(listener: EntrypointListener | undefined): void {
    this.#listener = listener;
    this.#entrypoint?.listen(listener);
  }

  close(): void {
    this.#end(new GuestError('disconnected', 'the connection to the guest was closed by us'));
  }

  #end(error: GuestError): void {
    if (this.#error !== undefined) return;
    this.#error = error;
    if (error.code === 'protocol') this.#log.warn({ err: error }, 'guest connection cut');
    this.#frames[Symbol.dispose]();
    this.#looseFrames[Symbol.dispose]();
    this.#socket.destroy();
    this.#helloSettled.reject(error);
    this.writer.close();
    for (const stream of this.#streams.values()) stream.fail(error);
    this.emit('close', error);
  }

  #receive(chunk: Buffer): void {
    if (this.closed) return;
    try {
      this.#decoder.push(chunk);
      this.#socket.cork();
      for (
        let frame = this.#decoder.next();
        frame !== undefined && !this.closed;
        frame = this.#decoder.next()
      ) {
        this.#dispatch(frame);
      }
    } catch (error) {
      this.#end(toGuestError(error, 'internal'));
    } finally {
      this.#socket.uncork();
    }
  }

  #dispatch({ type, stream: id, payload }: Frame): void {
    this.#frames.take(1);
    if (this.#isLoose(type, id)) this.#looseFrames.take(1);
    switch (type) {
      case FrameType.hello:
        this.#greeted(readHello(decodeObject(payload)));
        return;
      case FrameType.event:
        this.#event(decodeObject(payload));
        return;
      case FrameType.pong:
        this.#pings.get(payload.toString('hex'))?.();
        return;
      case FrameType.open:
        this.#opened(id, payload);
        return;
      case FrameType.error:
        if (id === 0)
          throw new GuestError(
            'protocol',
            `the guest ended the session: ${readText(decodeObject(payload), 'message', 8_192, '')}`,
          );
        break;
      default:
    }
    if (id !== 0 && id === this.#entrypointStream) {
      this.#entrypointFrame(type, payload);
      return;
    }
    const stream = this.#streams.get(id);
    if (stream !== undefined) stream.accept(type, payload);
    else if (id % 2 === 0 || id >= this.#nextStream)
      throw new GuestError('protocol', `the guest sent a frame on stream ${id}, which is not open`);
    // Else the response was sent before the guest received the CANCEL.
  }

  /** Whether neither a window nor the number of streams bounds how many of these may come. */
  #isLoose(type: number, id: number): boolean {
    if (type === FrameType.hello || type === FrameType.event || type === FrameType.pong) return true;
    return id !== this.#entrypointStream && !this.#streams.has(id);
  }

  #opened(id: number, payload: Buffer): void {
    const opening = decodeObject(payload);
    if (id === 0 || id % 2 !== 0 || this.#entrypointStream !== 0 || opening['method'] !== 'entrypoint') {
      throw new GuestError('protocol', 'the guest opened a stream that it may not open');
    }
    this.#entrypointStream = id;
    this.#entrypoint = new EntrypointReceiver(
      id,
      opening,
      (frame) => this.writer.send(frame),
      (error) => this.#end(error),
    );
    this.#entrypoint.listen(this.#listener);
  }

  #entrypointFrame(type: number, payload: Buffer): void {
    if (type !== FrameType.data || (payload[0] !== Channel.stdout && payload[0] !== Channel.stderr)) {
      throw new GuestError('protocol', 'the guest sent something else than data on the entrypoint stream');
    }
    this.#entrypoint?.accept(payload[0], payload.subarray(1));
  }

  #greeted(hello: GuestHello): void {
    this.#entrypointState = hello.entrypoint;
    this.#helloSettled.resolve(hello);
  }

  #event(body: Record<string, unknown>): void {
    if (body['event'] !== 'entrypoint') {
      this.#log.debug({ event: readText(body, 'event', 64, '') }, 'unknown event of a guest');
      return;
    }
    this.#entrypointState = readEntrypoint(readBag(body, 'entrypoint'));
    this.emit('entrypoint', this.#entrypointState);
  }
}
