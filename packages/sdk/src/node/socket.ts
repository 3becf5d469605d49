/** Web sockets of a toolbox. Browsers cannot authorize one with a header, so this is Node's. */
import type { IncomingMessage } from 'node:http';
import type { Duplex } from 'node:stream';
import { createWebSocketStream, type RawData, WebSocket } from 'ws';
import { asFailure, ReleapError } from '../error.ts';
import { sentenceOf } from '../response.ts';
import type { Toolbox } from '../toolbox.ts';

const HANDSHAKE_MS = 30_000;
const ALIVE_MS = 15_000;
const CLOSE_MS = 1_000;
const REFUSAL_MAX_CHARS = 64 * 1024;

/** The service has no web socket at that address: an older one, or none behind a proxy. */
export class NoStreamError extends ReleapError {}

/**
 * A web socket of a sandbox's toolbox.
 * @param path below the toolbox of the sandbox
 * @param prepare called before it is open, for a server that sends at once
 */
export function openSocket(
  toolbox: Toolbox,
  path: string,
  prepare?: (socket: WebSocket) => void,
): Promise<WebSocket> {
  const url = new URL(`${toolbox.url}${path}`);
  url.protocol = url.protocol === 'https:' ? 'wss:' : 'ws:';
  const { promise, resolve, reject } = Promise.withResolvers<WebSocket>();
  const socket = new WebSocket(url, {
    headers: { authorization: `Bearer ${toolbox.apiKey}` },
    handshakeTimeout: HANDSHAKE_MS,
    perMessageDeflate: false,
    maxPayload: 1024 * 1024,
  });
  prepare?.(socket);
  socket.once('open', () => resolve(socket));
  socket.once('unexpected-response', (_request, answer) => {
    void refusedUpgrade(answer).then(reject);
  });
  // Never removed: a later 'error' without a listener would end the process.
  socket.on('error', (error) => reject(asFailure(error, toolbox.signal, new URL(toolbox.url))));
  return promise;
}

/** As a stream of bytes, for protocols like SSH. @param prepare called before it is open, for its events */
export async function openStream(
  toolbox: Toolbox,
  path: string,
  prepare: (stream: Duplex) => void,
): Promise<Duplex> {
  const opened = Promise.withResolvers<Duplex>();
  await openSocket(toolbox, path, (socket) => {
    const stream = createWebSocketStream(socket);
    prepare(stream);
    opened.resolve(stream);
  });
  return await opened.promise;
}

async function refusedUpgrade(answer: IncomingMessage): Promise<ReleapError> {
  const status = answer.statusCode ?? 0;
  let text = '';
  for await (const chunk of answer as AsyncIterable<Buffer>) {
    text += chunk.toString('utf8');
    if (text.length > REFUSAL_MAX_CHARS) break;
  }
  const sentence = sentenceOf(text);
  const message = sentence ?? `the service answered ${status}`;
  const noSocket = [200, 405, 426, 501].includes(status) || (status === 404 && sentence === undefined);
  return noSocket
    ? new NoStreamError('malformed', message, { status })
    : new ReleapError('refused', message, { status });
}

/** Keeps the connection until it is disposed of, and then closes it. */
export function keepAlive(socket: WebSocket): Disposable {
  // An unsolicited pong (RFC 6455, 5.5.3): a keep-alive also while a slow reader delays incoming pings.
  const alive = setInterval(() => socket.pong(), ALIVE_MS);
  return {
    [Symbol.dispose]: () => {
      clearInterval(alive);
      socket.close();
      setTimeout(() => socket.terminate(), CLOSE_MS).unref();
    },
  };
}

export function bytesOf(data: RawData): Buffer {
  if (Buffer.isBuffer(data)) return data;
  return Buffer.concat(Array.isArray(data) ? data : [Buffer.from(data)]);
}

/** Writes to `stream`. If its reader is slower than the sender, the socket pauses: back-pressure by TCP. */
export function writeFrom(socket: WebSocket, stream: NodeJS.WritableStream, bytes: Uint8Array): void {
  if (stream.write(bytes)) return;
  socket.pause();
  stream.once('drain', () => socket.resume());
}
