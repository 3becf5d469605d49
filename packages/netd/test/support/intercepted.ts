/** An interceptor in this process, and clients whose connections are handed over to it as netd would. */
import { once } from 'node:events';
import {
  createServer as createHttpServer,
  request as httpRequest,
  type IncomingHttpHeaders,
  type IncomingMessage,
  type ServerResponse,
} from 'node:http';
import {
  connect as connectHttp2,
  createSecureServer,
  type ClientHttp2Session,
  type IncomingHttpHeaders as Http2Headers,
  type ServerHttp2Stream,
} from 'node:http2';
import { createServer as createHttpsServer, request as httpsRequest } from 'node:https';
import { connect, createServer, type AddressInfo, type Socket } from 'node:net';
import { connect as tlsConnect, createSecureContext } from 'node:tls';
import type { Handover, InterceptSecret } from '@releap/contract/netd';
import type { Duplex } from 'node:stream';
import { Authority } from '../../src/intercept/authority.ts';
import { handoverLine, readHandover } from '../../src/intercept/handover.ts';
import { Proxy } from '../../src/intercept/proxy.ts';
import { testAuthority } from '@releap/testing/certificates';

export const VM = 'vm-of-the-test';
export const HOST = 'api.example.com';

/** What the server outside received, as bytes (latin1). */
export interface Received {
  method: string;
  url: string;
  rawHeaders: string[];
  headers: IncomingHttpHeaders;
  body: string;
}

export interface Answer {
  status: number;
  headers: IncomingHttpHeaders;
  body: string;
}

export interface Call {
  method?: string;
  path?: string;
  headers?: Record<string, string> | string[];
  /** Sent in these pieces, chunked unless the headers have a length. */
  body?: (string | Buffer)[];
  tls?: boolean;
  host?: string;
}

