import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import { fileURLToPath } from 'node:url';
import type { EgressDenial } from '@releap/contract';
import { eventually } from '@releap/testing/eventually';
import { isolateNetwork } from '@releap/testing/isolated-network';
import { NetworkWorld } from './support/network-world.ts';

isolateNetwork(fileURLToPath(import.meta.url));

let world: NetworkWorld;

before(async () => {
  world = await NetworkWorld.start({
    resolve: (name) => (name.startsWith('rebind.') ? ['10.9.0.2'] : ['203.0.113.2']),
  });
});
after(() => world[Symbol.asyncDispose]());

/** Without times, in a fixed order. A reading is kept for a second: asks until the log has so many entries. */
async function deniedTo(vmId: string, kinds: number): Promise<Omit<EgressDenial, 'first_at' | 'last_at'>[]> {
  const list = await eventually(`${kinds} kinds of denials of ${vmId}`, async () => {
    const found = (await world.network.denied(vmId)) ?? assert.fail();
    return found.length >= kinds ? found : undefined;
  });
  for (const { first_at: first, last_at: last } of list) {
    assert.ok(Math.abs(Date.now() - Date.parse(last)) < 3_600_000, last);
    assert.ok(first === undefined || first <= last);
  }
  const sorted = list.toSorted((a, b) => (a.last_at < b.last_at ? 1 : -1));
  assert.deepEqual(
    list.map(({ last_at: last }) => last),
    sorted.map(({ last_at: last }) => last),
  );
  return list
    .map(({ first_at: _first, last_at: _last, ...denial }) => denial)
    .sort((a, b) => JSON.stringify(a).localeCompare(JSON.stringify(b)));
}

test('what is denied is in the log with its reason, and is forgotten with the sandbox', async () => {
  {
    await using bound = await world.guest('logged', { enabled: true, allow: ['*.example'] });
    const { hostAddress } = world.network.adopt('logged') ?? assert.fail();
    const other = hostAddress.replace(/\d+$/, '250');
    const tcp = (host: string, port: number) => bound.ask('tcp', { host, port });
    for (const port of [80, 81, 80]) await tcp('203.0.113.2', port);
    await tcp('10.9.0.2', 80);
    await tcp('169.254.169.254', 80);
    await tcp(other, 22);
    await tcp('203.0.113.1', 22);
    await tcp('172.16.0.1', 22);
    await bound.ask('udp', { host: '203.0.113.2', port: 443, text: 'quic', wait: 2_000 });
    for (const name of ['evil.org', 'evil.org', 'rebind.example']) await bound.ask('resolve', { name });
    const entries = await deniedTo('logged', 9);
    const tcpTo = (address: string, port: number, reason: string, count = 1) => ({
      protocol: 'tcp',
      address,
      port,
      reason,
      count,
    });
    const expected = [
      tcpTo('203.0.113.2', 80, 'not_allowed', 2),
      tcpTo('203.0.113.2', 81, 'not_allowed'),
      tcpTo('10.9.0.2', 80, 'private_network'),
      tcpTo('169.254.169.254', 80, 'reserved'),
      tcpTo(other, 22, 'sandbox'),
      tcpTo('203.0.113.1', 22, 'host'),
      { protocol: 'ip', reason: 'host', address: '172.16.0.1', count: 1 },
      { protocol: 'udp', address: '203.0.113.2', port: 443, reason: 'not_allowed', count: 1 },
      { protocol: 'dns', name: 'evil.org', reason: 'not_allowed', count: 2 },
      { protocol: 'dns', name: 'rebind.example', reason: 'rebinding', count: 1 },
    ];
    for (const one of expected)
      assert.ok(
        entries.some((entry) => Object.entries(one).every(([key, value]) => entry[key as never] === value)),
        `${JSON.stringify(one)} is not in ${JSON.stringify(entries)}`,
      );
  }
  const slot = world.network.adopt('logged');
  await world.network.release('logged');
  // Nothing stored it: the sandbox was deleted.
  assert.equal(await world.network.denied('logged'), undefined);
  // The next holder of the same addresses starts with an empty log.
  for (let taken = 0; taken < 8; taken += 1) await world.network.take(`next-${taken}`);
  const next = Array.from({ length: 8 }, (_, index) => `next-${index}`).find(
    (vmId) => world.network.adopt(vmId)?.index === slot?.index,
  );
  assert.deepEqual(await world.network.denied(next ?? ''), []);
  await world.network.reclaim(new Set());
});

