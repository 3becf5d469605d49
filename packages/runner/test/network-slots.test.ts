import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { createSocket } from 'node:dgram';
import { once } from 'node:events';
import { readdir, readFile, rm, writeFile } from 'node:fs/promises';
import { connect, type Socket } from 'node:net';
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import { after, before, test } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import { fileURLToPath } from 'node:url';
import { temporaryFolder } from '@releap/testing/temporary-folder';
import { run } from '../src/process/index.ts';
import { parseCidr } from '@releap/contract/netd';
import type { HostdService } from '../src/host/hostd-service.ts';
import { DEFAULT_UID_BASE, makeAddressPlan, serviceTag } from '../src/network/address-plan.ts';
import { createSlots, type Slot } from '../src/network/slot.ts';
import { listNetns } from '../src/network/host-state.ts';
import { Network } from '../src/network/network.ts';
import { isolateNetwork } from './support/isolated-network.ts';
import { attachGuest } from './support/namespaces.ts';
import { NetworkWorld } from './support/network-world.ts';

isolateNetwork(fileURLToPath(import.meta.url));

const ZONE: Record<string, string[]> = {
  'web.example': ['203.0.113.2'],
  'api.web.example': ['203.0.113.3'],
  'rebind.web.example': ['10.9.0.2'],
  'other.example': ['203.0.113.3'],
  'big.example': Array.from({ length: 90 }, (_, index) => `203.0.113.${index + 10}`),
};

let world: NetworkWorld;

before(async () => {
  world = await NetworkWorld.start({
    resolve: (name) => ZONE[name],
    ttl: 30,
    network: { tenantPrivateNetworks: ['10.9.0.0/16', '100.100.0.0/16'] },
  });
});
after(() => world[Symbol.asyncDispose]());

const FORWARDING = '/proc/sys/net/ipv4/ip_forward';
const GREETING = 'internet 203.0.113.1\n';

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
  assert.ok(serviceAddress.length > 0 && text.includes(slot.hostAddress));
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
async function rulesOf(slot: Slot): Promise<{ serviceAddress: string; text: string }> {
  const block = (await readFile(join(world.home, 'network/block'), 'utf8')).trim();
  const plan = makeAddressPlan(
    serviceTag(world.home),
    parseCidr(block) ?? assert.fail(),
    8,
    DEFAULT_UID_BASE,
  );
  const asked: { create_slot: { rules: string; service_address: string } }[] = [];
  const hostd = { request: async (one: (typeof asked)[0]) => void asked.push(one) };
  await createSlots(hostd as unknown as HostdService, plan, [slot.index]);
  const { rules = '', service_address: serviceAddress = '' } = asked[0]?.create_slot ?? {};
  return { serviceAddress, text: rules };
}

test('only the runner may connect to a sandbox: no other user of the host, and no other machine', async () => {
  await using open = await world.guest('open');
  await open.ask('tcp-server', { host: '0.0.0.0', port: 80, name: 'guest' });
  const address = world.network.adopt('open')?.hostAddress ?? '';
  const script =
    'use IO::Socket::INET; print IO::Socket::INET->new(PeerAddr => shift, Timeout => 30) ? "in" : $!';
  const attempt = ['perl', '-e', script, `${address}:80`];
  assert.equal(await run('perl', attempt.slice(1)), 'in');
  const nobody = await run('setpriv', ['--reuid=65534', '--regid=65534', '--clear-groups', ...attempt]);
  assert.match(nobody, /refused/);
  await world.internet.ip(`route add ${address} via 203.0.113.1`);
  assert.deepEqual(await world.internet.ask('tcp', { host: address, port: 80, wait: 300 }), {
    error: 'TIMEOUT',
  });
  await world.network.release('open');
});

test('names are resolved at the gateway, over UDP and TCP; IPv6 addresses are never given', async () => {
  await using any = await world.guest('names');
  assert.deepEqual(await any.ask('resolve', { name: 'web.example' }), { answers: ['203.0.113.2'] });
  assert.deepEqual(await any.ask('resolve', { name: 'web.example', type: 'AAAA' }), { error: 'ENODATA' });
  assert.equal((await any.ask('resolve', { name: 'big.example' })).answers?.length, 90);
  assert.deepEqual(await any.ask('resolve', { name: 'missing.example' }), { error: 'ENOTFOUND' });
  assert.deepEqual(await any.ask('resolve', { name: 'rebind.web.example' }), { error: 'ENOTFOUND' });
  await world.network.release('names');
});

