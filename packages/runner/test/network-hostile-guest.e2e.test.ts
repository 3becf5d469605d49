import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import { fileURLToPath } from 'node:url';
import type { EgressDenial } from '@releap/contract';
import { type HelloOptions, clientHello } from '@releap/testing/client-hello';
import { eventually } from '@releap/testing/eventually';
import { temporaryFolder } from '@releap/testing/temporary-folder';
import { feed, installGoProgram } from './support/go-program.ts';
import { isolateNetwork } from '@releap/testing/isolated-network';
import { createInternet, type Namespace } from './support/namespaces.ts';
import { startNameServer } from './support/network-world.ts';
import { SPEC } from './support/sandbox-spec.ts';
import { TestRunner } from './support/sandboxes.ts';

isolateNetwork(fileURLToPath(import.meta.url));

const HOSTILE = '31111111-2222-4333-8444-0000000000a1';
const NEIGHBOUR = '31111111-2222-4333-8444-0000000000a2';
const GUEST_MAC = '02726c000002';
const GATEWAY_MAC = '02726c000001';

/** The web server of the tenant, another site at the same address, and a proxy that is allowed by its address. */
const WEB = '203.0.113.2';
const API = '203.0.113.3';
const PROXY = '203.0.113.5';
const ELSEWHERE = '203.0.113.9';
const ZONE: Record<string, string> = {
  'web.example': WEB,
  'api.web.example': API,
  'rebind.web.example': '10.9.0.2',
  'metadata.web.example': '169.254.169.254',
};

interface Probe {
  op: 'tcp' | 'udp' | 'dns' | 'dns-tcp' | 'frame' | 'raw' | 'flood' | 'dns-flood';
  to?: string;
  hex?: string;
  parts?: number;
  count?: number;
  most?: number;
  name?: string;
  protocol?: number;
}

const stack = new AsyncDisposableStack();
let runner: TestRunner;
let internet: Namespace;

before(async () => {
  internet = stack.use(await createInternet(`t${process.pid}-inet`));
  await internet.ip(`address add ${PROXY}/24 dev wan0`, `address add ${ELSEWHERE}/24 dev wan0`);
  // Everything is echoed: what is not refused comes back.
  for (const port of [443, 853, 53, 8080])
    await internet.ask('tcp-server', { host: '0.0.0.0', port, name: '' });
  const nameServer = await startNameServer(
    (name) => (ZONE[name] === undefined ? undefined : [ZONE[name]]),
    30,
    stack,
  );
  runner = await TestRunner.open(await temporaryFolder('releap-hostile-'), { nameServer });
  stack.defer(() => runner.dispose());
  const egress = { enabled: true, allow: ['web.example', '*.web.example', PROXY] };
  runner.spec = { ...SPEC, egress };
  runner.want(HOSTILE, 1, 'running');
  runner.spec = SPEC;
  runner.want(NEIGHBOUR, 1, 'running');
  for (const vmId of [HOSTILE, NEIGHBOUR]) await runner.reported(1, 'running', { of: vmId });
  await runner.sh(NEIGHBOUR, 'mkdir /www && echo secret > /www/index.html && httpd -p 8000 -h /www');
  await installGoProgram(runner, HOSTILE, 'hostile-guest');
});
after(() => stack.disposeAsync());

/** What became of each, in order. */
async function outcomes(...probes: Probe[]): Promise<string[]> {
  return JSON.parse(await feed(runner, HOSTILE, '/hostile-guest', JSON.stringify(probes))) as string[];
}

async function assertOutcomes(cases: readonly (readonly [string, Probe, RegExp])[]): Promise<void> {
  const found = await outcomes(...cases.map(([, probe]) => probe));
  for (const [index, [what, , expected]] of cases.entries()) assert.match(found[index] ?? '', expected, what);
}

/** Waits until the log has an entry like each of these. */
async function assertDenied(...wanted: Partial<EgressDenial>[]): Promise<void> {
  await eventually('everything is in the log', async () => {
    const log = (await runner.network.denied(HOSTILE)) ?? assert.fail('it has no network');
    const isLike = (entry: EgressDenial, one: Partial<EgressDenial>): boolean =>
      Object.entries(one).every(([key, value]) => entry[key as keyof EgressDenial] === value);
    const missing = wanted.filter((one) => !log.some((entry) => isLike(entry, one)));
    if (missing.length > 0) throw new Error(`${JSON.stringify(missing)} not in ${JSON.stringify(log)}`);
    return true;
  });
}

