/** Published ports, and slots that others have had before. */
import assert from 'node:assert/strict';
import { createSocket } from 'node:dgram';
import { once } from 'node:events';
import { connect, type Socket } from 'node:net';
import { test } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import { run } from '../../src/process/index.ts';
import { serviceTag } from '../../src/network/address-plan.ts';
import { type Slot } from '../../src/network/slot.ts';
import { attachGuest } from '../support/namespaces.ts';
import { listNetns } from '../../src/network/host-state.ts';
import { world, GREETING } from '../support/network-slots-world.ts';

test('declared ports reach the guest, TCP half-open and UDP, and keep their numbers over a restart', async () => {
  await using served = await world.guest('served');
  await served.ask('tcp-server', { host: '0.0.0.0', port: 8080, name: 'guest' });
  await served.ask('udp-server', { host: '0.0.0.0', port: 5000 });
  const ports = [
    { vm_port: 8080, proto: 'tcp' as const },
    { vm_port: 5000, proto: 'udp' as const },
    { vm_port: 9999, proto: 'tcp' as const },
  ];
  const mapping = await world.network.forward('served', ports);
  assert.deepEqual(await world.network.forward('served', ports), mapping);
  const body = 'x'.repeat(300_000);
  const said = await talk(mapping[0]?.host_port ?? 0, body);
  assert.ok(said.startsWith('guest 100.'), said.slice(0, 40));
  assert.equal(said.length, said.indexOf('\n') + 1 + body.length);
  assert.equal(await datagram(mapping[1]?.host_port ?? 0, 'hello'), 'hello');
  await assert.rejects(talk(mapping[2]?.host_port ?? 0, ''), { code: 'ECONNRESET' });

  await world.network.detach();
  await world.reopen();
  assert.deepEqual(await world.network.forward('served', ports, mapping), mapping);
  assert.ok((await talk(mapping[0]?.host_port ?? 0, '')).startsWith('guest'));
  await world.network.release('served');
  await assert.rejects(talk(mapping[0]?.host_port ?? 0, ''), { code: 'ECONNREFUSED' });
});

test('a restarted runner finds slots, policies and pins; those that it does not claim are reclaimed', async () => {
  await using bound = await world.guest('kept', { enabled: true, allow: ['web.example'] });
  const before = await world.network.take('kept');
  await world.network.take('orphan');
  await bound.ask('resolve', { name: 'web.example' });
  await world.network.detach();
  // Left by a killed run: a namespace without a record.
  const spaces = await listNetns();
  const names = Array.from({ length: 8 }, (_, index) => `rl${serviceTag(world.home)}-${index}`);
  const leftover = names.findLast((name) => !spaces.includes(name)) ?? assert.fail('all slots are in use');
  await run('ip', ['netns', 'add', leftover]);
  await world.reopen();
  assert.deepEqual(world.network.adopt('kept'), before);
  assert.deepEqual(await world.network.take('kept'), before);
  assert.notEqual(world.network.adopt('orphan'), undefined);
  assert.deepEqual(await bound.ask('tcp', { host: '203.0.113.2', port: 80 }), { text: GREETING });
  assert.deepEqual(await bound.ask('tcp', { host: '203.0.113.3', port: 80 }), { error: 'ECONNREFUSED' });
  assert.deepEqual(await bound.ask('resolve', { name: 'other.example' }), { error: 'ENOTFOUND' });
  await world.network.reclaim(new Set(['kept']));
  assert.equal(world.network.adopt('orphan'), undefined);
  assert.equal((await run('ip', ['netns', 'list'])).includes(leftover), false);
  await world.network.release('kept');
});

test('connections of a former tenant are forgotten by the host', async () => {
  const { hostAddress } = await world.network.take('talker');
  {
    await using talker = await attachGuest(`${world.unique}-talker`, await world.network.take('talker'));
    await talker.ask('udp', { host: '203.0.113.2', port: 99, text: 'hello' });
    assert.match(await run('conntrack', ['-L', '-s', hostAddress]), /dport=99/);
  }
  await world.network.release('talker');
  assert.equal(await run('conntrack', ['-L', '-s', hostAddress]), '');
});

test('slots run out with an error that says so, and released numbers serve again', async () => {
  const slots = await Promise.all(
    Array.from({ length: 8 }, (_, index) => world.network.take(`many-${index}`)),
  );
  assert.equal(new Set(slots.map((slot) => slot.uid)).size, 8);
  await assert.rejects(world.network.take('too-many'), /no free network slot: all 8 are taken/);
  await world.network.release('many-3');
  assert.equal((await world.network.take('late')).index, slots[3]?.index);
  await world.network.reclaim(new Set());
});

