/** A gateway with an engine; started before the tests of the file that imports it. */
import assert from 'node:assert/strict';
import { once } from 'node:events';
import http, { type IncomingMessage } from 'node:http';
import { Readable } from 'node:stream';
import { buffer } from 'node:stream/consumers';
import { after, before, beforeEach } from 'node:test';
import type { Gateway } from '@releap/gateway';
import { eventually } from '@releap/testing/eventually';
import { WebSocket } from 'ws';
import { PreviewWorld, token } from './preview-world.ts';

export const ENGINE = 'engine';
export let world: PreviewWorld;
export let gateway: Gateway;
/** By name: the gateway's own listener, and the engine's. */
export let ports: Record<'gateway' | 'engine', number>;

before(async () => {
  world = await PreviewWorld.start();
  world.reset();
  gateway = await world.gateway(ENGINE);
  assert.equal(gateway.previews?.isEngine, true);
  ports = { gateway: gateway.port, engine: gateway.previews.port };
});
after(() => world[Symbol.asyncDispose]());
beforeEach(() => world.reset());

interface Answer {
  status: number;
  headers: http.IncomingHttpHeaders;
  body: Buffer;
}

export type Options = Omit<http.RequestOptions, 'headers'> & {
  headers?: http.OutgoingHttpHeaders;
  body?: Buffer | Readable;
};

export async function call(at: number, host: string, { body, ...options }: Options = {}): Promise<Answer> {
  const request = http.request({
    host: '127.0.0.1',
    port: at,
    agent: false,
    ...options,
    headers: { host, ...options.headers },
  });
  const answered = once(request, 'response') as Promise<[IncomingMessage]>;
  if (body instanceof Readable) body.pipe(request);
  else request.end(body);
  const [answer] = await answered;
  return { status: answer.statusCode ?? 0, headers: answer.headers, body: await buffer(answer) };
}

export const withToken = { 'x-service-preview-token': token };

/** Resolves when requests of this credential go straight to the server. */
export async function route(host: string, options: Options = {}): Promise<void> {
  await eventually(`a route for ${host}`, async () => {
    const earlier = await world.routed(ENGINE);
    assert.equal((await call(ports.engine, host, options)).status, 200);
    return (await world.routed(ENGINE)) > earlier;
  });
}

/** A request that goes straight to the server: on a busy machine a route may be unconfirmed for a while. `seen` has it alone. */
export async function callRouted(host: string, options: Options): Promise<Answer> {
  return await eventually('a routed request', async () => {
    const earlier = await world.routed(ENGINE);
    world.seen = [];
    const answer = await call(ports.engine, host, options);
    return (await world.routed(ENGINE)) > earlier && answer;
  });
}

/** The same, of a WebSocket. */
export async function openRouted(
  host: string,
  headers: Record<string, string>,
  path = '/',
): Promise<WebSocket> {
  return await eventually('a routed WebSocket', async () => {
    const earlier = await world.routed(ENGINE);
    const socket = new WebSocket(`ws://127.0.0.1:${ports.engine}${path}`, { headers: { host, ...headers } });
    await once(socket, 'open');
    if ((await world.routed(ENGINE)) > earlier) return socket;
    socket.terminate();
    return undefined;
  });
}