const tcp = (to: string, bytes: Buffer | string = 'x\n', parts = 1): Probe => ({
  op: 'tcp',
  to,
  hex: Buffer.from(bytes).toString('hex'),
  parts,
});
const hello = (options: HelloOptions, to = `${WEB}:443`, parts = 1): Probe =>
  tcp(to, clientHello(options), parts);
const http = (head: string, to = `${WEB}:443`): Probe => tcp(to, `${head.replaceAll('\n', '\r\n')}\r\n\r\n`);
const OPEN = /^open [1-9]/;
const REFUSED = /^refused$/;
const RESET = /^reset$/;

test('names: rebinding, tunnels, other name servers, DNS over TCP, TLS and HTTPS', async () => {
  const dns = (name: string, to = '172.16.0.1:53'): Probe => ({ op: 'dns', to, name });
  await assertOutcomes([
    ['an allowed name', dns('web.example'), /^rcode 0 answers 1$/],
    ['a name below it', dns('api.web.example'), /^rcode 0 answers 1$/],
    ['a name over TCP', { op: 'dns-tcp', to: '172.16.0.1:53', name: 'web.example' }, /^rcode 0 answers 1$/],
    ['data in labels', dns('73656372657473.tunnel.evil'), /^rcode 3 answers 0$/],
    ['data in labels over TCP', { op: 'dns-tcp', to: '172.16.0.1:53', name: 'more.tunnel.evil' }, /^rcode 3/],
    ['a name for a private address', dns('rebind.web.example'), /^rcode 3 answers 0$/],
    ['a name for a metadata service', dns('metadata.web.example'), /^rcode 3 answers 0$/],
    ['another name server', dns('web.example', `${ELSEWHERE}:53`), /^refused|unreachable$/],
    ['another one over TCP', { op: 'dns-tcp', to: `${ELSEWHERE}:53`, name: 'web.example' }, REFUSED],
    ['DNS over TLS', hello({ names: ['dns.evil'] }, `${ELSEWHERE}:853`), REFUSED],
    ['DNS over TLS at an open address', hello({ names: ['dns.evil'] }, `${WEB}:853`), RESET],
    ['DNS over HTTPS at an open address', hello({ names: ['doh.evil'] }), RESET],
  ]);
  await assertDenied(
    { protocol: 'dns', name: '73656372657473.tunnel.evil', reason: 'not_allowed' },
    { protocol: 'dns', name: 'rebind.web.example', reason: 'rebinding' },
    { protocol: 'udp', address: ELSEWHERE, port: 53, reason: 'not_allowed' },
    { protocol: 'tcp', address: ELSEWHERE, port: 853, reason: 'not_allowed' },
    { protocol: 'tcp', address: WEB, port: 853, name: 'dns.evil', reason: 'not_allowed' },
  );
});

