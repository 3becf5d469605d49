/** What the guest of a slot reaches, and what it may not. */
import assert from 'node:assert/strict';
import { readFile } from 'node:fs/promises';
import { join } from 'node:path';
import { test } from 'node:test';
import { run } from '../../src/process/index.ts';
import { parseCidr } from '@releap/contract/netd';
import type { HostdService } from '../../src/host/hostd-service.ts';
import { once } from 'node:events';
import { createServer, type AddressInfo } from 'node:net';
import { renderNetd } from '../../src/network/host-rules.ts';
import { attachGuest } from '../support/namespaces.ts';
import {
  type AddressPlan,
  bridgeName,
  DEFAULT_UID_BASE,
  interceptUid,
  makeAddressPlan,
  netdUid,
  serviceTag,
  vethPrefix,
} from '../../src/network/address-plan.ts';
import { listHostAddresses } from '../../src/network/host-state.ts';
import { createSlots, type Slot } from '../../src/network/slot.ts';
import { world, GREETING } from '../support/network-slots-world.ts';

test('a guest reaches the internet through the address of its host', async () => {
  await using alone = await world.guest('plain');
  assert.deepEqual(await alone.ask('tcp', { host: '203.0.113.2', port: 80, text: 'hi' }), {
    text: `${GREETING}hi`,
  });
  assert.deepEqual(await alone.ask('udp', { host: '203.0.113.2', port: 99, text: 'ping' }), { text: 'ping' });
  await world.network.release('plain');
});

test('what a guest may not reach refuses it at once', async (t) => {
  await using one = await world.guest('denied');
  await using two = await world.guest('neighbour');
  await two.ask('tcp-server', { host: '0.0.0.0', port: 80, name: 'neighbour' });
  const neighbour = world.network.adopt('neighbour')?.hostAddress;
  for (const [what, host, port] of [
    ['another sandbox', neighbour, 80],
    ['a sandbox that is not there', neighbour?.replace(/\d+$/, '250'), 80],
    ['the host at its public address', '203.0.113.1', 80],
    ['the host at the service address', neighbour?.replace(/\.\d+$/, '.1'), 22],
    ['its own gateway', '172.16.0.1', 80],
    ['a private address', '10.9.0.2', 80],
    ['the metadata service', '169.254.169.254', 80],
    ['multicast', '224.0.0.1', 80],
  ] as const) {
    await t.test(what, async () => {
      const answer = await one.ask('tcp', { host, port });
      // The guest kernel itself answers ENETUNREACH for multicast.
      assert.match(answer.error ?? JSON.stringify(answer), /^(ECONNREFUSED|EHOSTUNREACH|ENETUNREACH)$/);
    });
  }
  const udp = await one.ask('udp', { host: '10.9.0.2', port: 99, text: 'x' });
  assert.match(udp.error ?? '', /^(EHOSTUNREACH|ECONNREFUSED|EACCES)$/);
  await world.network.release('denied');
  await world.network.release('neighbour');
});

test('packets with a spoofed source address are dropped', async () => {
  await using liar = await world.guest('liar');
  await liar.ip('address add 172.16.0.9/32 dev eth0', 'address add 203.0.113.77/32 dev eth0');
  for (const from of ['172.16.0.9', '203.0.113.77']) {
    const answer = await liar.ask('udp', {
      host: '203.0.113.2',
      port: 99,
      text: `lie ${from}`,
      from,
      wait: 300,
    });
    assert.deepEqual(answer, { error: 'TIMEOUT' });
  }
  assert.deepEqual(await liar.ask('udp', { host: '203.0.113.2', port: 99, text: 'truth' }), {
    text: 'truth',
  });
  const { seen } = await world.internet.ask('udp-seen', {});
  assert.deepEqual(
    seen?.filter(({ text }) => /lie|truth/.test(text)).map(({ text }) => text),
    ['truth'],
  );
  await world.network.release('liar');
});

test('a frame from another MAC, and IPv6 of any kind, stop at the tap', async () => {
  await using odd = await world.guest('odd');
  await odd.ip('address add fd00::2/64 dev eth0 nodad', 'route add default via fd00::1');
  assert.match(
    (await odd.ask('tcp', { host: 'fd00::1', port: 80, wait: 500 })).error ?? '',
    /UNREACH|TIMEOUT/,
  );
  await odd.ip(
    'link set dev eth0 down',
    'link set dev eth0 address 02:00:00:00:00:99',
    'link set dev eth0 up',
  );
  await odd.ip('route replace default via 172.16.0.1');
  assert.match(
    (await odd.ask('tcp', { host: '203.0.113.2', port: 80, wait: 500 })).error ?? '',
    /TIMEOUT|UNREACH/,
  );
  await world.network.release('odd');
});