test('the log outlives the network of a sandbox and a restart of the runner, and continues with the next network', async () => {
  const egress = { enabled: true, allow: [] };
  const counts = async (): Promise<string[]> =>
    ((await world.network.denied('kept')) ?? assert.fail('there is no log'))
      .map(({ protocol, port, name, count }) => `${protocol} ${port ?? name} ${count}`)
      .sort();
  {
    await using guest = await world.guest('kept', egress);
    for (const port of [80, 81, 81]) await guest.ask('tcp', { host: '203.0.113.2', port });
    await guest.ask('resolve', { name: 'evil.org' });
    // The counters of the firewall are lost with its table.
    await world.network.detach();
    await world.reopen();
    await guest.ask('tcp', { host: '203.0.113.2', port: 80 });
    await eventually('what was before the restart and after it', async () => {
      assert.deepEqual(await counts(), ['dns evil.org 1', 'tcp 80 2', 'tcp 81 2']);
      return true;
    });
    await world.network.keepDenied('kept');
    // As a release that failed is repeated.
    await world.network.keepDenied('kept');
  }
  await world.network.release('kept');
  assert.deepEqual(await counts(), ['dns evil.org 1', 'tcp 80 2', 'tcp 81 2']);
  {
    await using guest = await world.guest('kept', egress);
    await guest.ask('tcp', { host: '203.0.113.2', port: 81 });
    await eventually('both networks', async () => {
      assert.deepEqual(await counts(), ['dns evil.org 1', 'tcp 80 2', 'tcp 81 3']);
      return true;
    });
  }
  await world.network.release('kept');
  assert.equal(await world.network.denied('another'), undefined);
});

test('spoofed frames and IPv6 are counted', async () => {
  await using odd = await world.guest('odd');
  await odd.ip('address add 172.16.0.9/32 dev eth0', 'address add fd00::2/64 dev eth0 nodad');
  await odd.ip('route add default via fd00::1');
  // Without it the guest would ask for the gateway's address first, with the same false source.
  await odd.ip('neighbour replace 172.16.0.1 lladdr 02:72:6c:00:00:01 dev eth0');
  await odd.ask('udp', { host: '203.0.113.2', port: 99, text: 'lie', from: '172.16.0.9', wait: 200 });
  // A unicast packet of IPv6, to a neighbour that is written down.
  await odd.ip('neighbour add fd00::1 lladdr 02:72:6c:00:00:01 dev eth0');
  await odd.ask('tcp', { host: 'fd00::1', port: 80, wait: 300 });
  await odd.ip(
    'link set dev eth0 down',
    'link set dev eth0 address 02:00:00:00:00:99',
    'link set dev eth0 up',
  );
  await odd.ip('route replace default via 172.16.0.1');
  await odd.ask('udp', { host: '203.0.113.2', port: 99, text: 'lie', wait: 300 });
  const entries = await deniedTo('odd', 3);
  for (const [protocol, reason] of [
    ['ip', 'spoofed'],
    ['ipv6', 'ipv6'],
    ['ethernet', 'spoofed'],
  ])
    assert.ok(
      entries.some((entry) => entry.protocol === protocol && entry.reason === reason && entry.count > 0),
      `${protocol} is not in ${JSON.stringify(entries)}`,
    );
  await world.network.release('odd');
});

test('a guest that is denied thousands of destinations fills its own log and no more', async () => {
  await using flooder = await world.guest('flooder', { enabled: true, allow: [] });
  await using quiet = await world.guest('quiet', { enabled: true, allow: [] });
  const ports = Array.from({ length: 2_000 }, (_, index) => 1_000 + index);
  await flooder.ask('udp-flood', {
    host: '203.0.113.2',
    ports,
    packets: [Buffer.from('x').toString('base64')],
    sockets: 4,
    ms: 2_000,
  });
  await quiet.ask('tcp', { host: '203.0.113.2', port: 80 });
  const entries = await deniedTo('flooder', 500);
  assert.ok(entries.length <= 600, `${entries.length} entries`);
  assert.deepEqual(await deniedTo('quiet', 1), [
    { protocol: 'tcp', address: '203.0.113.2', port: 80, reason: 'not_allowed', count: 1 },
  ]);
  await world.network.reclaim(new Set());
});
