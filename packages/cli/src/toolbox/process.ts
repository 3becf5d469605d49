/** Runs a command in a sandbox with its streams, over the toolbox's web socket (see process-stream.ts of the contract). */
import type {
  ProcessStreamClientMessage,
  ProcessStreamServerMessage,
  ProcessStreamStart,
  TerminalSize,
} from '@releap/contract';
import { PROCESS_CHANNEL, PROCESS_STREAM_CHUNK_BYTES } from '@releap/contract/process-stream';
import { toolboxOperations } from '@releap/sdk';
import { type RawData, WebSocket } from 'ws';
import { CliError } from '../cli-error.ts';
import { EXIT } from '../exit-codes.ts';
import { printable } from '../terminal.ts';
import { openSocket } from './socket.ts';
import type { Toolbox } from './toolbox.ts';

export interface ProcessStreams {
  /** Null: the command's stdin is at its end from the start. */
  stdin: (NodeJS.ReadableStream & AsyncIterable<Buffer | string>) | null;
  stdout: NodeJS.WritableStream;
  stderr: NodeJS.WritableStream;
}

export interface ProcessEnd {
  exitCode: number;
  timedOut: boolean;
  /** Why the command could not start. */
  error?: string;
}

/** Subscribes to changes of the terminal's size; what it returns ends that. */
export type Resizes = (onResize: (size: TerminalSize) => void) => () => void;

const ALIVE_MS = 15_000;
/** After a Ctrl-C was passed on: how long the command may take to end by itself. */
const INTERRUPT_GRACE_MS = 5_000;
const SEND_BUFFER_BYTES = 1024 * 1024;

export async function runProcess(
  toolbox: Toolbox,
  start: ProcessStreamStart,
  streams: ProcessStreams,
  resizes?: Resizes,
): Promise<ProcessEnd> {
  const socket = await openSocket(toolbox, toolboxOperations.streamProcess.path);
  const { signal } = toolbox;
  const send = (message: ProcessStreamClientMessage | ProcessStreamStart): void =>
    socket.send(JSON.stringify(message));
  const stopResizes = resizes?.((size) => send({ type: 'resize', ...size }));
  // An unsolicited pong (RFC 6455, 5.5.3): a keep-alive also while a slow reader delays incoming pings.
  const alive = setInterval(() => socket.pong(), ALIVE_MS);
  let grace: NodeJS.Timeout | undefined;
  const interrupt = (): void => {
    send({ type: 'signal', signal: signal.reason === 'SIGTERM' ? 'TERM' : 'INT' });
    grace = setTimeout(() => socket.terminate(), INTERRUPT_GRACE_MS);
  };
  try {
    const ended = received(socket, streams, toolbox);
    send({ ...start, stdin: streams.stdin !== null });
    if (signal.aborted) interrupt();
    else signal.addEventListener('abort', interrupt, { once: true });
    if (streams.stdin) void sendInput(socket, streams.stdin, send);
    return await ended;
  } finally {
    clearInterval(alive);
    clearTimeout(grace);
    signal.removeEventListener('abort', interrupt);
    stopResizes?.();
    socket.close();
    setTimeout(() => socket.terminate(), 1000).unref();
  }
}

function received(socket: WebSocket, streams: ProcessStreams, toolbox: Toolbox): Promise<ProcessEnd> {
  const { promise, resolve, reject } = Promise.withResolvers<ProcessEnd>();
  socket.on('message', (data: RawData, binary: boolean) => {
    const bytes = Buffer.isBuffer(data)
      ? data
      : Buffer.concat(Array.isArray(data) ? data : [Buffer.from(data)]);
    if (binary) {
      const stream = bytes[0] === PROCESS_CHANNEL.stderr ? streams.stderr : streams.stdout;
      if (stream.write(bytes.subarray(1))) return;
      // The reader of our output is slower than the command: use TCP back-pressure.
      socket.pause();
      stream.once('drain', () => socket.resume());
      return;
    }
    const end = readEnd(bytes.toString('utf8'));
    if (end instanceof CliError) reject(end);
    else if (end) resolve(end);
  });
  socket.once('close', (code, reason) => {
    const why = reason.length > 0 ? `: ${printable(reason.toString('utf8'))}` : ` (code ${code})`;
    reject(
      toolbox.signal.aborted
        ? new CliError('interrupted', { exitCode: EXIT.interrupted })
        : new CliError(`the connection to sandbox ${toolbox.sandbox.id} ended before the command did${why}`),
    );
  });
  return promise;
}

function readEnd(text: string): ProcessEnd | CliError | undefined {
  let message: ProcessStreamServerMessage;
  try {
    message = JSON.parse(text) as ProcessStreamServerMessage;
  } catch {
    return new CliError('the service sent a message that is not JSON');
  }
  if (message.type === 'error') return new CliError(printable(message.error), { status: message.status });
  // Later versions may send further messages; unknown ones are ignored.
  if (message.type !== 'exit') return undefined;
  return {
    exitCode: message.exit_code,
    timedOut: message.timed_out,
    ...(message.error === undefined ? {} : { error: printable(message.error) }),
  };
}

/** Ends when stdin does, or when the socket is closed; a command that does not read its input is no failure. */
async function sendInput(
  socket: WebSocket,
  stdin: AsyncIterable<Buffer | string>,
  send: (message: ProcessStreamClientMessage) => void,
): Promise<void> {
  try {
    for await (const chunk of stdin) {
      const bytes = typeof chunk === 'string' ? Buffer.from(chunk) : chunk;
      for (let from = 0; from < bytes.length; from += PROCESS_STREAM_CHUNK_BYTES) {
        if (socket.readyState !== WebSocket.OPEN) return;
        const piece = bytes.subarray(from, from + PROCESS_STREAM_CHUNK_BYTES);
        const framed = Buffer.concat([Buffer.of(PROCESS_CHANNEL.stdin), piece]);
        const sent = Promise.withResolvers<void>();
        socket.send(framed, () => sent.resolve());
        if (socket.bufferedAmount > SEND_BUFFER_BYTES) await sent.promise;
      }
    }
    if (socket.readyState === WebSocket.OPEN) send({ type: 'stdin-end' });
  } catch {
    // Our own stdin broke: for the command that is the end of it.
    if (socket.readyState === WebSocket.OPEN) send({ type: 'stdin-end' });
  }
}