test('the namespace of a slot neither opens connections itself nor has IPv6', async () => {
  const slot = await world.network.take('inside');
  const inside = ['nsenter', `--net=${slot.netnsPath}`, '--'];
  const script = `require('net').connect(80, '203.0.113.2').on('error', (e) => console.log(e.code)).setTimeout(300, () => { console.log('TIMEOUT'); process.exit() })`;
  const said = await run('nsenter', [...inside.slice(1), process.execPath, '-e', script]);
  assert.match(said, /^(TIMEOUT|EPERM)/);
  assert.equal(await run('ip', ['-n', slot.netns, '-6', 'address', 'show']), '');
  await world.network.release('inside');
});

test('the rules of a slot are what nft makes of their text', async () => {
  const slot = await world.network.take('ruled');
  const { serviceAddress, text } = await rulesOf(slot);
  assert.ok(text.includes(serviceAddress) && !text.includes(slot.hostAddress));
  const scratch = `${world.unique}-rules`;
  await run('ip', ['netns', 'add', scratch]);
  try {
    const inside = (netns: string, tool: string, ...args: string[]): string[] => [
      `--net=/run/netns/${netns}`,
      '--',
      tool,
      ...args,
    ];
    await run('nsenter', inside(scratch, 'ip', 'tuntap', 'add', 'dev', slot.tap, 'mode', 'tap'));
    await run('nsenter', inside(scratch, 'nft', '-f', '-'), { input: text });
    const list = (netns: string): Promise<string> => run('nsenter', inside(netns, 'nft', 'list', 'ruleset'));
    assert.equal(await list(slot.netns), await list(scratch));
  } finally {
    await run('ip', ['netns', 'delete', scratch]);
  }
  await world.network.release('ruled');
});

/** The slot that the runner asks hostd to create. */
export async function rulesOf(
  slot: Slot,
): Promise<{ serviceAddress: string; text: string; plan: AddressPlan }> {
  const block = (await readFile(join(world.home, 'network/block'), 'utf8')).trim();
  const tag = serviceTag(world.home);
  const plan = {
    ...makeAddressPlan(tag, parseCidr(block) ?? assert.fail(), 8, DEFAULT_UID_BASE),
    hostAddresses: await listHostAddresses(
      (name) => name === bridgeName(tag) || name.startsWith(vethPrefix(tag)),
    ),
  };
  const asked: { create_slot: { rules: string; service_address: string } }[] = [];
  const hostd = { request: async (one: (typeof asked)[0]) => void asked.push(one) };
  await createSlots(hostd as unknown as HostdService, plan, [slot.index]);
  const { rules = '', service_address: serviceAddress = '' } = asked[0]?.create_slot ?? {};
  return { serviceAddress, text: rules, plan };
}

test('netd can make neither another service of the host a name server, nor ask one that is not configured', async () => {
  const { plan } = await rulesOf(await world.network.take('named'));
  const accept = createServer((socket) => socket.end('another service'));
  accept.listen(0, '0.0.0.0');
  await once(accept, 'listening');
  const { port } = accept.address() as AddressInfo;
  const uid = netdUid(plan);
  // As one that was taken over says it.
  await run('nft', ['-f', '-'], {
    input: renderNetd(plan, { dnsPort: port, uid, interceptUid: interceptUid(plan), nameServers: [] }),
  });
  try {
    await using guest = await attachGuest(
      `${world.unique}-named`,
      world.network.adopt('named') ?? assert.fail(),
    );
    assert.deepEqual(await guest.ask('tcp', { host: '172.16.0.1', port: 53 }), { error: 'ECONNREFUSED' });
  } finally {
    accept.close();
    await world.network.detach();
    await world.reopen();
  }
  const script =
    'use IO::Socket::INET; print IO::Socket::INET->new(PeerAddr => shift, Timeout => 30) ? "in" : $!';
  for (const to of ['10.9.0.2:53', '169.254.169.254:53'])
    assert.match(
      await run('setpriv', [`--reuid=${uid}`, '--clear-groups', 'perl', '-e', script, to]),
      /refused/,
      to,
    );
  await world.network.release('named');
});

test('only the runner may connect to a sandbox: no other user of the host, and no other machine', async () => {
  await using open = await world.guest('open');
  await open.ask('tcp-server', { host: '0.0.0.0', port: 80, name: 'guest' });
  const address = world.network.adopt('open')?.hostAddress ?? '';
  const script =
    'use IO::Socket::INET; print IO::Socket::INET->new(PeerAddr => shift, Timeout => 30) ? "in" : $!';
  const attempt = ['perl', '-e', script, `${address}:80`];
  assert.equal(await run('perl', attempt.slice(1)), 'in');
  const otherUser = await run('setpriv', ['--reuid=65534', '--regid=65534', '--clear-groups', ...attempt]);
  assert.match(otherUser, /refused/);
  await world.internet.ip(`route add ${address} via 203.0.113.1`);
  assert.deepEqual(await world.internet.ask('tcp', { host: address, port: 80, wait: 300 }), {
    error: 'TIMEOUT',
  });
  await world.network.release('open');
});
