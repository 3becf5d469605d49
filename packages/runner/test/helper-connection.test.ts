import assert from 'node:assert/strict';
import { once } from 'node:events';
import { mkdtemp, rm } from 'node:fs/promises';
import { createServer, type Server, type Socket } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, before, test } from 'node:test';
import { HelperConnection, HelperLostError } from '../src/network/netd/helper-connection.ts';
import { NETD } from '../src/network/netd/netd.ts';

const HELLO = { type: 'hello', protocol: 1, version: '0' };
let folder = '';
let server: Server;
let netd: Socket;

before(async () => {
  folder = await mkdtemp(join(tmpdir(), 'releap-netd-fake-'));
  server = createServer((socket) => {
    netd = socket.on('error', () => undefined);
  });
  server.listen(join(folder, 'sock'));
  await once(server, 'listening');
});
after(async () => {
  server.close();
  await rm(folder, { recursive: true });
});

async function connect(replyMs = 60_000) {
  const accepted = once(server, 'connection');
  const events: object[] = [];
  const connection = await HelperConnection.open(join(folder, 'sock'), NETD, replyMs, (event) =>
    events.push(event),
  );
  await accepted;
  return { connection, events };
}

const say = (message: object | string): boolean =>
  netd.write(`${typeof message === 'string' ? message : JSON.stringify(message)}\n`);

test('responses are matched by their number, in any order', async () => {
  const { connection, events } = await connect();
  say(HELLO);
  const [first, second] = [
    connection.request({ type: 'ping' }),
    connection.request({ type: 'remove', vm_id: 'a' }),
  ];
  const forwards = [{ proto: 'tcp', vm_port: 1, host_port: 2 }];
  say({ type: 'done', seq: 2, forwards });
  say({ type: 'done', seq: 1 });
  assert.deepEqual((await second).forwards, forwards);
  assert.equal((await first).forwards, undefined);
  assert.deepEqual(events, [HELLO]);
  connection.end('the test is over');
  assert.equal(await connection.lost, 'the test is over');
});

for (const [what, line] of [
  ['says what is not JSON', 'no message'],
  [
    'says what is not in the protocol',
    '{"type":"pin","id":1,"vm_id":"a","pins":[{"address":"any","seconds":1}]}',
  ],
  ['answers what was not asked', '{"type":"done","seq":99}'],
  ['says more in one message than it may', `{"type":"log","message":"${'x'.repeat(70_000)}`],
] as const) {
  test(`a netd that ${what} is disconnected, and what was asked of it is lost`, async () => {
    const { connection } = await connect();
    const asked = connection.request({ type: 'ping' });
    say(line);
    await assert.rejects(asked, HelperLostError);
    assert.notEqual(await connection.lost, '');
    await assert.rejects(connection.request({ type: 'ping' }), HelperLostError);
  });
}

test('requests to a netd that does not respond, or does not read, time out', async () => {
  const silent = await connect(50);
  await assert.rejects(silent.connection.request({ type: 'ping' }), /no answer to ping/);
  const deaf = await connect();
  netd.pause();
  const asked = deaf.connection.request({ type: 'ping' });
  const egress = {
    domains: Array<string>(3_000).fill('x'.repeat(200)),
    public_networks: [],
    private_networks: [],
  };
  const sandbox = { vm_id: 'a', address: '100.64.0.4', egress };
  const all = Array.from({ length: 60 }, () => deaf.connection.request({ type: 'put', sandbox }));
  const ended = Promise.allSettled(all);
  await assert.rejects(asked, HelperLostError);
  assert.match(await deaf.connection.lost, /does not read/);
  await ended;
});
