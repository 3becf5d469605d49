/**
 * A server between the command line and a real service. It passes requests on and notes them. Some it answers itself,
 * with what the service cannot be made to show: an overload that ends after so many tries, a proxy's page, a service of
 * another version, a failing dependency.
 */
import { once } from 'node:events';
import { createServer, type IncomingMessage, request as ask, type ServerResponse } from 'node:http';
import type { AddressInfo } from 'node:net';
import type { Caller } from '@releap/testing/callers';
import type { Target } from './rlp.ts';

export type Handler = (request: IncomingMessage, response: ServerResponse) => unknown;

export interface Relay extends AsyncDisposable {
  url: string;
  /** `METHOD /path` of everything that was asked. */
  calls: string[];
  /** The requests themselves, with their headers. */
  requests: IncomingMessage[];
  /** The last body that was passed on, by `METHOD /path`. */
  bodies: Map<string, string>;
  /** Answers in place of the service, by `METHOD /path`; one that returns false passes the request on. */
  answers: Map<string, Handler>;
  /** The most items that lists come in pages of. */
  pageSize: number | undefined;
}

/** @param services what requests are passed on to: the one whose path prefix fits first */
export async function startRelay(...services: { prefix?: string; url: string }[]): Promise<Relay> {
  const server = createServer((request, response) => {
    const url = new URL(request.url ?? '/', relay.url);
    const call = `${request.method} ${url.pathname}`;
    relay.calls.push(call);
    relay.requests.push(request);
    const answer = relay.answers.get(call);
    const handle = async (): Promise<void> => {
      if (answer !== undefined && (await answer(request, response)) !== false) return;
      const service = services.find(({ prefix = '/' }) => url.pathname.startsWith(prefix));
      if (service === undefined) return sendJson(response, 404, { error: `no such path ${url.pathname}` });
      const limit = Number(url.searchParams.get('limit'));
      if (relay.pageSize !== undefined && limit > relay.pageSize)
        url.searchParams.set('limit', String(relay.pageSize));
      const body: Buffer[] = [];
      request.on('data', (chunk: Buffer) => {
        body.push(chunk);
        relay.bodies.set(call, Buffer.concat(body).toString('utf8'));
      });
      pass(request, response, new URL(url.pathname + url.search, service.url));
    };
    handle().catch(() => response.destroy());
  });
  // It has no web sockets: as behind a proxy that knows none.
  server.on('upgrade', (request, socket) => {
    relay.calls.push(`UPGRADE ${request.url}`);
    const page = '<html>no such page</html>';
    socket.end(
      `HTTP/1.1 404 Not Found\r\ncontent-length: ${page.length}\r\nconnection: close\r\n\r\n${page}`,
    );
  });
  server.listen(0, '127.0.0.1');
  await once(server, 'listening');
  const relay: Relay = {
    url: `http://127.0.0.1:${(server.address() as AddressInfo).port}`,
    calls: [],
    requests: [],
    bodies: new Map(),
    answers: new Map(),
    pageSize: undefined,
    [Symbol.asyncDispose]: async () => {
      server.closeAllConnections();
      server.close();
      await once(server, 'close');
    },
  };
  return relay;
}

/** Before the control plane and before the gateway of its region, which has no web sockets then. */
export async function startToolboxRelay(project: Target & { call: Caller }): Promise<Relay> {
  const [region] = (await project.call('GET', '/regions')).body;
  const relay = await startRelay(
    { prefix: '/toolbox/', url: String(region.toolbox_proxy_url) },
    { url: project.url },
  );
  relay.answers.set('GET /regions', (_request, response) =>
    sendJson(response, 200, [{ ...region, toolbox_proxy_url: `${relay.url}/toolbox` }]),
  );
  return relay;
}

function pass(request: IncomingMessage, response: ServerResponse, to: URL): void {
  const { host: _host, ...headers } = request.headers;
  const onward = ask(to, { method: request.method, headers }, (answer) => {
    response.writeHead(answer.statusCode ?? 502, answer.headers);
    answer.pipe(response);
  });
  onward.on('error', () => response.destroy());
  response.on('close', () => onward.destroy());
  request.pipe(onward);
}

export function sendJson(response: ServerResponse, status: number, body: unknown): void {
  response.writeHead(status, { 'content-type': 'application/json' }).end(JSON.stringify(body));
}
