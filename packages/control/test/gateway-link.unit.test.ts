/** What the control plane keeps of the grants of one gateway. */
import assert from 'node:assert/strict';
import { EventEmitter } from 'node:events';
import { test } from 'node:test';
import type { GatewayControlMessage } from '@releap/contract';
import { until } from '@releap/testing/eventually';
import pino from 'pino';
import type { WebSocket } from 'ws';
import { GrantIndex } from '../src/edge/gateways/grant-index.ts';
import { GatewayLink } from '../src/edge/gateways/gateway-link.ts';
import type { TargetResolver } from '../src/edge/gateways/target-resolver.ts';

class Socket extends EventEmitter {
  readonly OPEN = 1;
  readyState = 1;
  bufferedAmount = 0;
  readonly sent: GatewayControlMessage[] = [];
  send(text: string): void {
    this.sent.push(JSON.parse(text) as GatewayControlMessage);
  }
  close(): void {
    this.emit('close');
  }
  readonly pause = (): void => undefined;
  readonly resume = (): void => undefined;
  readonly terminate = (): void => undefined;
}

const toolbox: TargetResolver = {
  kind: 'toolbox',
  subject: ({ sandbox = '' }) => sandbox,
  resolve: ({ sandbox = '' }) =>
    Promise.resolve({
      sandboxId: sandbox,
      runnerId: 'r',
      dataUrl: 'http://127.0.0.1:1',
      credential: { type: 'sandbox', projectId: 'p' },
    }),
};

function startLink(grantsMax?: number) {
  const socket = new Socket();
  const grants = new GrantIndex();
  const link = new GatewayLink(socket as unknown as WebSocket, {
    resolvers: new Map([['toolbox', toolbox]]),
    grants,
    dataToken: () => Promise.resolve({ token: 't', ttlMs: 60_000 }),
    onActive: () => undefined,
    onListening: () => undefined,
    onDial: () => undefined,
    ...(grantsMax !== undefined && { grantsMax }),
    log: pino({ level: 'silent' }),
  });
  const receive = (message: object): void =>
    void socket.emit('message', Buffer.from(JSON.stringify(message)), false);
  const ask = async (from: number, to: number): Promise<void> => {
    for (let id = from; id <= to; id++)
      receive({ type: 'resolve', id, target: { kind: 'toolbox', sandbox: `s${id}` }, token: 'x' });
    await until(() => socket.sent.findLast((message) => message.type === 'grant')?.id === to);
  };
  const revoked = () => socket.sent.flatMap((message) => (message.type === 'revoke' ? [message] : []));
  return { grants, receive, ask, revoked, [Symbol.dispose]: () => link.close(1000, '') };
}

test('10,000 sandboxes that were used and changed leave no grant once the gateway has released them', async () => {
  using started = startLink();
  const { grants, receive, ask, revoked } = started;
  await ask(1, 10_000);
  assert.equal(grants.size, 10_000);
  for (let id = 1; id <= 10_000; id++) grants.changed([`s${id}`]);
  const ids = revoked().flatMap((message) => message.ids);
  assert.equal(ids.length, 10_000);
  assert.ok(revoked().every(({ disconnect }) => !disconnect));
  for (let from = 0; from < ids.length; from += 100)
    receive({ type: 'release', ids: ids.slice(from, from + 100) });
  assert.equal(grants.size, 0);
});

test('a gateway that releases nothing loses grants that have changed first, and connections of others stay', async () => {
  const max = 1_000;
  using started = startLink(max);
  const { grants, ask, revoked } = started;
  await ask(1, max);
  // The oldest one is a terminal that has been open all the time.
  for (let id = 2; id <= max; id++) grants.changed([`s${id}`]);
  await ask(max + 1, max + 2);
  assert.ok(grants.size <= max);
  const cut = revoked()
    .filter(({ disconnect }) => disconnect)
    .flatMap(({ ids }) => ids);
  assert.ok(cut.length > 0);
  assert.ok(!cut.includes(1));
});
