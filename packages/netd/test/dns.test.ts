import assert from 'node:assert/strict';
import { createSocket, type Socket } from 'node:dgram';
import { once } from 'node:events';
import { createServer, type Server } from 'node:net';
import { after, before, beforeEach, mock, test } from 'node:test';
import * as fc from 'fast-check';
import dnsPacket, { type Answer, type Packet } from 'dns-packet';
import { cidrs, type NetdPin as Pin, parseEgress } from '@releap/contract/netd';
import { AnswerCache } from '../src/dns/answer-cache.ts';
import { DnsForwarder } from '../src/dns/forwarder.ts';
import { type NameServer, parseNameServer, parseResolvConf } from '@releap/contract/netd';
import { type DnsClient, Responder } from '../src/dns/responder.ts';
import { frame, FrameReader } from '../src/dns/tcp-frames.ts';
import type { Log } from '../src/log.ts';

const log: Log = { error: () => undefined, warn: () => undefined, info: () => undefined };
const stack = new AsyncDisposableStack();
/** What the upstream answers, by name; and what it was asked. */
const zone = new Map<string, Answer[] | 'truncated' | 'silent' | 'refused'>();
let asked: string[] = [];
let servers: NameServer[];
/** In the place of the deadlines of questions: none is over because the machine stalled. */
let deadline = new AbortController();

before(async () => {
  const { udp, tcp, port } = await bothAtOnePort();
  udp.on('message', (bytes, peer) => {
    const query = dnsPacket.decode(bytes);
    const entry = zone.get(query.questions?.[0]?.name ?? '');
    asked.push(`${query.questions?.[0]?.type} ${query.questions?.[0]?.name}`);
    if (entry === 'silent') return;
    // A forged answer that arrives first must be ignored: wrong id, and wrong question.
    const forged: Answer[] = [{ name: 'forged.example', type: 'A', ttl: 60, data: '203.0.113.66' }];
    udp.send(reply({ ...query, id: ((query.id ?? 0) + 1) % 65_536 }, forged), peer.port, peer.address);
    const other = [{ name: 'forged.example', type: 'A', class: 'IN' }];
    udp.send(reply({ ...query, questions: other }, forged), peer.port, peer.address);
    udp.send(reply(query, entry), peer.port, peer.address);
  });
  tcp.on('connection', (socket) => {
    const reader = new FrameReader();
    socket.on('data', (chunk) => {
      for (const message of reader.push(chunk)) {
        const query = dnsPacket.decode(message);
        const name = query.questions?.[0]?.name ?? '';
        const whole = frame(reply(query, [{ name, type: 'A', ttl: 60, data: '203.0.113.9' }]));
        socket.write(whole.subarray(0, 5));
        socket.write(whole.subarray(5));
      }
    });
  });
  stack.defer(() => void udp.close());
  stack.defer(() => void tcp.close());
  servers = [{ address: '127.0.0.1', port }];
});
before(() => void mock.method(AbortSignal, 'timeout', () => deadline.signal));
after(() => stack.disposeAsync());
beforeEach(() => {
  zone.clear();
  asked = [];
  deadline = new AbortController();
});

/** A port that is free for UDP may be taken for TCP. */
async function bothAtOnePort(): Promise<{ udp: Socket; tcp: Server; port: number }> {
  for (let tries = 20; ; tries -= 1) {
    const udp = createSocket('udp4');
    const tcp = createServer();
    udp.bind(0, '127.0.0.1');
    await once(udp, 'listening');
    const { port } = udp.address();
    try {
      tcp.listen(port, '127.0.0.1');
      await once(tcp, 'listening');
      return { udp, tcp, port };
    } catch (error) {
      udp.close();
      if (tries === 0) throw error;
    }
  }
}

function reply(query: Packet, entry: Answer[] | string | undefined): Buffer {
  const code = entry === undefined ? 3 : entry === 'refused' ? 5 : 0;
  const flags = code | (entry === 'truncated' ? dnsPacket.TRUNCATED_RESPONSE : 0);
  const answers = Array.isArray(entry) ? entry : [];
  return dnsPacket.encode({
    id: query.id ?? 0,
    type: 'response',
    flags,
    questions: query.questions ?? [],
    answers,
  });
}

