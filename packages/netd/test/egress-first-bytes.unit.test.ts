import assert from 'node:assert/strict';
import { test } from 'node:test';
import { clientHello } from '@releap/testing/client-hello';
import * as fc from 'fast-check';
import { decide } from '../src/egress/decide.ts';
import { PEEK_MAX_BYTES, readFirstBytes } from '../src/egress/first-bytes.ts';
import { HttpRequestGuard } from '../src/egress/http-request-guard.ts';
import { ResolvedNames } from '../src/egress/resolved-names.ts';

test('a ClientHello is read however it is cut, and not before it is complete', () => {
  for (const recordBytes of [1, 7, 16_384]) {
    const bytes = clientHello({ names: ['Web.Example'], recordBytes });
    for (let length = 1; length < bytes.length; length += 1)
      assert.deepEqual(readFirstBytes(bytes.subarray(0, length)), { type: 'more' }, `${length}`);
    assert.deepEqual(readFirstBytes(bytes), { type: 'tls', host: 'web.example' });
    assert.deepEqual(readFirstBytes(Buffer.concat([bytes, Buffer.from([23, 3, 3, 0, 1, 0])])), {
      type: 'tls',
      host: 'web.example',
    });
  }
});

test('a hello without a name, with two, or with lengths that do not fit is told apart', () => {
  assert.deepEqual(readFirstBytes(clientHello()), { type: 'tls', host: undefined });
  assert.deepEqual(readFirstBytes(clientHello({ names: ['a.example', 'b.example'] })), { type: 'invalid' });
  const bytes = clientHello({ names: ['web.example'] });
  bytes.writeUInt8(255, 43);
  assert.deepEqual(readFirstBytes(bytes), { type: 'invalid' });
  assert.deepEqual(readFirstBytes(Buffer.from([22, 3, 1, 0, 0])), { type: 'invalid' });
});

test('whatever a guest sends is judged in the end, and never throws', () => {
  const starts = [[], [22, 3, 1], [...Buffer.from('GET / HTTP/1.1\r\nHost: ')]].map((start) =>
    Buffer.from(start),
  );
  fc.assert(
    fc.property(fc.constantFrom(...starts), fc.uint8Array({ maxLength: 300 }), (start, more) => {
      readFirstBytes(Buffer.concat([start, more]));
    }),
  );
  for (const byte of [0x41, 0x20, 22]) {
    const bytes = Buffer.alloc(PEEK_MAX_BYTES, byte);
    if (byte === 22) bytes.set([22, 3, 1, 0x40, 0, 1, 0, 0x7f, 0xff]);
    assert.notEqual(readFirstBytes(bytes).type, 'more');
  }
});

test('the host of a request is the same in its line and its only header', () => {
  const read = (head: string) => readFirstBytes(Buffer.from(`${head.replaceAll('\n', '\r\n')}\r\n\r\n`));
  assert.deepEqual(read('GET / HTTP/1.1\nhOST:  Web.example:8080 '), { type: 'http', host: 'web.example' });
  assert.deepEqual(read('GET http://web.example/ HTTP/1.1\nHost: web.example'), {
    type: 'http',
    host: 'web.example',
  });
  assert.deepEqual(read('GET / HTTP/1.0'), { type: 'http', host: undefined });
  for (const head of [
    'GET http://web.example@evil.example/ HTTP/1.1\nHost: web.example',
    'GET http://evil.example/ HTTP/1.1\nHost: web.example',
    'GET / HTTP/1.1\nHost : web.example',
    'GET / HTTP/1.1\nHost: web.example, evil.example',
    'GET  / HTTP/1.1\nHost: web.example',
  ])
    assert.deepEqual(read(head), { type: 'invalid' }, head);
  assert.deepEqual(readFirstBytes(Buffer.from('SSH-2.0-OpenSSH_9.2\r\n')), { type: 'other' });
});

test('requests of one connection are followed over their bodies, and another host is found however they are cut', () => {
  const crlf = (text: string): string => text.replaceAll('\n', '\r\n');
  const good = crlf(
    'POST / HTTP/1.1\nHost: web.example\nContent-Length: 5\n\nGET /' +
      'POST / HTTP/1.1\nHost: web.example\nTransfer-Encoding: chunked\n\n3;a=b\nabc\nA\n0123456789\n0\nX: y\n\n' +
      '\nGET /two HTTP/1.1\nHost: WEB.example\n\n',
  );
  const bad = crlf('GET / HTTP/1.1\nHost: evil.example\n\n');
  for (const size of [1, 2, 3, 7, 10_000]) {
    const follower = new HttpRequestGuard('web.example');
    const passed: Buffer[] = [];
    let refused: string | undefined;
    const bytes = Buffer.from(good + bad);
    for (let at = 0; at < bytes.length; at += size) {
      const answer = follower.push(bytes.subarray(at, at + size));
      if ('refuse' in answer) refused = answer.refuse;
      else passed.push(...answer.pass);
    }
    assert.equal(refused, 'evil.example');
    if (size === 1) assert.equal(Buffer.concat(passed).toString(), good);
  }
  const websocket = new HttpRequestGuard('web.example');
  const head = crlf('GET / HTTP/1.1\nHost: web.example\nConnection: Upgrade\nUpgrade: websocket\n\n');
  assert.ok('pass' in websocket.push(Buffer.concat([Buffer.from(head), Buffer.alloc(100_000, 0x81)])));
  for (const framing of [
    'Content-Length: 5\nContent-Length: 6',
    'Content-Length: 5\nTransfer-Encoding: chunked',
    'Transfer-Encoding: gzip, chunked',
    'Content-Length: +5',
  ]) {
    const smuggled = crlf(`POST / HTTP/1.1\nHost: web.example\n${framing}\n\n`);
    assert.ok('refuse' in new HttpRequestGuard('web.example').push(Buffer.from(smuggled)), framing);
  }
});

test('without a policy nothing is refused, and a host is known only where it was resolved to that address', async () => {
  const client = { vmId: 'vm', resolves: async (_name: string, address: string) => address === '192.0.2.1' };
  const first = { type: 'tls', host: 'api.example' } as const;
  assert.deepEqual(await decide(client, '192.0.2.1', first), {
    allow: true,
    host: 'api.example',
    only: false,
  });
  assert.deepEqual(await decide(client, '192.0.2.2', first), { allow: true });
});

test('names that were resolved are bounded, and the one that is asked for least goes first', () => {
  const names = new ResolvedNames();
  const one = [{ address: '192.0.2.1', seconds: 60 }];
  for (let index = 0; index < 3_000; index += 1) {
    names.add('kept.example', one);
    names.add(`n${index}.example`, one);
  }
  assert.equal(names.has('kept.example', '192.0.2.1'), true);
  assert.equal(names.has('kept.example', '192.0.2.2'), false);
  assert.equal(names.has('n0.example', '192.0.2.1'), false);
});
