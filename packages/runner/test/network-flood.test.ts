import assert from 'node:assert/strict';
import { createSocket } from 'node:dgram';
import { once } from 'node:events';
import { connect } from 'node:net';
import { after, before, test } from 'node:test';
import { setImmediate as turn } from 'node:timers/promises';
import { fileURLToPath } from 'node:url';
import { eventually } from '@releap/testing/eventually';
import { rounds } from '@releap/testing/repetitions';
import dnsPacket from 'dns-packet';
import { run } from '../src/process/index.ts';
import { isolateNetwork } from '@releap/testing/isolated-network';
import type { Namespace } from './support/namespaces.ts';
import { NetworkWorld } from './support/network-world.ts';

isolateNetwork(fileURLToPath(import.meta.url));

/** How long each flood lasts. */
const FLOOD_MS = rounds(4_000, 60_000);
const DECLARED = [
  { vm_port: 8080, proto: 'tcp' as const },
  { vm_port: 5000, proto: 'udp' as const },
];

const stack = new AsyncDisposableStack();
let world: NetworkWorld;
let flooder: Namespace;
let neighbour: Namespace;
let ports: { tcp: number; udp: number };

before(async () => {
  world = stack.use(await NetworkWorld.start({ resolve: () => ['203.0.113.2'] }));
  flooder = stack.use(await world.guest('flooder'));
  await flooder.ask('tcp-server', { host: '0.0.0.0', port: 8080, name: 'flooder' });
  await flooder.ask('udp-server', { host: '0.0.0.0', port: 5000 });
  const mapping = await world.network.forward('flooder', DECLARED);
  ports = { tcp: mapping[0]?.host_port ?? 0, udp: mapping[1]?.host_port ?? 0 };
  neighbour = stack.use(await world.guest('neighbour', { enabled: true, allow: ['*.example'] }));
  await neighbour.ask('tcp-server', { host: '0.0.0.0', port: 8080, name: 'neighbour' });
  const other = await world.network.forward('neighbour', DECLARED);
  neighbourPort = other[0]?.host_port ?? 0;
});
after(() => stack.disposeAsync());

let neighbourPort = 0;

async function greeting(port: number): Promise<string> {
  const socket = connect({ host: '127.0.0.1', port });
  let text = '';
  for await (const chunk of socket.setEncoding('utf8')) {
    text += String(chunk);
    if (text.includes('\n')) break;
  }
  return text;
}

/** Does repeatedly all that a neighbour and the runner do, until the flood is over. */
async function whileFlooded(flood: Promise<unknown>): Promise<number> {
  const pid = await world.network.netdPid();
  const over = new AbortController();
  const flooding = flood.finally(() => {
    over.abort();
  });
  let times = 0;
  for (; !over.signal.aborted || times === 0; times += 1) {
    const name = `n${times}.example`;
    assert.deepEqual(
      await eventually(`${name} is answered`, async () => {
        return (await neighbour.ask('resolve', { name, wait: 1_000 })).answers;
      }),
      ['203.0.113.2'],
    );
    assert.match((await neighbour.ask('tcp', { host: '203.0.113.2', port: 80 })).text ?? '', /^internet/);
    assert.match(await greeting(neighbourPort), /^neighbour/);
    // Creates and deletes continue: a slot, a policy in the firewall, a port in netd.
    await world.network.take('created', { egress: { enabled: true, allow: ['a.example'] } });
    await world.network.forward('created', [{ vm_port: 1, proto: 'tcp' }]);
    await world.network.release('created');
    await turn();
  }
  await flooding;
  assert.equal(await world.network.netdPid(), pid, 'netd was replaced');
  return times;
}

const question = dnsPacket.encode({
  id: 7,
  type: 'query',
  flags: 256,
  questions: [{ name: 'flood.example', type: 'A', class: 'IN' }],
});
/** Announces 65,535 records of each kind in twelve bytes. */
const bomb = Buffer.from([0, 7, 1, 0, 255, 255, 255, 255, 255, 255, 255, 255]);

test('a flood of DNS queries, thousands a second, leaves its neighbour with names, ports and a network', async () => {
  const packets = [question, bomb, Buffer.alloc(1_400, 1)].map((bytes) => bytes.toString('base64'));
  const flood = flooder.ask('udp-flood', {
    host: '172.16.0.1',
    ports: [53],
    packets,
    sockets: 64,
    ms: FLOOD_MS,
  });
  await whileFlooded(flood);
  const sent = Number((await flood).text);
  assert.ok(sent > 1_000, `only ${sent} packets were sent`);
});

test('a flood of datagrams and connections to the ports of a sandbox leaves its neighbour alone', async () => {
  const end = performance.now() + FLOOD_MS;
  const sockets = Array.from({ length: 600 }, () => createSocket('udp4').on('error', () => undefined));
  stack.defer(() => sockets.forEach((socket) => socket.close()));
  const datagrams = async (): Promise<void> => {
    for (let sent = 0; performance.now() < end; ) {
      for (let burst = 0; burst < 100; burst += 1, sent += 1)
        sockets[sent % sockets.length]?.send(bomb, ports.udp, '127.0.0.1', () => undefined);
      await turn();
    }
  };
  const connections = async (): Promise<void> => {
    while (performance.now() < end) {
      const socket = connect({ host: '127.0.0.1', port: ports.tcp });
      socket.on('error', () => undefined);
      socket.write('x'.repeat(1_000));
      await once(socket, 'data').catch(() => undefined);
      socket.destroy();
    }
  };
  await whileFlooded(Promise.all([datagrams(), ...Array.from({ length: 20 }, connections)]));
});

test('a sandbox that opens connections without end fills its own share of the connection table', async () => {
  // Connections to the other one, which are closed and not forgotten yet, may fill its share already.
  const opener = stack.use(await world.guest('opener'));
  const many = Array.from({ length: 60_000 }, (_, index) => index + 1_024);
  const packet = bomb.toString('base64');
  const flood = opener.ask('udp-flood', {
    host: '203.0.113.2',
    ports: many,
    packets: [packet],
    sockets: 8,
    ms: FLOOD_MS,
  });
  const { hostAddress } = world.network.adopt('opener') ?? assert.fail();
  const held = async (): Promise<number> =>
    (await run('conntrack', ['-L', '-s', hostAddress])).trim().split('\n').length;
  // During the flood: the kernel forgets connections without an answer after 30 s.
  const filled = eventually('its share fills', async () => (await held()) > 1_000);
  await Promise.all([whileFlooded(flood), filled]);
  const last = await held();
  assert.ok(last <= 4_096, `${last} connections`);
});