function client(...allow: string[]): DnsClient & { pins: Pin[] } {
  const pins: Pin[] = [];
  const rules = allow.length === 0 ? undefined : parseEgress({ enabled: true, allow }, cidrs(['10.0.0.0/8']));
  return {
    vmId: 'vm',
    ...(rules === undefined ? {} : { rules }),
    pins,
    pin: async (more) => void pins.push(...more),
    resolved: () => undefined,
    deny: () => undefined,
  };
}

async function ask(who: DnsClient, name: string, type = 'A', responder = new Responder(servers, log)) {
  const message = dnsPacket.encode({
    id: 7,
    type: 'query',
    flags: 256,
    questions: [{ name, type, class: 'IN' }],
  });
  const answer = await responder.respond(message, who);
  assert.ok(answer !== undefined);
  const packet = dnsPacket.decode(answer);
  assert.equal(packet.id, 7);
  return { rcode: packet.rcode, data: (packet.answers ?? []).map((record) => record.data), packet };
}

test('an answer follows its aliases, and no unrelated record is trusted or pinned', async () => {
  zone.set('www.example', [
    { name: 'other.example', type: 'A', ttl: 60, data: '203.0.113.5' },
    { name: 'WWW.example', type: 'CNAME', ttl: 60, data: 'Edge.example' },
    { name: 'edge.example', type: 'A', ttl: 10, data: '203.0.113.6' },
    { name: 'edge.example', type: 'A', ttl: 100_000, data: '203.0.113.7' },
  ]);
  const bound = client('www.example');
  const { rcode, data } = await ask(bound, 'www.example');
  assert.equal(rcode, 'NOERROR');
  assert.deepEqual(data, ['Edge.example', '203.0.113.6', '203.0.113.7']);
  assert.deepEqual(bound.pins, [
    { address: '203.0.113.6', seconds: 120 },
    { address: '203.0.113.7', seconds: 3660 },
  ]);
});

test('a name outside the policy is answered without asking a resolver', async () => {
  const { rcode } = await ask(client('www.example'), 'evil.example');
  assert.equal(rcode, 'NXDOMAIN');
  assert.deepEqual(asked, []);
});

test('data cannot leave through the labels of a name that only looks allowed', async () => {
  for (const name of ['secret.www.example', 'www.example.evil', 'xwww.example']) {
    assert.equal((await ask(client('www.example'), name)).rcode, 'NXDOMAIN');
  }
  assert.deepEqual(asked, []);
});

test('types that contain other addresses are answered empty', async () => {
  zone.set('www.example', [{ name: 'www.example', type: 'A', ttl: 60, data: '203.0.113.6' }]);
  for (const type of ['AAAA', 'UNKNOWN_65', 'UNKNOWN_64']) {
    assert.deepEqual((await ask(client(), 'www.example', type)).data, []);
  }
  assert.equal((await ask(client(), 'www.example', 'ANY')).rcode, 'REFUSED');
  assert.deepEqual(asked, []);
});

test('a private answer to a public name is left out', async () => {
  zone.set('mixed.example', [
    { name: 'mixed.example', type: 'A', ttl: 60, data: '10.0.0.1' },
    { name: 'mixed.example', type: 'A', ttl: 60, data: '203.0.113.6' },
  ]);
  zone.set('inner.example', [{ name: 'inner.example', type: 'A', ttl: 60, data: '127.0.0.1' }]);
  assert.deepEqual((await ask(client(), 'mixed.example')).data, ['203.0.113.6']);
  assert.equal((await ask(client(), 'inner.example')).rcode, 'NXDOMAIN');
  const named = client('10.0.0.0/8', 'mixed.example');
  assert.deepEqual((await ask(named, 'mixed.example')).data, ['10.0.0.1', '203.0.113.6']);
  assert.deepEqual(
    named.pins.map((pin) => pin.address),
    ['203.0.113.6'],
  );
});

