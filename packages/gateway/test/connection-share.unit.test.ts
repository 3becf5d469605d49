/** How the connections of a gateway are shared by addresses. */
import assert from 'node:assert/strict';
import { EventEmitter } from 'node:events';
import type { Server } from 'node:http';
import { test } from 'node:test';
import { shareConnections } from '../src/http/connection-share.ts';
import { TrustedProxies } from '../src/http/trusted-proxies.ts';

class FakeSocket extends EventEmitter {
  destroyed = false;
  readonly remoteAddress: string;
  constructor(remoteAddress: string) {
    super();
    this.remoteAddress = remoteAddress;
  }
  destroy(): void {
    this.destroyed = true;
    this.emit('close');
  }
}

test('an address that opens as many as it can leaves connections to others; trusted proxies are not counted', () => {
  const server = new EventEmitter() as unknown as Server;
  shareConnections(server, 8, new TrustedProxies(['192.0.2.7']));
  const open = (address: string, count: number): FakeSocket[] => {
    const sockets = Array.from({ length: count }, () => new FakeSocket(address));
    for (const socket of sockets) server.emit('connection', socket as never);
    return sockets.filter(({ destroyed }) => !destroyed);
  };
  assert.equal(server.maxConnections, 8);
  const flood = open('203.0.113.1', 100);
  assert.equal(flood.length, 4);
  assert.equal(open('::ffff:203.0.113.1', 1).length, 0, 'the same address in another form');
  assert.equal(open('2001:db8::1', 9).length, 2, 'by its /64');
  assert.equal(open('2001:db8::2', 1).length, 0);
  assert.equal(open('203.0.113.2', 1).length, 1);
  assert.equal(open('127.0.0.1', 50).length, 50);
  assert.equal(open('192.0.2.7', 50).length, 50);
  for (const socket of flood) socket.destroy();
  assert.ok(open('203.0.113.1', 1).length === 1);
});