test('the address of a released network is withheld, also from the next runner', async () => {
  const withheld = { slots: 2, ahead: 0, withholdMs: 3_600_000 };
  const isPending = async (taking: Promise<Slot>): Promise<boolean> =>
    await Promise.race([
      taking.then(
        () => false,
        () => false,
      ),
      sleep(500, true),
    ]);
  await world.network.detach();
  await world.reopen(withheld);
  const [former] = await Promise.all([world.network.take('former'), world.network.take('other')]);
  await world.network.release('former');
  for (const runner of ['the same runner', 'the next one']) {
    const taking = world.network.take('waiting');
    assert.ok(await isPending(taking), `${runner} gives the address again`);
    const refused = assert.rejects(taking, /shutting down/);
    await world.network.detach();
    await refused;
    await world.reopen(withheld);
  }
  await world.network.detach();
  await world.reopen({ ...withheld, withholdMs: 1 });
  assert.equal((await world.network.take('waiting')).hostAddress, former.hostAddress);
  await world.network.reclaim(new Set());
  await world.network.detach();
  await world.reopen();
});

test('nothing of a connection to a former sandbox reaches the next one at its address', async () => {
  await world.network.detach();
  await world.reopen({ slots: 1, ahead: 0 });
  const { hostAddress } = await world.network.take('before');
  let socket: Socket;
  {
    await using guest = await attachGuest(`${world.unique}-before`, await world.network.take('before'));
    await guest.ask('tcp-server', { host: '0.0.0.0', port: 80, name: 'before' });
    socket = connect({ host: hostAddress, port: 80 });
    await once(socket, 'data');
  }
  await world.network.release('before');
  await using guest = await attachGuest(`${world.unique}-next`, await world.network.take('next'));
  const broken = once(socket, 'error') as Promise<[NodeJS.ErrnoException]>;
  socket.write('for the former sandbox');
  assert.equal(world.network.adopt('next')?.hostAddress, hostAddress);
  assert.equal((await broken)[0].code, 'ECONNRESET');
  const snmp = await run('nsenter', [`--net=${guest.path}`, '--', 'cat', '/proc/net/snmp']);
  const [names, values] = snmp
    .split('\n')
    .filter((line) => line.startsWith('Tcp:'))
    .map((line) => line.split(' '));
  assert.equal(values?.[names?.indexOf('InSegs') ?? 0], '0', 'a segment reached the next sandbox');
  await world.network.release('next');
  await world.network.detach();
  await world.reopen();
});

/**
 * Makes a socket that takes itself for connected, as those in memory that was restored do (tcp(7), TCP_REPAIR), sends on it, and
 * prints what becomes of it.
 */
const CONTINUE_CONNECTION = `
use strict; use Errno; use Socket qw(:DEFAULT IPPROTO_TCP);
my $repair = 19;
socket(my $socket, AF_INET, SOCK_STREAM, 0) or die;
setsockopt($socket, IPPROTO_TCP, $repair, pack('i', 1)) or die "TCP_REPAIR: $!";
connect($socket, sockaddr_in(81, inet_aton('203.0.113.2'))) or die "connect: $!";
setsockopt($socket, IPPROTO_TCP, $repair, pack('i', 0)) or die;
$SIG{ALRM} = sub { print 'no answer'; exit };
alarm 5;
$SIG{PIPE} = 'IGNORE';
defined syswrite $socket, 'in the name of the former' and sysread $socket, my $answer, 1;
print $!{ECONNRESET} ? 'reset' : "ended: $!";
`;

test('a connection from before a restore is reset at once, and no segment of it leaves the host', async () => {
  // Where nothing answers, so that only the host can have reset it.
  const { path } = world.internet;
  await run('nsenter', [`--net=${path}`, '--', 'nft', 'add table inet silent']);
  await run('nsenter', [
    `--net=${path}`,
    '--',
    'nft',
    'add chain inet silent input { type filter hook input priority 0; }; add rule inet silent input tcp dport 81 counter drop',
  ]);
  await using guest = await world.guest('copy');
  const said = await run('nsenter', [`--net=${guest.path}`, '--', 'perl', '-e', CONTINUE_CONNECTION]);
  assert.equal(said, 'reset');
  const rules = await run('nsenter', [`--net=${path}`, '--', 'nft', 'list table inet silent']);
  assert.match(rules, /counter packets 0 /);
  await run('nsenter', [`--net=${path}`, '--', 'nft', 'delete table inet silent']);
  await world.network.release('copy');
});

async function talk(port: number, text: string): Promise<string> {
  const socket = connect({ host: '127.0.0.1', port });
  await once(socket, 'connect');
  socket.end(text);
  let said = '';
  for await (const chunk of socket.setEncoding('utf8')) said += chunk as string;
  return said;
}

async function datagram(port: number, text: string): Promise<string> {
  const socket = createSocket('udp4');
  try {
    socket.connect(port, '127.0.0.1');
    await once(socket, 'connect');
    socket.send(text);
    const [message] = (await once(socket, 'message')) as [Buffer];
    return message.toString();
  } finally {
    socket.close();
  }
}
