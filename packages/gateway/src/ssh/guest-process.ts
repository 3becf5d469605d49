import type { IncomingMessage } from 'node:http';
import type {
  ProcessStreamClientMessage,
  ProcessStreamServerMessage,
  ProcessStreamStart,
  TerminalSize,
} from '@releap/contract';
import { PROCESS_CHANNEL, PROCESS_STREAM_CHUNK_BYTES } from '@releap/contract/process-stream';
import { type RawData, WebSocket } from 'ws';
import type { GrantLease } from '../control/grants.ts';

/** A pong tells the runner that this side is alive, also while a slow client keeps it from reading. */
const ALIVE_MS = 15_000;
/** Input that waits to be sent to the runner; above, `write` returns false. */
const INPUT_MAX_BYTES = 512 * 1024;
const MESSAGE_MAX_BYTES = 4 * 1024 * 1024;
const ERROR_MAX_BYTES = 16 * 1024;
const NO_ANSWER = 'the machine that runs the sandbox did not answer';

export interface ProcessEnd {
  exitCode: number;
  /** With `SIG`. */
  signal?: string;
  /** Why it could not start. */
  error?: string;
}

export interface ProcessEvents {
  onOutput: (to: 'stdout' | 'stderr', data: Buffer) => void;
  /** Nothing more follows on standard output; the process may still run. */
  onOutputEnd?: () => void;
  /** Input may be written again. */
  onDrain: () => void;
  /** Called once: it has ended, or the connection to it. */
  onEnd: (end: ProcessEnd | Error) => void;
}

/** A process in a sandbox, over the toolbox's stream at the runner (`wire/toolbox/connection.ts` in the contract). */
export class GuestProcess {
  readonly #socket: WebSocket;
  readonly #events: ProcessEvents;
  readonly #alive: NodeJS.Timeout;
  #ended = false;

  private constructor(socket: WebSocket, events: ProcessEvents) {
    this.#socket = socket;
    this.#events = events;
    this.#alive = setInterval(() => {
      if (socket.readyState === WebSocket.OPEN) socket.pong();
    }, ALIVE_MS);
    socket.on('message', (data, binary) => this.#message(data, binary));
    socket.on('error', (error) => this.#end(error));
    socket.on('close', (_code, reason) => {
      const why = reason.length > 0 ? `: ${reason.toString('utf8')}` : '';
      this.#end(new Error(`the connection to the sandbox ended${why}`));
    });
  }

  /**
   * Connects and starts it.
   * @throws Error with a sentence for the client
   */
  static async start(
    lease: GrantLease,
    start: ProcessStreamStart,
    events: ProcessEvents,
    options: { startMs: number; signal: AbortSignal },
  ): Promise<GuestProcess> {
    const socket = await connect(lease, options);
    socket.send(JSON.stringify(start));
    return new GuestProcess(socket, events);
  }

  /** @returns false when no more should be written until `onDrain` */
  write(data: Buffer): boolean {
    const socket = this.#socket;
    for (let from = 0; from < data.length; from += PROCESS_STREAM_CHUNK_BYTES) {
      const piece = data.subarray(from, from + PROCESS_STREAM_CHUNK_BYTES);
      socket.send(Buffer.concat([Buffer.of(PROCESS_CHANNEL.stdin), piece]), () => {
        if (socket.bufferedAmount < INPUT_MAX_BYTES) this.#events.onDrain();
      });
    }
    return socket.bufferedAmount < INPUT_MAX_BYTES;
  }

  endInput(): void {
    this.#send({ type: 'stdin-end' });
  }

  resize({ rows, cols }: TerminalSize): void {
    this.#send({ type: 'resize', rows, cols });
  }

  /** @param signal with `SIG` */
  signal(signal: string): void {
    this.#send({ type: 'signal', signal });
  }

  pauseOutput(): void {
    if (this.#socket.readyState === WebSocket.OPEN) this.#socket.pause();
  }

  resumeOutput(): void {
    this.#socket.resume();
  }

  /** Ends it, if it runs. */
  cancel(): void {
    this.#ended = true;
    clearInterval(this.#alive);
    this.#socket.terminate();
  }

  #send(message: ProcessStreamClientMessage): void {
    if (this.#socket.readyState === WebSocket.OPEN) this.#socket.send(JSON.stringify(message));
  }

  #message(data: RawData, binary: boolean): void {
    if (this.#ended) return;
    const bytes = Array.isArray(data) ? Buffer.concat(data) : Buffer.from(data as Buffer);
    if (binary) {
      this.#events.onOutput(bytes[0] === PROCESS_CHANNEL.stderr ? 'stderr' : 'stdout', bytes.subarray(1));
      return;
    }
    let message: ProcessStreamServerMessage;
    try {
      message = JSON.parse(bytes.toString('utf8')) as ProcessStreamServerMessage;
    } catch {
      this.#end(new Error('the machine that runs the sandbox sent a malformed message'));
      return;
    }
    // Later versions may send further messages; unknown ones are ignored.
    if (message.type === 'output-end') {
      if (message.channel === PROCESS_CHANNEL.stdout) this.#events.onOutputEnd?.();
    } else if (message.type === 'error') this.#end(new Error(message.error));
    else if (message.type === 'exit')
      this.#end({
        exitCode: message.exit_code,
        ...(message.signal === undefined ? {} : { signal: message.signal }),
        ...(message.error === undefined ? {} : { error: message.error }),
      });
  }

  #end(end: ProcessEnd | Error): void {
    if (this.#ended) return;
    this.#ended = true;
    clearInterval(this.#alive);
    this.#socket.close();
    this.#events.onEnd(end);
  }
}

async function connect(
  lease: GrantLease,
  { startMs, signal }: { startMs: number; signal: AbortSignal },
): Promise<WebSocket> {
  const connection = await lease.host.dial().catch(() => {
    throw new Error(NO_ANSWER);
  });
  if (signal.aborted) connection.destroy();
  const socket = new WebSocket(`ws://runner/vms/${encodeURIComponent(lease.vmId)}/toolbox/process/stream`, {
    headers: { authorization: `Bearer ${lease.dataToken}` },
    createConnection: () => connection,
    handshakeTimeout: startMs,
    maxPayload: MESSAGE_MAX_BYTES,
    perMessageDeflate: false,
  });
  const abort = (): void => socket.terminate();
  signal.addEventListener('abort', abort, { once: true });
  try {
    return await new Promise<WebSocket>((resolve, reject) => {
      socket.once('open', () => resolve(socket));
      // Never removed: a later 'error' without a listener would end the process.
      socket.on('error', () => reject(new Error(NO_ANSWER)));
      socket.once('unexpected-response', (_request, answer) => {
        void refusalOf(answer).then(reject);
      });
    });
  } finally {
    signal.removeEventListener('abort', abort);
  }
}

/** The `{error}` of a response, in a sentence for the client. */
async function refusalOf(answer: IncomingMessage): Promise<Error> {
  let text = '';
  try {
    for await (const chunk of answer as AsyncIterable<Buffer>) {
      text += chunk.toString('utf8');
      if (text.length > ERROR_MAX_BYTES) break;
    }
    const { error } = JSON.parse(text) as { error?: unknown };
    if (typeof error === 'string' && answer.statusCode !== 401) return new Error(error);
  } catch {
    // Not ours, or cut off.
  }
  return new Error(`the machine that runs the sandbox refused the request (${answer.statusCode ?? 0})`);
}