test('with a domain policy only what the names resolved to is reachable', async () => {
  await using bound = await world.guest('bound', { enabled: true, allow: ['web.example', '*.web.example'] });
  const web = { host: '203.0.113.2', port: 80 };
  assert.deepEqual(await bound.ask('tcp', web), { error: 'ECONNREFUSED' });
  assert.deepEqual(await bound.ask('resolve', { name: 'other.example' }), { error: 'ENOTFOUND' });
  assert.deepEqual(await bound.ask('resolve', { name: 'rebind.web.example' }), { error: 'ENOTFOUND' });
  assert.deepEqual(await bound.ask('resolve', { name: 'web.example' }), { answers: ['203.0.113.2'] });
  assert.deepEqual(await bound.ask('tcp', web), { text: GREETING });
  assert.deepEqual(await bound.ask('tcp', { host: '203.0.113.3', port: 80 }), { error: 'ECONNREFUSED' });
  assert.deepEqual(await bound.ask('resolve', { name: 'api.web.example' }), { answers: ['203.0.113.3'] });
  assert.deepEqual(await bound.ask('tcp', { host: '203.0.113.3', port: 80 }), { text: GREETING });
  // A name server that is not ours is not on the list.
  const own = await bound.ask('resolve', { name: 'web.example', server: '203.0.113.4', wait: 2_000 });
  assert.notEqual(own.error, undefined);
  await world.network.release('bound');
});

/** Metadata services of clouds: of most, of Azure (a public address), and of Alibaba (in a shared range). */
const METADATA = ['169.254.169.254', '168.63.129.16', '100.100.100.200'];

test('with an address policy the rest is refused, and a private network is open when it is named', async () => {
  await using bound = await world.guest('nets', {
    enabled: true,
    allow: ['203.0.113.3', '10.9.0.0/24', '0.0.0.0/5', '192.168.0.0/16', ...METADATA, '100.100.100.0/24'],
  });
  const refused = { error: 'ECONNREFUSED' };
  assert.deepEqual(await bound.ask('tcp', { host: '203.0.113.3', port: 80 }), { text: GREETING });
  assert.deepEqual(await bound.ask('tcp', { host: '203.0.113.2', port: 80 }), refused);
  assert.match((await bound.ask('tcp', { host: '10.9.0.2', port: 80 })).text ?? '', /^internet 10\.9\.0\.1/);
  // One that the operator has not opened, and addresses that nothing opens: not even a network of the operator's around them.
  await world.internet.ip(
    ...['192.168.7.7', ...METADATA].map((address) => `address replace ${address}/32 dev wan0`),
  );
  for (const host of ['192.168.7.7', ...METADATA])
    assert.deepEqual(await bound.ask('tcp', { host, port: 80 }), refused, host);
  await world.network.release('nets');
  await using free = await world.guest('freed');
  assert.deepEqual(await free.ask('tcp', { host: '203.0.113.2', port: 80 }), { text: GREETING });
  await world.network.release('freed');
});

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
  await run('ip', ['netns', 'add', `rl${serviceTag(world.home)}-7`]);
  await world.reopen();
  assert.deepEqual(world.network.adopt('kept'), before);
  assert.deepEqual(await world.network.take('kept'), before);
  assert.notEqual(world.network.adopt('orphan'), undefined);
  assert.deepEqual(await bound.ask('tcp', { host: '203.0.113.2', port: 80 }), { text: GREETING });
  assert.deepEqual(await bound.ask('tcp', { host: '203.0.113.3', port: 80 }), { error: 'ECONNREFUSED' });
  assert.deepEqual(await bound.ask('resolve', { name: 'other.example' }), { error: 'ENOTFOUND' });
  await world.network.reclaim(new Set(['kept']));
  assert.equal(world.network.adopt('orphan'), undefined);
  assert.equal((await run('ip', ['netns', 'list'])).includes(`rl${serviceTag(world.home)}-7`), false);
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

test('our table comes back when another program flushes all rules, and foreign tables are left alone', async () => {
  await world.network.detach();
  await world.reopen({ firewallWatchMs: 20 });
  await using bound = await world.guest('flushed', { enabled: true, allow: ['web.example'] });
  await run('nft', ['flush', 'ruleset']);
  await run('nft', ['add', 'table', 'inet', 'somebody']);
  const table = `inet releap_${serviceTag(world.home)}`;
  while (!(await run('nft', ['list', 'tables'])).includes(table)) await sleep(20);
  assert.match(await run('nft', ['list', 'tables']), /inet somebody/);
  assert.deepEqual(await bound.ask('tcp', { host: '203.0.113.3', port: 80 }), { error: 'ECONNREFUSED' });
  assert.deepEqual(await bound.ask('resolve', { name: 'web.example' }), { answers: ['203.0.113.2'] });
  assert.deepEqual(await bound.ask('tcp', { host: '203.0.113.2', port: 80 }), { text: GREETING });
  await world.network.release('flushed');
  await run('nft', ['delete', 'table', 'inet', 'somebody']);
});