test('an address that cannot be pinned is not given out', async () => {
  zone.set('www.example', [{ name: 'www.example', type: 'A', ttl: 60, data: '203.0.113.6' }]);
  const full: DnsClient = { ...client('www.example'), pin: () => Promise.reject(new Error('set is full')) };
  assert.deepEqual((await ask(full, 'www.example')).rcode, 'SERVFAIL');
});

test('a truncated upstream answer is asked for again over TCP, a refusal is a failure', async () => {
  zone.set('long.example', 'truncated');
  assert.deepEqual((await ask(client(), 'long.example')).data, ['203.0.113.9']);
  zone.set('no.example', 'refused');
  assert.equal((await ask(client(), 'no.example')).rcode, 'SERVFAIL');
});

test('queries for the same name share one upstream query, and the answer is cached', async () => {
  zone.set('www.example', [{ name: 'www.example', type: 'A', ttl: 60, data: '203.0.113.6' }]);
  const responder = new Responder(servers, log);
  await Promise.all(Array.from({ length: 20 }, () => ask(client(), 'www.example', 'A', responder)));
  await ask(client(), 'www.example', 'A', responder);
  assert.deepEqual(asked, ['A www.example']);
});

test('one sandbox cannot use up the queries of all', async () => {
  zone.set('slow.example', 'silent');
  const responder = new Responder(servers, log);
  const greedy = client();
  const many = Array.from({ length: 64 }, () => ask(greedy, 'slow.example', 'A', responder));
  assert.equal((await ask(greedy, 'www.example', 'A', responder)).rcode, 'SERVFAIL');
  zone.set('www.example', [{ name: 'www.example', type: 'A', ttl: 60, data: '203.0.113.6' }]);
  assert.deepEqual((await ask(client(), 'www.example', 'A', responder)).data, ['203.0.113.6']);
  deadline.abort();
  for (const answer of await Promise.all(many)) assert.equal(answer.rcode, 'SERVFAIL');
});

test('no bytes that a guest sends make the responder throw', async () => {
  const responder = new Responder([], log);
  await fc.assert(
    fc.asyncProperty(fc.uint8Array({ maxLength: 80 }), async (bytes) => {
      await responder.respond(Buffer.from(bytes), client('www.example'));
    }),
  );
  const valid = dnsPacket.encode({
    id: 1,
    type: 'query',
    flags: 0,
    questions: [{ name: 'a.example', type: 'A', class: 'IN' }],
  });
  await fc.assert(
    fc.asyncProperty(fc.nat(valid.length - 1), fc.nat(255), async (at, value) => {
      const bytes = Buffer.from(valid);
      bytes[at] = value;
      await responder.respond(bytes, client('www.example'));
    }),
  );
});

test('frames are found however the stream is cut', () => {
  fc.assert(
    fc.property(
      fc.array(fc.uint8Array({ maxLength: 40 })),
      fc.integer({ min: 1, max: 9 }),
      (messages, cut) => {
        const stream = Buffer.concat(messages.map((message) => frame(Buffer.from(message))));
        const reader = new FrameReader();
        const found: Buffer[] = [];
        for (let at = 0; at < stream.length; at += cut)
          found.push(...reader.push(stream.subarray(at, at + cut)));
        assert.deepEqual(
          found.map((message) => [...message]),
          messages.map((message) => [...message]),
        );
      },
    ),
  );
});

test('a cached answer ages and expires at its shortest TTL', () => {
  const cache = new AnswerCache();
  const answers = [{ name: 'a', type: 'A', ttl: 30, data: '203.0.113.1' }];
  cache.set('A a', { rcode: 'NOERROR', answers }, 0);
  assert.equal(cache.get('A a', 10_000)?.answers[0]?.ttl, 20);
  assert.equal(cache.get('A a', 30_000), undefined);
});

