/** Runs a command in a sandbox with its streams, over the toolbox's web socket (see wire/toolbox/connection.ts of the contract). */
import {
  PROCESS_CHANNEL,
  PROCESS_STREAM_CHUNK_BYTES,
  toolboxOperations,
  type ProcessStreamClientMessage,
  type ProcessStreamServerMessage,
  type ProcessStreamStart,
  type TerminalSize,
} from '@releap/contract/wire';
import { type RawData, WebSocket } from 'ws';
import { aborted, ReleapError } from '../error.ts';
import type { Toolbox } from '../toolbox.ts';
import { executeProcess, type ProcessEnd, type ProcessStreams } from './execute.ts';
import { bytesOf, keepAlive, NoStreamError, openSocket, writeFrom } from './socket.ts';

export type { ProcessEnd, ProcessStreams };

/** Subscribes to changes of the terminal's size; what it returns ends that. */
export type Resizes = (onResize: (size: TerminalSize) => void) => () => void;

/** After an interrupt was passed on: how long the command may take to end by itself. */
const INTERRUPT_GRACE_MS = 5_000;
const SEND_BUFFER_BYTES = 1024 * 1024;

/**
 * Runs a command until it ends. When the signal of the toolbox is aborted, the command is interrupted: with TERM if the
 * reason is `SIGTERM`, else with INT. Without web sockets it is run by `process/execute`, which has no stdin.
 */
export async function runProcess(
  toolbox: Toolbox,
  start: ProcessStreamStart,
  streams: ProcessStreams,
  resizes?: Resizes,
): Promise<ProcessEnd> {
  try {
    return await streamProcess(toolbox, start, streams, resizes);
  } catch (error) {
    if (!(error instanceof NoStreamError)) throw error;
    return await executeProcess(toolbox, start, streams);
  }
}

/** As `runProcess`, with web sockets alone. */
export async function streamProcess(
  toolbox: Toolbox,
  start: ProcessStreamStart,
  streams: ProcessStreams,
  resizes?: Resizes,
): Promise<ProcessEnd> {
  const socket = await openSocket(toolbox, toolboxOperations.streamProcess.path);
  using _alive = keepAlive(socket);
  const { signal } = toolbox;
  const send = (message: ProcessStreamClientMessage | ProcessStreamStart): void =>
    socket.send(JSON.stringify(message));
  const stopResizes = resizes?.((size) => send({ type: 'resize', ...size }));
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
    clearTimeout(grace);
    signal.removeEventListener('abort', interrupt);
    stopResizes?.();
  }
}

function received(socket: WebSocket, streams: ProcessStreams, toolbox: Toolbox): Promise<ProcessEnd> {
  const { promise, resolve, reject } = Promise.withResolvers<ProcessEnd>();
  socket.on('message', (data: RawData, binary: boolean) => {
    const bytes = bytesOf(data);
    if (binary) {
      const stream = bytes[0] === PROCESS_CHANNEL.stderr ? streams.stderr : streams.stdout;
      writeFrom(socket, stream, bytes.subarray(1));
      return;
    }
    const end = readEnd(bytes.toString('utf8'));
    if (end instanceof ReleapError) reject(end);
    else if (end) resolve(end);
  });
  socket.once('close', (code, reason) => {
    const why = reason.length > 0 ? `: ${reason.toString('utf8')}` : ` (code ${code})`;
    const message = `the connection to sandbox ${toolbox.sandbox.id} ended before the command did${why}`;
    reject(toolbox.signal.aborted ? aborted(toolbox.signal) : new ReleapError('failed', message));
  });
  return promise;
}

function readEnd(text: string): ProcessEnd | ReleapError | undefined {
  let message: ProcessStreamServerMessage;
  try {
    message = JSON.parse(text) as ProcessStreamServerMessage;
  } catch {
    return new ReleapError('malformed', 'the service sent a message that is not JSON');
  }
  if (message.type === 'error') return new ReleapError('refused', message.error, { status: message.status });
  // Later versions may send further messages; unknown ones are ignored.
  if (message.type !== 'exit') return undefined;
  return {
    exitCode: message.exit_code,
    timedOut: message.timed_out,
    ...(message.error === undefined ? {} : { error: message.error }),
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