export async function startInterceptor() {
  const guests = await testAuthority('guests');
  const next = await testAuthority('the next root');
  const servers = await testAuthority('servers');
  const authority = new Authority();
  const request = await authority.request();
  authority.accept(request, await guests.signIntermediate(request));
  const trusted = createSecureContext({ ca: servers.certificate });
  const logged: string[] = [];
  const log = (facts: object, message: string): void =>
    void logged.push(JSON.stringify({ ...facts, message }));
  const proxy = new Proxy({
    authority,
    trusted: () => trusted,
    log: { error: log, warn: log, info: log },
  });
  const acceptor = createServer({ allowHalfOpen: true }, (socket) =>
    readHandover(socket, (connection) => void proxy.accept(socket, connection)),
  );
  acceptor.listen(0, '127.0.0.1');
  await once(acceptor, 'listening');

  const received: Received[] = [];
  const state = {
    /** The response, as the server writes it. */
    answer: { status: 200, headers: {} as Record<string, string>, body: ['ok'] as (string | Buffer)[] },
    connections: 0,
    /** What the server of HTTP/2 does with a request. */
    onStream: (stream: ServerHttp2Stream, _headers: Http2Headers): void => {
      stream.respond({ ':status': 200 }, { endStream: true });
    },
  };
  const listeners = {
    async onRequest(incoming: IncomingMessage, response: ServerResponse): Promise<void> {
      const chunks: Buffer[] = [];
      for await (const chunk of incoming) chunks.push(chunk as Buffer);
      received.push({
        method: incoming.method ?? '',
        url: incoming.url ?? '',
        rawHeaders: incoming.rawHeaders,
        headers: incoming.headers,
        body: Buffer.concat(chunks).toString('latin1'),
      });
      response.writeHead(state.answer.status, state.answer.headers);
      for (const part of state.answer.body) {
        response.write(part);
        // Each in a packet and a chunk of its own.
        await new Promise((resolve) => setImmediate(resolve));
      }
      response.end();
    },
  };
  const onRequest = (incoming: IncomingMessage, response: ServerResponse): void =>
    void listeners.onRequest(incoming, response);
  const secure = createHttpsServer(await servers.issue(HOST, 'www.example.com'), onRequest);
  const plain = createHttpServer(onRequest);
  for (const server of [secure, plain]) {
    server.on('connection', () => void state.connections++);
    server.on('upgrade', (request, socket) => {
      const { method = '', url = '', rawHeaders, headers } = request;
      received.push({ method, url, rawHeaders, headers, body: '' });
      const echo = String(headers['x-key']);
      socket.write(
        `HTTP/1.1 101 Switching\r\nX-Echo: ${echo}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n`,
      );
      socket.pipe(socket);
    });
    server.listen(0, '127.0.0.1');
    await once(server, 'listening');
  }
  const modern = createSecureServer(await servers.issue(HOST));
  modern.on('stream', (stream, headers) => {
    stream.on('error', () => undefined);
    state.onStream(stream, headers);
  });
  modern.on('session', () => void state.connections++);
  modern.listen(0, '127.0.0.1');
  await once(modern, 'listening');
  const portOf = (tls: boolean): number => ((tls ? secure : plain).address() as AddressInfo).port;

  /** A connection as the guest has it: through TLS to what looks like the host, or plain. */
  async function open(
    tls: boolean,
    host = HOST,
    over: Partial<Handover> = {},
    protocols = ['h2', 'http/1.1'],
  ): Promise<Duplex> {
    const { port } = acceptor.address() as AddressInfo;
    const socket: Socket = connect(port, '127.0.0.1');
    socket.on('error', () => undefined);
    const connection = { vm_id: VM, host, tls, address: '127.0.0.1', port: portOf(tls), ...over };
    socket.write(handoverLine(connection));
    if (!tls) return socket;
    const client = tlsConnect({
      socket,
      servername: host,
      ca: [guests.certificate, next.certificate],
      ALPNProtocols: protocols,
    });
    await once(client, 'secureConnect');
    return client;
  }

  return {
    proxy,
    /** Connects to the server of HTTP/2. */
    async openHttp2(): Promise<ClientHttp2Session> {
      const { port } = modern.address() as AddressInfo;
      const socket = await open(true, HOST, { port });
      const session = connectHttp2(`https://${HOST}`, { createConnection: () => socket });
      session.on('error', () => undefined);
      return session;
    },
    received,
    logged,
    state,
    open,
    /** Gives the interceptor another intermediate, of another root, which guests trust too. */
    async renewIntermediate(): Promise<void> {
      const again = await authority.request();
      authority.accept(again, await next.signIntermediate(again));
    },
    put: (...secrets: InterceptSecret[]): void => proxy.put(VM, secrets),
    async call({
      method = 'GET',
      path = '/',
      headers = {},
      body = [],
      tls = true,
      host = HOST,
    }: Call): Promise<Answer> {
      const socket = await open(tls, host);
      const sent = (tls ? httpsRequest : httpRequest)({
        method,
        path,
        headers: Array.isArray(headers) ? headers : { host, ...headers },
        createConnection: () => socket,
      });
      for (const part of body) {
        sent.write(part);
        await new Promise((resolve) => setImmediate(resolve));
      }
      sent.end();
      const [response] = (await once(sent, 'response')) as [IncomingMessage];
      const chunks: Buffer[] = [];
      for await (const chunk of response) chunks.push(chunk as Buffer);
      socket.destroy();
      const { statusCode = 0, headers: answered } = response;
      return { status: statusCode, headers: answered, body: Buffer.concat(chunks).toString('latin1') };
    },
    /** Sends bytes, and resolves with all that comes back until the end. */
    async raw(bytes: string, tls = true): Promise<string> {
      const socket = await open(tls);
      socket.write(bytes, 'latin1');
      const chunks: Buffer[] = [];
      socket.on('data', (chunk: Buffer) => chunks.push(chunk));
      await once(socket, 'close');
      return Buffer.concat(chunks).toString('latin1');
    },
    async [Symbol.asyncDispose](): Promise<void> {
      proxy.close();
      for (const server of [secure, plain]) {
        server.closeAllConnections();
        server.close();
      }
      modern.close();
      acceptor.close();
    },
  };
}
export type Interceptor = Awaited<ReturnType<typeof startInterceptor>>;