test('name servers come from resolv.conf or from the configuration, which is checked', () => {
  assert.deepEqual(
    parseResolvConf('# x\nsearch a\nnameserver 10.0.0.1\n nameserver fe80::1%eth0\nnameserver bad\n'),
    [
      { address: '10.0.0.1', port: 53 },
      { address: 'fe80::1%eth0', port: 53 },
    ],
  );
  assert.deepEqual(parseNameServer('1.2.3.4'), { address: '1.2.3.4', port: 53 });
  assert.deepEqual(parseNameServer('[::1]:5353'), { address: '::1', port: 5353 });
  assert.deepEqual(parseNameServer('::1'), { address: '::1', port: 53 });
  for (const text of ['dns.example', '1.2.3.4:0', '1.2.3.4:99999', '']) {
    assert.throws(() => parseNameServer(text), /must be an IP address/);
  }
});

test('a sender that is no sandbox gets no answer, and closing ends open connections', async () => {
  const forwarder = await DnsForwarder.open({
    address: '127.0.0.1',
    servers,
    clientOf: () => undefined,
    log,
  });
  const socket = createSocket('udp4');
  socket.on('message', () => assert.fail('a stranger was answered'));
  const question = dnsPacket.encode({
    id: 1,
    type: 'query',
    flags: 0,
    questions: [{ name: 'a', type: 'A', class: 'IN' }],
  });
  await new Promise((resolve) => socket.send(question, forwarder.port, '127.0.0.1', resolve));
  await forwarder.close();
  socket.close();
});

test('a header that announces thousands of records is refused without allocating memory for them', async () => {
  const responder = new Responder(servers, log);
  for (const at of [4, 6, 8, 10]) {
    const message = Buffer.alloc(12);
    message.writeUInt16BE(7, 0);
    message.writeUInt16BE(1, 4);
    message.writeUInt16BE(0xffff, at);
    const before = process.memoryUsage().heapUsed;
    const answer = await responder.respond(message, client());
    assert.ok(process.memoryUsage().heapUsed - before < 1_000_000);
    assert.equal(dnsPacket.decode(answer ?? assert.fail()).rcode, 'FORMERR');
  }
  assert.equal(await responder.respond(Buffer.alloc(11), client()), undefined);
});

test('a sandbox that floods the name server is left without answers, and its neighbour is answered', async () => {
  zone.set('web.example', [{ name: 'web.example', type: 'A', ttl: 60, data: '203.0.113.1' }]);
  const responder = new Responder(servers, log);
  const [flooding, neighbour] = [client(), client()];
  assert.equal((await ask(neighbour, 'web.example', 'A', responder)).rcode, 'NOERROR');
  const message = dnsPacket.encode({
    id: 7,
    type: 'query',
    flags: 256,
    questions: [{ name: 'web.example', type: 'A', class: 'IN' }],
  });
  const answers = await Promise.all(
    Array.from({ length: 5_000 }, () => responder.respond(message, flooding)),
  );
  const answered = answers.filter((answer) => answer !== undefined).length;
  assert.ok(answered < 2_000, `${answered} of 5000 were answered`);
  for (let n = 0; n < 50; n++) {
    assert.equal((await ask(neighbour, 'web.example', 'A', responder)).rcode, 'NOERROR');
  }
});

test('a sandbox that is denied repeatedly fills no log', async () => {
  let lines = 0;
  const counting: Log = { ...log, info: () => void (lines += 1) };
  const responder = new Responder(servers, counting);
  const who = client('allowed.example');
  for (let n = 0; n < 300; n++) await ask(who, `n${n}.denied.example`, 'A', responder);
  assert.ok(lines > 0 && lines <= 25, `${lines} lines`);
});

test('a sandbox that joins a pending query gets no more answers than the one that sent it', async () => {
  const many = Array.from({ length: 250 }, (_, n) => ({
    name: 'many.example',
    type: 'A',
    ttl: 60,
    data: `203.0.113.${n}`,
  }));
  const responder = new Responder(servers, log);
  zone.set('many.example', many);
  const message = dnsPacket.encode({
    id: 7,
    type: 'query',
    flags: 256,
    questions: [{ name: 'many.example', type: 'A', class: 'IN' }],
  });
  const answers = await Promise.all([1, 2, 3].map(() => responder.respond(message, client(), 65_535)));
  const counts = answers.map((answer) => dnsPacket.decode(answer ?? assert.fail()).answers?.length);
  assert.deepEqual(counts, [100, 100, 100]);
});