test('TLS and HTTP: literals, false names, fronting, ECH, fragments, QUIC and proxies', async () => {
  const host = 'GET / HTTP/1.1\nHost:';
  await assertOutcomes([
    ['the allowed name', hello({ names: ['web.example'] }), OPEN],
    ['the allowed name in pieces', hello({ names: ['web.example'], recordBytes: 5 }, undefined, 20), OPEN],
    ['the allowed host', http(`${host} web.example`), OPEN],
    ['another name', hello({ names: ['evil.example'] }), RESET],
    ['another name in pieces', hello({ names: ['evil.example'], recordBytes: 1 }, undefined, 50), RESET],
    ['an allowed name of another address', hello({ names: ['api.web.example'] }), RESET],
    ['no name', hello({}), RESET],
    ['two names', hello({ names: ['web.example', 'evil.example'] }), RESET],
    ['an address as a name', hello({ names: [WEB] }), RESET],
    ['an outer name of ECH', hello({ names: ['public.evil'], ech: true }), RESET],
    ['another host', http(`${host} evil.example`), RESET],
    ['an address as a host', http(`${host} ${WEB}`), RESET],
    ['a mapped address as a host', http(`${host} [::ffff:${WEB}]`), RESET],
    ['two hosts', http(`${host} web.example\nHost: evil.example`), RESET],
    ['another host in the line', http('GET http://evil.example/ HTTP/1.1\nHost: web.example'), RESET],
    [
      'a tunnel through an allowed name',
      http('CONNECT evil.example:443 HTTP/1.1\nHost: evil.example'),
      RESET,
    ],
    ['HTTP/2 without TLS', http('PRI * HTTP/2.0\n\nSM'), RESET],
    [
      'an address that no name opened',
      tcp(`${ELSEWHERE}:443`, clientHello({ names: ['web.example'] })),
      REFUSED,
    ],
    ['QUIC', { op: 'udp', to: `${WEB}:443`, hex: 'c000000001' }, /^refused|unreachable$/],
    // What an allowed proxy is told is not read: the tenant's operator decides which proxies are listed.
    [
      'a tunnel through an allowed proxy',
      http('CONNECT evil.example:443 HTTP/1.1\nHost: evil.example', `${PROXY}:8080`),
      OPEN,
    ],
  ]);
  const denied = (reason: EgressDenial['reason'], name?: string): Partial<EgressDenial> => ({
    protocol: 'tcp',
    address: WEB,
    port: 443,
    reason,
    ...(name === undefined ? {} : { name }),
  });
  await assertDenied(
    denied('not_allowed', 'evil.example'),
    denied('not_allowed', 'public.evil'),
    denied('name_mismatch', 'api.web.example'),
    denied('no_name'),
    denied('no_name', WEB),
    denied('unreadable'),
    { protocol: 'udp', address: WEB, port: 443, reason: 'quic' },
    { protocol: 'tcp', address: ELSEWHERE, port: 443, reason: 'not_allowed' },
  );
});

test('addresses: the host at each of its own, another sandbox, private networks and metadata services', async () => {
  const neighbour = runner.network.adopt(NEIGHBOUR)?.hostAddress ?? assert.fail();
  const service = neighbour.replace(/\d+$/, '1');
  const targets = [
    ['203.0.113.1', 'host'],
    ['10.9.0.1', 'host'],
    [service, 'host'],
    [neighbour, 'sandbox'],
    ['10.9.0.2', 'private_network'],
    ['169.254.169.254', 'reserved'],
    ['168.63.129.16', 'reserved'],
    ['100.100.100.200', 'reserved'],
  ] as const;
  await assertOutcomes([
    ...targets.map(([address]) => [address, tcp(`${address}:8000`), REFUSED] as const),
    ['the gateway', tcp('172.16.0.1:8000'), REFUSED],
    ['a mapped address', tcp('[::ffff:10.9.0.2]:8000'), REFUSED],
    ['IPv6', tcp('[2001:db8::1]:80'), /^unreachable|refused|timeout$/],
  ]);
  await assertDenied(
    ...targets.map(([address, reason]) => ({ protocol: 'tcp', address, port: 8000, reason })),
    { reason: 'host', address: '172.16.0.1' },
  );
});

