/** A gateway that calls no handlers: it answers invocations as the test says. */
import { createServer, type IncomingHttpHeaders, type Server, type ServerResponse } from 'node:http';
import type { AddressInfo } from 'node:net';
import { buffer } from 'node:stream/consumers';

export interface GatewayCall {
  /** Of the invocation. */
  id: string;
  /** Of the function. */
  name: string;
  headers: IncomingHttpHeaders;
  body: Buffer;
  response: ServerResponse;
}

export interface ScriptedGateway extends AsyncDisposable {
  /** As a region's `toolbox_proxy_url`. */
  readonly toolboxUrl: string;
  readonly url: string;
  readonly calls: GatewayCall[];
  /** Answers a call; by default its handler returns `null`. */
  answer: (call: GatewayCall) => void | Promise<void>;
  /** Stops listening, and breaks all connections. */
  stop(): Promise<void>;
  /** Listens again at the same port. */
  start(): Promise<void>;
  callsOf(id: string): GatewayCall[];
}

/** The handler's response, with the headers of a gateway. */
export function handled(
  { response }: GatewayCall,
  body: string | Buffer = 'null',
  { status = 200, cold = false, version = 1, durationMs = 5 } = {},
): void {
  response.writeHead(200, {
    'x-rlp-fn-status': status,
    'x-rlp-cold': cold ? '1' : '0',
    'x-rlp-fn-version': version,
    'x-rlp-duration-ms': durationMs,
  });
  response.end(body);
}

/** The gateway's own response. */
export function refused(
  { id, response }: GatewayCall,
  status: number,
  error: string,
  headers: Record<string, string> = {},
): void {
  response.writeHead(status, {
    'content-type': 'application/json',
    'x-rlp-invocation-id': id,
    ...headers,
  });
  response.end(JSON.stringify({ error }));
}

export async function startScriptedGateway(): Promise<ScriptedGateway> {
  let server: Server;
  let port = 0;
  const gateway: ScriptedGateway = {
    get url() {
      return `http://127.0.0.1:${port}`;
    },
    get toolboxUrl() {
      return `http://127.0.0.1:${port}/toolbox`;
    },
    calls: [],
    answer: (call) => handled(call),
    async start() {
      server = createServer((request, response) => {
        void buffer(request).then(
          async (body) => {
            const name = /^\/fns\/([^/]+)\/invoke$/.exec(request.url ?? '')?.[1] ?? '';
            const id = String(request.headers['x-rlp-invocation-id']);
            const call = { id, name, headers: request.headers, body, response };
            gateway.calls.push(call);
            await gateway.answer(call);
          },
          // The client has gone.
          () => undefined,
        );
      });
      await new Promise<void>((resolve) => server.listen(port, '127.0.0.1', resolve));
      port = (server.address() as AddressInfo).port;
    },
    async stop() {
      const closed = new Promise((resolve) => server.close(resolve));
      server.closeAllConnections();
      await closed;
    },
    callsOf: (id) => gateway.calls.filter((call) => call.id === id),
    [Symbol.asyncDispose]: () => gateway.stop(),
  };
  await gateway.start();
  return gateway;
}
