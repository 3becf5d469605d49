/** A gateway whose functions are served by a server of this machine; a script decides in place of the control plane. */
import { once } from 'node:events';
import { createServer } from 'node:http';
import type { AddressInfo } from 'node:net';
import { join } from 'node:path';
import {
  GATEWAY_PROTOCOL,
  GATEWAY_TICK_MS,
  type GatewayControlMessage,
  type GatewayFunction,
  GatewayMessage,
  newUuid,
} from '@releap/contract';
import { type Gateway, startGateway } from '@releap/gateway';
import { AddressStreams, registerPortStreams, startDataServer } from '@releap/runner/data';
import { quiet } from '@releap/testing/logging';
import { Check } from 'typebox/value';
import { WebSocketServer } from 'ws';

const TTL_MS = 3_600_000;

export interface LoneControl extends AsyncDisposable {
  /** Of the control plane, for a gateway. */
  url: string;
}

/**
 * A control plane that knows every function by name, with instances at `port` of 127.0.0.1.
 * @param folder for a socket
 */
export async function startLoneControl(
  folder: string,
  port: number,
  settings: Pick<GatewayFunction, 'scaledown_window_s' | 'max_concurrency' | 'max_instances'>,
): Promise<LoneControl> {
  await using stack = new AsyncDisposableStack();
  const addresses = new AddressStreams(undefined);
  const find = () => ({
    address: '127.0.0.1',
    guest: () => Promise.reject(new Error('there is no guest')),
  });
  const data = await startDataServer({
    socketPath: join(folder, 'data.sock'),
    verify: () => Promise.resolve(true),
    register: (app) => {
      registerPortStreams(app, find);
      addresses.register(app, find);
    },
    log: quiet,
  });
  stack.defer(() => data.close());
  const functions = new Map<string, GatewayFunction>();
  const called = (name: string): GatewayFunction => {
    const known = functions.get(name) ?? {
      id: newUuid(),
      project_id: newUuid(),
      name,
      version_id: newUuid(),
      version: 1,
      port,
      timeout_s: 300,
      revision: 1,
      ...settings,
    };
    functions.set(name, known);
    return known;
  };
  const decide = (message: GatewayMessage): GatewayControlMessage | undefined => {
    if (message.type === 'hello') return { type: 'welcome', protocol: GATEWAY_PROTOCOL };
    if (message.type !== 'resolve') return undefined;
    const { id, target } = message;
    if (target.kind === 'function')
      return { type: 'function', id, function: called(String(target.function)), ttl_ms: TTL_MS };
    const vm = target.instance ?? newUuid();
    return { type: 'grant', id, vm_id: vm, data_url: data.url, data_token: 'any', ttl_ms: TTL_MS };
  };
  // Records of invocations are taken, and not kept.
  const control = createServer((request, response) => {
    request.resume().on('end', () => response.writeHead(204).end());
  });
  const sockets = new WebSocketServer({ server: control });
  sockets.on('connection', (socket) => {
    const ticker = setInterval(() => socket.send('{"type":"tick"}'), GATEWAY_TICK_MS);
    socket.on('close', () => clearInterval(ticker));
    socket.on('message', (text) => {
      const message: unknown = JSON.parse((text as Buffer).toString('utf8'));
      const answer = Check(GatewayMessage, message) ? decide(message) : undefined;
      if (answer !== undefined) socket.send(JSON.stringify(answer));
    });
  });
  control.listen(0, '127.0.0.1');
  await once(control, 'listening');
  stack.defer(() => {
    for (const socket of sockets.clients) socket.terminate();
    control.close();
    control.closeAllConnections();
  });
  const owned = stack.move();
  return {
    url: `http://127.0.0.1:${(control.address() as AddressInfo).port}`,
    [Symbol.asyncDispose]: () => owned.disposeAsync(),
  };
}

/** In this process. @param control base URL of the control plane */
export function startGatewayOf(control: string): Promise<Gateway> {
  return startGateway({
    listen: { host: '127.0.0.1', port: 0 },
    controlUrl: control,
    credential: () => Promise.resolve('any'),
    log: quiet,
    limits: { graceMs: 100 },
  });
}

/** @param folder for a socket; @param port where the handler listens, on 127.0.0.1 */
export async function startLoneGateway(
  folder: string,
  port: number,
  concurrency: number,
): Promise<AsyncDisposable & { url: string }> {
  await using stack = new AsyncDisposableStack();
  const control = stack.use(
    await startLoneControl(folder, port, {
      scaledown_window_s: 3_600,
      max_concurrency: concurrency,
      max_instances: 1,
    }),
  );
  const gateway = await startGatewayOf(control.url);
  stack.defer(() => gateway.close());
  const owned = stack.move();
  return {
    url: `http://127.0.0.1:${gateway.port}`,
    [Symbol.asyncDispose]: () => owned.disposeAsync(),
  };
}
