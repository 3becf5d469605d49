/** The control plane's end of the gateway link, scripted by the test. Checks what the gateway sends. */
import { once } from 'node:events';
import http from 'node:http';
import type { AddressInfo } from 'node:net';
import {
  GATEWAY_LINK_PATH,
  GATEWAY_PROTOCOL,
  GATEWAY_TICK_MS,
  GatewayMessage,
  INVOCATIONS_PATH,
  RecordInvocationsRequest,
  type ServedInvocation,
  type GatewayControlMessage,
  type GatewayFunction,
} from '@releap/contract';
import { json } from 'node:stream/consumers';
import { Check } from 'typebox/value';
import { WebSocketServer, type WebSocket } from 'ws';

export type Question = Extract<GatewayMessage, { type: 'resolve' }>;
export type Decision =
  | { vm_id: string; data_url: string; ttl_ms?: number; public?: boolean }
  | { function: GatewayFunction; ttl_ms?: number }
  | Omit<Extract<GatewayControlMessage, { type: 'refusal' }>, 'type' | 'id'>;

export interface FakeControl extends AsyncDisposable {
  url: string;
  /** All questions since the last reset. */
  asked: Question[];
  released: number[];
  /** Grants that the gateway has reported as used. */
  active: number[];
  /** Instances whose handlers listen, as the gateway has said. */
  listening: string[];
  /** Of these, the ones that no gateway is to lease again. */
  discarded: number[];
  /** Invocations that the gateway has reported. */
  recorded: ServedInvocation[];
  /** Status of the response to such a report. */
  onRecords: (rows: ServedInvocation[]) => number;
  decide: (question: Question) => Decision | Promise<Decision>;
  /** On every connection. */
  push(message: GatewayControlMessage): void;
  /** While false the connections stay open and nothing is sent on them. */
  talking: boolean;
  /** Breaks all connections; gateways connect again. */
  disconnect(): void;
}

/** @param credential what gateways must show */
export async function startFakeControl(credential: string, dataToken: string): Promise<FakeControl> {
  const server = http.createServer((request, response) => {
    if (request.url !== INVOCATIONS_PATH || request.headers.authorization !== `Bearer ${credential}`) {
      response.writeHead(404).end();
      return;
    }
    void json(request).then((body) => {
      if (!Check(RecordInvocationsRequest, body)) throw new Error(`not invocations: ${JSON.stringify(body)}`);
      const status = control.onRecords(body.invocations);
      if (status === 204) control.recorded.push(...body.invocations);
      response.writeHead(status).end();
    });
  });
  const sockets = new WebSocketServer({ noServer: true });
  const open = new Set<WebSocket>();
  const send = (socket: WebSocket, message: GatewayControlMessage): void => {
    if (control.talking && socket.readyState === socket.OPEN) socket.send(JSON.stringify(message));
  };
  const answer = async (socket: WebSocket, question: Question): Promise<void> => {
    const decision = await control.decide(question);
    const { id } = question;
    if ('error' in decision) send(socket, { type: 'refusal', id, ...decision });
    else if ('function' in decision) send(socket, { type: 'function', id, ttl_ms: 60_000, ...decision });
    else send(socket, { type: 'grant', id, ttl_ms: 60_000, data_token: dataToken, ...decision });
  };
  server.on('upgrade', (request, socket, head) => {
    if (request.url !== GATEWAY_LINK_PATH || request.headers.authorization !== `Bearer ${credential}`) {
      socket.end('HTTP/1.1 401 Unauthorized\r\nconnection: close\r\n\r\n');
      return;
    }
    sockets.handleUpgrade(request, socket, head, (webSocket) => {
      open.add(webSocket);
      webSocket.on('close', () => open.delete(webSocket));
      webSocket.on('message', (data) => {
        const text = (data as Buffer).toString('utf8');
        const message: unknown = JSON.parse(text);
        if (!Check(GatewayMessage, message)) throw new Error(`not a gateway message: ${text}`);
        if (message.type === 'hello') send(webSocket, { type: 'welcome', protocol: GATEWAY_PROTOCOL });
        if (message.type === 'release') {
          control.released.push(...message.ids);
          if (message.discard === true) control.discarded.push(...message.ids);
        }
        if (message.type === 'listening') control.listening.push(...message.instances.map(({ id }) => id));
        if (message.type === 'active') control.active.push(...message.ids);
        if (message.type !== 'resolve') return;
        control.asked.push(message);
        void answer(webSocket, message);
      });
    });
  });
  const ticker = setInterval(() => {
    for (const socket of open) send(socket, { type: 'tick' });
  }, GATEWAY_TICK_MS);
  server.listen(0, '127.0.0.1');
  await once(server, 'listening');
  const control: FakeControl = {
    url: `http://127.0.0.1:${(server.address() as AddressInfo).port}`,
    asked: [],
    released: [],
    active: [],
    listening: [],
    discarded: [],
    recorded: [],
    onRecords: () => 204,
    talking: true,
    decide: () => ({ status: 404, error: 'nothing was decided' }),
    push(message) {
      for (const socket of open) send(socket, message);
    },
    disconnect() {
      for (const socket of open) socket.terminate();
    },
    async [Symbol.asyncDispose]() {
      clearInterval(ticker);
      for (const socket of open) socket.terminate();
      server.close();
      server.closeAllConnections();
      await once(server, 'close');
    },
  };
  return control;
}
