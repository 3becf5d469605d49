import { once } from 'node:events';
import { type IncomingMessage, request as httpRequest, type RequestOptions, STATUS_CODES } from 'node:http';
import type { Duplex } from 'node:stream';
import type { Socket } from 'node:net';
import { badGateway, errorBody, gatewayTimeout, REQUEST_ID_HEADER, type ApiError } from '@releap/contract';
import { ClientDisconnected, upstreamError } from './errors.ts';
import type { HeaderPolicy } from './headers.ts';

export interface TunnelRequest {
  /** A dedicated connection: it never serves another request. @throws ApiError */
  connect: () => Promise<Required<Pick<RequestOptions, 'createConnection'>>>;
  /** The upstream, in errors. */
  server: string;
  /** Whether it is the runner: its 401 is not for the client. */
  isRunner: boolean;
  /** Called when the tunnel is open. */
  onOpen?: () => void;
  path: string;
  /** Token for the runner's data server. */
  dataToken: string;
  headers: HeaderPolicy;
  requestId: string;
  /** Aborted when the tunnel must end because its credential was revoked. */
  revoked: AbortSignal;
  handshakeMs: number;
  /** Milliseconds without a byte in either direction after which a tunnel is closed. */
  idleMs: number;
}

/** Whether `tunnel` supports the upgrade. Others are ignored, as RFC 9110 allows. */
export function wantsWebSocket(request: IncomingMessage): boolean {
  return request.method === 'GET' && request.headers.upgrade?.toLowerCase() === 'websocket';
}

/**
 * Forwards a WebSocket handshake and then every byte both ways. Resolves when the tunnel has ended.
 * @throws ApiError the error for the client, until a response was sent
 */
export async function tunnel(
  request: IncomingMessage,
  client: Duplex,
  head: Buffer,
  options: TunnelRequest,
): Promise<void> {
  const { headers, requestId, revoked, idleMs } = options;
  const result = await handshake(request, client, options);
  if (result.type === 'answer') {
    relayAnswer(result.answer, client, options);
    return;
  }
  const { socket, answer } = result;
  options.onOpen?.();
  client.write(
    renderHead(101, {
      ...headers.response(answer.headersDistinct, requestId),
      connection: 'Upgrade',
      upgrade: 'websocket',
    }),
  );
  if (result.head.length > 0) client.write(result.head);
  if (head.length > 0) socket.write(head);
  await pipeBothWays(client, socket, idleMs, revoked);
}

type HandshakeResult =
  | { type: 'tunnel'; socket: Socket; head: Buffer; answer: IncomingMessage }
  /** The runner refused the upgrade with an HTTP response. */
  | { type: 'answer'; answer: IncomingMessage };

async function handshake(
  request: IncomingMessage,
  client: Duplex,
  options: TunnelRequest,
): Promise<HandshakeResult> {
  const { path, headers, requestId, dataToken, handshakeMs, server } = options;
  const outgoing = httpRequest({
    ...(await options.connect()),
    method: 'GET',
    path,
    headers: {
      ...headers.request(request.headers, dataToken, requestId),
      connection: 'Upgrade',
      upgrade: 'websocket',
    },
  });
  const abort = () => outgoing.destroy(new ClientDisconnected());
  const timer = setTimeout(
    () => outgoing.destroy(gatewayTimeout(`${server} did not answer in time`)),
    handshakeMs,
  );
  client.once('close', abort);
  try {
    return await new Promise<HandshakeResult>((resolve, reject) => {
      outgoing.on('upgrade', (answer, socket, head) => resolve({ type: 'tunnel', socket, head, answer }));
      outgoing.on('response', (answer) => resolve({ type: 'answer', answer }));
      outgoing.on('error', reject);
      outgoing.end();
    });
  } catch (error) {
    throw error instanceof ClientDisconnected ? error : upstreamError(error, server);
  } finally {
    clearTimeout(timer);
    client.off('close', abort);
  }
}

function relayAnswer(
  answer: IncomingMessage,
  client: Duplex,
  { headers, requestId, isRunner, server }: TunnelRequest,
): void {
  const status = answer.statusCode ?? 502;
  if (status === 401 && isRunner) {
    answer.destroy();
    refuseUpgrade(client, badGateway(`${server} refused the gateway`), requestId);
    return;
  }
  client.write(
    renderHead(status, { ...headers.response(answer.headersDistinct, requestId), connection: 'close' }),
  );
  // The end of the connection ends the body: no length or chunks are needed.
  answer.on('error', () => client.destroy());
  closeWhenSent(client);
  answer.pipe(client);
}

/** The HTTP server no longer watches this connection: a client that never closes its end would keep it for good. */
function closeWhenSent(client: Duplex): void {
  client.once('finish', () => client.destroy());
}

/** Responds with the body of the error on a connection that requested an upgrade, and closes it. */
export function refuseUpgrade(client: Duplex, error: ApiError, requestId: string): void {
  const body = JSON.stringify(errorBody(error, requestId));
  const head = renderHead(error.status, {
    ...error.headers,
    [REQUEST_ID_HEADER]: requestId,
    'content-type': 'application/json; charset=utf-8',
    'content-length': Buffer.byteLength(body),
    connection: 'close',
  });
  closeWhenSent(client);
  client.end(head + body);
}

/** The values come from Node's parser or this process: none has a line break. */
function renderHead(status: number, headers: Record<string, unknown>): string {
  const lines = Object.entries(headers).flatMap(([name, value]) =>
    (Array.isArray(value) ? value : [value]).map((one) => `${name}: ${String(one)}`),
  );
  return `HTTP/1.1 ${status} ${STATUS_CODES[status] ?? ''}\r\n${lines.join('\r\n')}\r\n\r\n`;
}

/** Copies bytes both ways with back-pressure. When one side closes, what it sent before is still delivered. */
async function pipeBothWays(
  client: Duplex,
  socket: Duplex,
  idleMs: number,
  revoked: AbortSignal,
): Promise<void> {
  const end = (): void => {
    client.destroy();
    socket.destroy();
  };
  const idle = setTimeout(end, idleMs);
  revoked.addEventListener('abort', end);
  if (revoked.aborted) end();
  const pass = async (from: Duplex, to: Duplex) => {
    from.on('data', () => idle.refresh());
    from.on('error', () => to.destroy());
    from.pipe(to);
    await once(from, 'close');
    if (!to.destroyed) to.end(() => to.destroy());
  };
  await Promise.allSettled([pass(client, socket), pass(socket, client)]);
  clearTimeout(idle);
  revoked.removeEventListener('abort', end);
}