test('hostd killed at any step is started again, and slots are given and taken back all the same', async () => {
  await world.network.detach();
  const failpoints = await temporaryFolder('releap-failpoints-');
  process.env['RELEAP_CRASH_AT'] = failpoints;
  try {
    await world.reopen({ ahead: 1 });
    for (const step of ['namespace', 'veth', 'addresses', 'made', 'unlinked', 'namespace removed']) {
      await writeFile(join(failpoints, `hostd slot ${step}`), '');
      const slots = await Promise.all(
        ['one', 'two', 'three'].map((name) => world.network.take(`${name}-${step}`)),
      );
      await using guest = await attachGuest(`${world.unique}-killed`, slots[2] ?? assert.fail());
      assert.deepEqual(await guest.ask('tcp', { host: '203.0.113.2', port: 80 }), { text: GREETING });
      await world.network.reclaim(new Set());
      assert.deepEqual(await readdir(failpoints), [], `hostd was not killed at '${step}'`);
      for (const { hostAddress } of slots)
        assert.equal(await run('conntrack', ['-L', '-s', hostAddress]), '');
    }
    assert.equal(
      new Set(
        (await Promise.all([0, 1, 2, 3, 4, 5, 6, 7].map((n) => world.network.take(`all-${n}`)))).map(
          (s) => s.index,
        ),
      ).size,
      8,
    );
    await world.network.reclaim(new Set());
  } finally {
    delete process.env['RELEAP_CRASH_AT'];
    await rm(failpoints, { recursive: true });
  }
});

test('a runner killed at any time keeps every slot it gave, and leaves nothing once closed', async () => {
  await world.network.detach();
  const { log: _, ...plain } = world.options();
  const child = fileURLToPath(new URL('./support/network-child.ts', import.meta.url));
  for (const lines of [0, 1, 3, 6, 9]) {
    const runner = spawn(process.execPath, [child, JSON.stringify(plain)], {
      stdio: ['ignore', 'pipe', 'inherit'],
    });
    const said: string[] = [];
    for await (const line of createInterface({ input: runner.stdout })) {
      said.push(line);
      if (said.length > lines) break;
    }
    const ended = once(runner, 'exit');
    runner.kill('SIGKILL');
    await ended;
    await world.reopen();
    const last = said.at(-1)?.split(' ');
    if (last?.[1] !== undefined) assert.equal(world.network.adopt(last[0] ?? '')?.hostAddress, last[1]);
    // The next one finds what this one left; only in the end is it all reclaimed.
    await world.network.detach();
  }
  await world.reopen();
  assert.equal((await run('ip', ['rule', 'show'])).match(/fwmark/g)?.length, 1);
  await world.network.reclaim(new Set());
  const slot = await world.network.take('after');
  assert.equal((await listNetns()).includes(slot.netns), true);
  await world.network.release('after');
});

test('two services side by side share no name and no address; closing leaves nothing', async () => {
  const otherHome = await temporaryFolder('releap-net-');
  const other = await Network.open(
    world.options({ dir: join(otherHome, 'n'), identity: otherHome, slots: 2 }),
  );
  try {
    const [mine, theirs] = [await world.network.take('mine'), await other.take('theirs')];
    assert.notEqual(mine.hostAddress, theirs.hostAddress);
    assert.notEqual(mine.netns, theirs.netns);
    assert.notEqual(mine.uid, theirs.uid);
  } finally {
    await other.close();
    await rm(otherHome, { recursive: true, force: true });
  }
  assert.equal((await readFile(FORWARDING, 'utf8')).trim(), '1');
  await world.network.close();
  const left = [
    await run('ip', ['-o', 'link']),
    await run('ip', ['netns', 'list']),
    await run('nft', ['list', 'tables']),
    await run('ip', ['route', 'show', 'table', 'all']),
    await run('ip', ['rule', 'show']),
  ].join('\n');
  assert.doesNotMatch(left, new RegExp(`${serviceTag(world.home)}|${serviceTag(otherHome)}|100\\.|fwmark`));
  assert.equal((await readFile(FORWARDING, 'utf8')).trim(), '0');
  await world.reopen();
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
