import { once } from 'node:events';
import { type IncomingMessage, request as httpRequest, STATUS_CODES } from 'node:http';
import type { Duplex } from 'node:stream';
import type { Socket } from 'node:net';
import { badGateway, gatewayTimeout, type ApiError } from '@releap/contract';
import { type Endpoint } from './endpoints.ts';
import { CallerGone, upstreamError } from './errors.ts';
import { requestHeaders, responseHeaders } from './headers.ts';

export interface TunnelRequest {
  endpoint: Endpoint;
  path: string;
  dataToken: string;
  handshakeMs: number;
  /** Milliseconds without a byte either way after which a tunnel is closed. */
  idleMs: number;
}

/** True for what `tunnel` can carry. Any other upgrade that a client offers is ignored, as RFC 9110 allows. */
export function wantsWebSocket(request: IncomingMessage): boolean {
  return request.method === 'GET' && request.headers.upgrade?.toLowerCase() === 'websocket';
}

/**
 * Passes a WebSocket handshake on and then every byte both ways. Resolves when the tunnel has ended; rejects with
 * the refusal to send while none has been sent.
 */
export async function tunnel(
  request: IncomingMessage,
  caller: Duplex,
  head: Buffer,
  options: TunnelRequest,
): Promise<void> {
  const shaken = await handshake(request, caller, options);
  if (shaken.type === 'answer') {
    relayAnswer(shaken.answer, caller);
    return;
  }
  const { socket, answer } = shaken;
  caller.write(
    renderHead(101, {
      ...responseHeaders(answer.headers),
      connection: 'Upgrade',
      upgrade: 'websocket',
    }),
  );
  if (shaken.head.length > 0) caller.write(shaken.head);
  if (head.length > 0) socket.write(head);
  await join(caller, socket, options.idleMs);
}

type Shaken =
  | { type: 'tunnel'; socket: Socket; head: Buffer; answer: IncomingMessage }
  /** The runner said no, in HTTP. */
  | { type: 'answer'; answer: IncomingMessage };

async function handshake(request: IncomingMessage, caller: Duplex, options: TunnelRequest): Promise<Shaken> {
  const { endpoint, path, dataToken, handshakeMs } = options;
  const { hostname, port } = new URL(endpoint.origin);
  const outgoing = httpRequest({
    ...(endpoint.socketPath === undefined
      ? { host: hostname.replace(/^\[|\]$/g, ''), port: port === '' ? 80 : Number(port) }
      : { socketPath: endpoint.socketPath }),
    method: 'GET',
    path,
    headers: {
      ...requestHeaders(request.headers, dataToken),
      connection: 'Upgrade',
      upgrade: 'websocket',
    },
    // A connection of its own: it will never serve another request.
    agent: false,
  });
  const gone = () => outgoing.destroy(new CallerGone());
  const timer = setTimeout(
    () => outgoing.destroy(gatewayTimeout('the machine that runs the sandbox did not answer in time')),
    handshakeMs,
  );
  caller.once('close', gone);
  try {
    return await new Promise<Shaken>((resolve, reject) => {
      outgoing.on('upgrade', (answer, socket, head) => resolve({ type: 'tunnel', socket, head, answer }));
      outgoing.on('response', (answer) => resolve({ type: 'answer', answer }));
      outgoing.on('error', reject);
      outgoing.end();
    });
  } catch (error) {
    throw error instanceof CallerGone ? error : upstreamError(error, 'the machine that runs the sandbox');
  } finally {
    clearTimeout(timer);
    caller.off('close', gone);
  }
}

function relayAnswer(answer: IncomingMessage, caller: Duplex): void {
  const status = answer.statusCode ?? 502;
  if (status === 401) {
    answer.destroy();
    refuseUpgrade(caller, badGateway('the machine that runs the sandbox refused the gateway'));
    return;
  }
  caller.write(renderHead(status, { ...responseHeaders(answer.headers), connection: 'close' }));
  // The body's end is the connection's end: its length or chunks need not be told.
  answer.on('error', () => caller.destroy());
  answer.pipe(caller);
}

/** Answers `{error}` on a connection that asked for an upgrade, and closes it. */
export function refuseUpgrade(caller: Duplex, error: ApiError): void {
  const body = JSON.stringify(error.body);
  const head = renderHead(error.status, {
    ...error.headers,
    'content-type': 'application/json; charset=utf-8',
    'content-length': Buffer.byteLength(body),
    connection: 'close',
  });
  caller.end(head + body);
}

/** The values come from Node's parser or from us: none holds a line break. */
function renderHead(status: number, headers: Record<string, unknown>): string {
  const lines = Object.entries(headers).flatMap(([name, value]) =>
    (Array.isArray(value) ? value : [value]).map((one) => `${name}: ${String(one)}`),
  );
  return `HTTP/1.1 ${status} ${STATUS_CODES[status] ?? ''}\r\n${lines.join('\r\n')}\r\n\r\n`;
}

/** Bytes both ways, each no faster than its reader. When one side closes, what it sent before is still delivered. */
async function join(caller: Duplex, socket: Duplex, idleMs: number): Promise<void> {
  const idle = setTimeout(() => {
    caller.destroy();
    socket.destroy();
  }, idleMs);
  const pass = async (from: Duplex, to: Duplex) => {
    from.on('data', () => idle.refresh());
    from.on('error', () => to.destroy());
    from.pipe(to);
    await once(from, 'close');
    if (!to.destroyed) to.end(() => to.destroy());
  };
  await Promise.allSettled([pass(caller, socket), pass(socket, caller)]);
  clearTimeout(idle);
}