test('frames and packets: spoofed MAC, IP and ARP, IPv6, other protocols', async () => {
  const frames: Probe[] = [
    frame(udpFrame(GUEST_MAC, '172.16.0.2', 'truth')),
    frame(udpFrame('020000000099', '172.16.0.2', 'lie of a MAC')),
    frame(udpFrame(GUEST_MAC, '172.16.0.1', 'lie of the gateway')),
    frame(udpFrame(GUEST_MAC, '203.0.113.77', 'lie of a stranger')),
    // "172.16.0.1 is at the guest": asked of the gateway, and said to it.
    frame(arpFrame(1, '172.16.0.1')),
    frame(arpFrame(2, '172.16.0.1')),
    frame(
      Buffer.from(
        `${GATEWAY_MAC}${GUEST_MAC}86dd60000000000011ff${'fd'.repeat(16)}${'fe'.repeat(16)}`,
        'hex',
      ),
    ),
    { op: 'raw', to: ELSEWHERE, protocol: 47, hex: '0000080000000000' },
    { op: 'raw', to: ELSEWHERE, protocol: 1, hex: '0800f7ff00000000' },
  ];
  assert.deepEqual(new Set(await outcomes(...frames)), new Set(['sent']));
  await assertDenied(
    { protocol: 'ethernet', reason: 'spoofed', count: 1 },
    { protocol: 'ip', reason: 'spoofed', count: 2 },
    { protocol: 'arp', reason: 'spoofed', count: 2 },
    { protocol: 'ipv6', reason: 'ipv6' },
    { protocol: 'gre', address: ELSEWHERE, reason: 'not_allowed' },
    { protocol: 'icmp', address: ELSEWHERE, reason: 'not_allowed' },
  );
  const seen = await eventually('the honest packet has arrived', async () => {
    const texts = (await internet.ask('udp-seen', {})).seen?.map(({ text }) => text) ?? [];
    return texts.includes('truth') ? texts : undefined;
  });
  assert.deepEqual(
    seen.filter((text) => text.startsWith('lie')),
    [],
  );
  // The gateway is still where it was.
  assert.match(
    (await outcomes({ op: 'dns', to: '172.16.0.1:53', name: 'web.example' }))[0] ?? '',
    /^rcode 0/,
  );
});

test('floods of queries and of silent connections are bounded, and end without a trace', async () => {
  assert.deepEqual(await outcomes({ op: 'dns-flood', to: '172.16.0.1:53', count: 4_000 }), ['sent']);
  await assertDenied({ protocol: 'dns', address: '172.16.0.1', reason: 'too_many' });
  await eventually('names are resolved again', async () =>
    (await outcomes({ op: 'dns', to: '172.16.0.1:53', name: 'web.example' }))[0]?.startsWith('rcode 0'),
  );
  const [flooded] = await outcomes({ op: 'flood', to: `${WEB}:443`, count: 400, most: 256 });
  const open = Number(/^open (\d+)$/.exec(flooded ?? '')?.[1]);
  assert.ok(open > 0 && open <= 256, `${flooded}`);
  await assertDenied({ protocol: 'tcp', address: WEB, port: 443, reason: 'too_many' });
  await eventually('the next connection is passed on', async () =>
    OPEN.test((await outcomes(hello({ names: ['web.example'] })))[0] ?? ''),
  );
  assert.equal(await runner.sh(NEIGHBOUR, 'cat /www/index.html'), 'secret\n');
});

function frame(bytes: Buffer): Probe {
  return { op: 'frame', hex: bytes.toString('hex') };
}

function addressBytes(address: string): Buffer {
  return Buffer.from(address.split('.').map(Number));
}

/** A datagram to the echo server of WEB, with a right checksum, from whom it likes. */
function udpFrame(mac: string, source: string, text: string): Buffer {
  const udp = Buffer.alloc(8 + text.length);
  udp.writeUInt16BE(40_000, 0);
  udp.writeUInt16BE(99, 2);
  udp.writeUInt16BE(udp.length, 4);
  udp.write(text, 8);
  const ip = Buffer.from('450000000000000040110000', 'hex');
  ip.writeUInt16BE(20 + udp.length, 2);
  const head = Buffer.concat([ip, addressBytes(source), addressBytes(WEB)]);
  let sum = 0;
  for (let at = 0; at < head.length; at += 2) sum += head.readUInt16BE(at);
  while (sum > 0xffff) sum = (sum & 0xffff) + (sum >> 16);
  head.writeUInt16BE(0xffff - sum, 10);
  return Buffer.concat([Buffer.from(`${GATEWAY_MAC}${mac}0800`, 'hex'), head, udp]);
}

/** Says that `address` is at the guest. @param operation 1 asks, 2 answers */
function arpFrame(operation: number, address: string): Buffer {
  const head = Buffer.from(`${GATEWAY_MAC}${GUEST_MAC}0806000108000604000${operation}${GUEST_MAC}`, 'hex');
  return Buffer.concat([
    head,
    addressBytes(address),
    Buffer.from(GATEWAY_MAC, 'hex'),
    addressBytes('172.16.0.1'),
  ]);
}
