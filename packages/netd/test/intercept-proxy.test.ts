import assert from 'node:assert/strict';
import { createHash, randomBytes } from 'node:crypto';
import { once } from 'node:events';
import type { Duplex } from 'node:stream';
import { after, before, beforeEach, describe, it } from 'node:test';
import type { TLSSocket } from 'node:tls';
import {
  brotliCompressSync,
  brotliDecompressSync,
  deflateSync,
  gunzipSync,
  gzipSync,
  inflateSync,
  zstdCompressSync,
  zstdDecompressSync,
} from 'node:zlib';
import { eventually } from '@releap/testing/eventually';
import { HOST, startInterceptor, VM, type Interceptor } from './support/intercepted.ts';

const TOKEN = `rlps_${'T0kn'.repeat(11).slice(0, 43)}`;
/** Inherited from the source of a fork. */
const OLD = `rlps_${'O1d'.repeat(15).slice(0, 43)}`;
const FOREIGN = `rlps_${'F0r'.repeat(15).slice(0, 43)}`;
const VALUE = 'sk_live_"4d7a/c1f0+';
const sha256 = (text: string): string => createHash('sha256').update(text).digest('hex');

let world: Interceptor;
before(async () => {
  world = await startInterceptor();
});
after(async () => world[Symbol.asyncDispose]());
beforeEach(() => {
  world.received.length = 0;
  world.logged.length = 0;
  world.state.answer = { status: 200, headers: {}, body: ['ok'] };
  world.proxy.remove(VM);
  world.put(
    {
      value: VALUE,
      allowed_domains: [HOST],
      allow_http: true,
      placeholders: [sha256(TOKEN), sha256(OLD)],
      placeholder: TOKEN,
    },
    {
      value: 'value-for-another-domain',
      allowed_domains: ['another.example'],
      placeholders: [sha256(FOREIGN)],
      placeholder: FOREIGN,
    },
  );
});

describe('a secret that does not allow plain HTTP', () => {
  const asPut = { value: VALUE, allowed_domains: [HOST], placeholders: [sha256(TOKEN)], placeholder: TOKEN };

  it('is sent over TLS', async () => {
    world.put(asPut);
    const { status } = await world.call({ headers: { 'x-key': TOKEN } });
    assert.equal(status, 200);
    assert.equal(world.received[0]?.headers['x-key'], VALUE);
  });

  it('is not sent over plain HTTP, wherever its placeholder is: the request is refused, and the reason told', async () => {
    world.put(asPut);
    for (const over of [
      { headers: { 'x-key': TOKEN } },
      { headers: { authorization: `Basic ${Buffer.from(`user:${TOKEN}`).toString('base64')}` } },
      { path: `/${TOKEN}` },
      { method: 'POST', body: [`{"a":"${TOKEN}"}`] },
      { method: 'POST', headers: { 'content-encoding': 'gzip' }, body: [gzipSync(TOKEN)] },
    ]) {
      const { status, body } = await world.call({ tls: false, ...over });
      assert.equal(status, 403, JSON.stringify(over));
      assert.match(body, /use https:\/\/, or set allow_http of the secret/);
    }
    assert.ok(world.received.every((got) => !JSON.stringify(got).includes('sk_live')));
    // What has no placeholder passes, and a secret for other domains is none here.
    const foreign = { ...asPut, allowed_domains: ['another.example'] };
    world.put(foreign);
    assert.equal((await world.call({ tls: false, headers: { 'x-key': TOKEN } })).status, 200);
  });
});

for (const tls of [true, false])
  describe(tls ? 'intercepted HTTPS' : 'plain HTTP', () => {
    it('replaces in fields, Basic credentials, path and query, and only what may go there', async () => {
      const answer = await world.call({
        tls,
        path: `/v1/${TOKEN}/x?key=${OLD}&other=${FOREIGN}`,
        headers: {
          authorization: `Bearer ${TOKEN}`,
          'x-basic': `Basic ${Buffer.from(`user:${TOKEN}`).toString('base64')}`,
          'x-foreign': FOREIGN,
          'x-unknown': `rlps_${'z'.repeat(43)}`,
          'accept-encoding': 'gzip',
        },
      });
      assert.equal(answer.status, 200, answer.body);
      const [got] = world.received;
      assert.ok(got);
      assert.equal(got.headers.authorization, `Bearer ${VALUE}`);
      assert.equal(got.headers['x-basic'], `Basic ${Buffer.from(`user:${VALUE}`).toString('base64')}`);
      assert.equal(got.headers['x-foreign'], FOREIGN);
      assert.equal(got.headers['x-unknown'], `rlps_${'z'.repeat(43)}`);
      assert.equal(got.headers['accept-encoding'], 'identity');
      assert.equal(got.headers.host, HOST);
      assert.equal(got.url, `/v1/sk_live_%224d7a/c1f0+/x?key=${encodeURIComponent(VALUE)}&other=${FOREIGN}`);
    });

    it('replaces in bodies: of known length, chunked and split anywhere; with the right length', async () => {
      const body = `{"a":"${TOKEN}","b":"${FOREIGN}"}`;
      const filled = `{"a":${JSON.stringify(VALUE)},"b":"${FOREIGN}"}`;
      const json = { 'content-type': 'application/json' };
      const parts = [body.slice(0, 9), body.slice(9, 30), body.slice(30)];
      await world.call({
        tls,
        method: 'POST',
        headers: { ...json, 'content-length': String(body.length) },
        body: parts,
      });
      await world.call({
        tls,
        method: 'POST',
        headers: { ...json, 'transfer-encoding': 'chunked' },
        body: parts,
      });
      assert.deepEqual(
        world.received.map((one) => one.body),
        [filled, filled],
      );
      assert.equal(world.received[0]?.headers['content-length'], String(filled.length));
      assert.equal(world.received[1]?.headers['transfer-encoding'], 'chunked');
      const form = { 'content-type': 'application/x-www-form-urlencoded' };
      await world.call({ tls, method: 'POST', headers: form, body: [`k=${TOKEN}&x=1`] });
      assert.equal(world.received[2]?.body, `k=${encodeURIComponent(VALUE)}&x=1`);
    });

    it('replaces in compressed bodies, held and streamed, and keeps their coding', async () => {
      const text = `{"a":"${TOKEN}"}`;
      const filled = `{"a":${JSON.stringify(VALUE)}}`;
      for (const [coding, pack, unpack] of [
        ['gzip', gzipSync, gunzipSync],
        ['deflate', deflateSync, inflateSync],
        ['br', brotliCompressSync, brotliDecompressSync],
        ['zstd', zstdCompressSync, zstdDecompressSync],
      ] as const) {
        const packed = pack(text);
        const headers = { 'content-type': 'application/json', 'content-encoding': coding };
        const half = packed.length / 2;
        const parts = [packed.subarray(0, half), packed.subarray(half)];
        await world.call({
          tls,
          method: 'PUT',
          headers: { ...headers, 'content-length': String(packed.length) },
          body: parts,
        });
        await world.call({ tls, method: 'PUT', headers, body: parts });
        for (const got of world.received.splice(0)) {
          assert.equal(unpack(Buffer.from(got.body, 'latin1')).toString(), filled, coding);
          assert.equal(got.headers['content-encoding'], coding);
          if (got.headers['content-length'] !== undefined)
            assert.equal(got.headers['content-length'], String(got.body.length));
        }
      }
    });

    it('leaves bodies without placeholders, of unknown codings, and that are not of their coding, as they are', async () => {
      const plain = gzipSync('nothing of it');
      for (const [coding, body] of [
        ['gzip', plain],
        ['gzip', Buffer.from(`not gzip ${TOKEN}`)],
        ['compress', Buffer.from(TOKEN)],
        ['gzip, br', gzipSync(TOKEN)],
      ] as const)
        await world.call({
          tls,
          method: 'PUT',
          headers: { 'content-encoding': coding, 'content-length': String(body.length) },
          body: [body],
        });
      const bodies = world.received.map((one) => one.body);
      assert.equal(bodies.length, 4);
      assert.equal(bodies[0], plain.toString('latin1'));
      assert.equal(bodies[1], `not gzip ${TOKEN}`);
      assert.equal(bodies[2], TOKEN);
      assert.equal(gunzipSync(Buffer.from(bodies[3] ?? '', 'latin1')).toString(), TOKEN);
      const streamed = await world.call({
        tls,
        method: 'PUT',
        headers: { 'content-encoding': 'gzip' },
        body: ['not gzip'],
      });
      assert.deepEqual(
        [streamed.status, streamed.body],
        [400, 'releap: the body of the request is not gzip\n'],
      );
    });

    it('long bodies of known length are sent chunked if a placeholder begins in their first MiB, else as they are', async () => {
      const rest = '.'.repeat(1024 * 1024);
      const send = async (body: string, headers: Record<string, string> = {}): Promise<void> => {
        const bytes = Buffer.from(body, 'latin1');
        const sized = { ...headers, 'content-length': String(bytes.length) };
        // A cut in the placeholder of the first.
        await world.call({
          tls,
          method: 'PUT',
          headers: sized,
          body: [bytes.subarray(0, 20), bytes.subarray(20)],
        });
      };
      await send(`${TOKEN}${rest}${OLD}`);
      await send(`${rest}${TOKEN}`);
      const noise = randomBytes(1_500_000).toString('latin1');
      const packed = gzipSync(Buffer.from(`${TOKEN}${noise}${TOKEN}`, 'latin1')).toString('latin1');
      await send(packed, { 'content-encoding': 'gzip' });
      const [early, late, compressed] = world.received;
      assert.ok(early?.body === `${VALUE}${rest}${VALUE}`);
      assert.equal(early.headers['transfer-encoding'], 'chunked');
      assert.equal(early.headers['content-length'], undefined);
      assert.ok(late?.body === `${rest}${TOKEN}`);
      assert.equal(late.headers['content-length'], String(late.body.length));
      const opened = gunzipSync(Buffer.from(compressed?.body ?? '', 'latin1')).toString('latin1');
      assert.ok(opened === `${VALUE}${noise}${VALUE}`);
    });

    it('scrubs compressed responses, which arrive without their coding', async () => {
      const text = `<${VALUE}>`;
      for (const [coding, pack] of [
        ['gzip', gzipSync],
        ['deflate', deflateSync],
        ['br', brotliCompressSync],
        ['zstd', zstdCompressSync],
      ] as const) {
        const packed = pack(text);
        const half = packed.length / 2;
        world.state.answer = {
          status: 200,
          headers: { 'content-encoding': coding, 'content-length': String(packed.length) },
          body: [packed.subarray(0, half), packed.subarray(half)],
        };
        const answer = await world.call({ tls, headers: { 'accept-encoding': coding } });
        assert.deepEqual(
          [answer.body, answer.headers['content-encoding']],
          [`<${TOKEN}>`, undefined],
          coding,
        );
      }
      // Part of a compressed body, and what cannot be opened, is passed on.
      world.state.answer = {
        status: 206,
        headers: { 'content-encoding': 'gzip' },
        body: [gzipSync(text).subarray(9)],
      };
      assert.equal((await world.call({ tls })).headers['content-encoding'], 'gzip');
    });

    it('scrubs responses, also on another path and in a redirect; the value never reaches the guest', async () => {
      const half = VALUE.length / 2;
      const split = [`<${VALUE.slice(0, half)}`, `${VALUE.slice(half)}>`];
      world.state.answer = {
        status: 302,
        headers: { location: `https://evil.example/?k=${encodeURIComponent(VALUE)}`, 'x-echo': VALUE },
        body: split,
      };
      const chunked = await world.call({ tls });
      assert.equal(chunked.status, 302);
      assert.equal(chunked.headers.location, `https://evil.example/?k=${TOKEN}`);
      assert.equal(chunked.headers['x-echo'], TOKEN);
      assert.equal(chunked.body, `<${TOKEN}>`);
      world.state.answer.headers = { 'content-length': String(VALUE.length + 2) };
      const sized = await world.call({ tls });
      assert.equal(sized.body, `<${TOKEN}>`);
      assert.equal(sized.headers['content-length'], String(TOKEN.length + 2));
      // Too long to be held: the length stays, and the placeholder is cut to it.
      const filler = '.'.repeat(300 * 1024);
      world.state.answer.body = [...split, filler];
      world.state.answer.headers = { 'content-length': String(VALUE.length + 2 + filler.length) };
      const long = await world.call({ tls });
      assert.equal(long.body, `<${TOKEN.slice(0, VALUE.length)}>${filler}`);
      world.state.answer = { status: 200, headers: {}, body: [] };
      const head = await world.call({ tls, method: 'HEAD' });
      assert.equal(head.status, 200);
    });

    it('lets WebSockets through, with the head replaced', async () => {
      const socket = await world.open(tls);
      socket.write(
        `GET /ws?t=${TOKEN} HTTP/1.1\r\nHost: ${HOST}\r\nX-Key: ${TOKEN}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n`,
      );
      let text = '';
      socket.on('data', (chunk: Buffer) => {
        text += chunk.toString('latin1');
        if (text.endsWith('\r\n\r\n')) socket.write(`frames ${TOKEN}`);
        if (text.endsWith(TOKEN)) socket.end();
      });
      await once(socket, 'close');
      assert.match(text, /^HTTP\/1\.1 101 .*frames rlps_/s);
      assert.equal(world.received[0]?.url, `/ws?t=${encodeURIComponent(VALUE)}`);
      assert.equal(world.received[0].headers['x-key'], VALUE);
      // The server repeats the value in the head of its answer.
      assert.match(text, new RegExp(`\r\nx-echo: ${TOKEN}\r\n`, 'i'));
    });

    it('refuses ambiguous framing, other authorities and CONNECT, and sends nothing on', async () => {
      const head = `Host: ${HOST}\r\nX: ${TOKEN}\r\n`;
      for (const bytes of [
        `POST / HTTP/1.1\r\n${head}Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n`,
        `POST / HTTP/1.1\r\n${head}Content-Length: 4\r\nContent-Length: 5\r\n\r\nabcd`,
        `POST / HTTP/1.1\r\n${head}Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n`,
        `POST / HTTP/1.1\r\n${head}Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n`,
        `POST / HTTP/1.1\r\n${head}Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n`,
        `GET / HTTP/1.1\r\n${head}Host: evil.example\r\n\r\n`,
        `GET / HTTP/1.1\r\nHost: evil.example\r\nX: ${TOKEN}\r\n\r\n`,
        `GET / HTTP/1.1\r\nX: ${TOKEN}\r\n\r\n`,
        `GET https://evil.example/ HTTP/1.1\r\n${head}\r\n`,
        `GET //x HTTP/1.1\r\nHost: user@${HOST}\r\n\r\n`,
        `CONNECT evil.example:443 HTTP/1.1\r\n${head}\r\n`,
        `TRACE / HTTP/1.1\r\n${head}\r\n`,
        `GET / HTTP/1.1\r\n${head} folded: x\r\n\r\n`,
        `GET / HTTP/1.1\nHost: ${HOST}\n\n`,
        `PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n`,
      ]) {
        const text = await world.raw(bytes, tls);
        assert.doesNotMatch(text, /^HTTP\/1\.1 [123]/, bytes);
      }
      assert.deepEqual(world.received, []);
    });

    it('keeps connections on both sides', async () => {
      // Idle ones are closed after four seconds: on a machine that stalls for that long it is tried again.
      await eventually('one connection for all requests', async () => {
        const before = world.state.connections;
        world.received.length = 0;
        const socket = await world.open(tls);
        let text = '';
        socket.on('data', (chunk: Buffer) => (text += chunk.toString('latin1')));
        for (let round = 1; round <= 5; round++) {
          socket.write(`GET /${round} HTTP/1.1\r\nHost: ${HOST}\r\n\r\n`);
          while (text.split('HTTP/1.1 200').length <= round) await once(socket, 'data');
        }
        socket.destroy();
        assert.equal(world.received.length, 5);
        return world.state.connections - before <= 1;
      });
    });
  });

describe('servers and connections', () => {
  it('a server without a valid certificate for the name gets nothing', async () => {
    world.put({ value: VALUE, allowed_domains: ['other.example'], placeholders: [sha256(TOKEN)] });
    const answer = await world.call({ host: 'other.example', headers: { authorization: TOKEN } });
    assert.equal(answer.status, 502);
    assert.match(answer.body, /the connection to other\.example failed: ERR_TLS_CERT_ALTNAME_INVALID/);
    assert.deepEqual(world.received, []);
    assert.ok(world.logged.some((line) => line.includes('ERR_TLS_CERT_ALTNAME_INVALID')));
    assert.ok(!world.logged.join().includes(VALUE));
  });

  it('a value of several lines stays out of fields, and new values are used by open connections', async () => {
    const put = (value: string): void =>
      world.put({ value, allowed_domains: [HOST], placeholders: [sha256(TOKEN)], placeholder: TOKEN });
    put('two\nlines');
    await world.call({ method: 'POST', headers: { 'x-key': TOKEN }, body: [TOKEN] });
    assert.equal(world.received[0]?.headers['x-key'], TOKEN);
    assert.equal(world.received[0].body, 'two\nlines');
    const socket = await world.open(true);
    let text = '';
    socket.on('data', (chunk: Buffer) => (text += chunk.toString('latin1')));
    for (const value of ['value-one', 'value-two']) {
      put(value);
      text = '';
      socket.write(`GET / HTTP/1.1\r\nHost: ${HOST}\r\nX-Key: ${TOKEN}\r\n\r\n`);
      while (!text.endsWith('\r\n0\r\n\r\n')) await once(socket, 'data');
    }
    socket.destroy();
    assert.deepEqual(
      world.received.slice(1).map((one) => one.headers['x-key']),
      ['value-one', 'value-two'],
    );
  });

  it('a new intermediate, of the next root, is used by new connections, and open ones continue', async () => {
    const rootOf = (socket: Duplex): string => {
      let certificate = (socket as TLSSocket).getPeerCertificate(true);
      while (certificate.issuerCertificate.fingerprint256 !== certificate.fingerprint256)
        certificate = certificate.issuerCertificate;
      return certificate.subject.CN;
    };
    const socket = await world.open(true);
    let text = '';
    socket.on('data', (chunk: Buffer) => (text += chunk.toString('latin1')));
    const request = async (): Promise<void> => {
      text = '';
      socket.write(`GET / HTTP/1.1\r\nHost: ${HOST}\r\n\r\n`);
      while (!text.endsWith('\r\n0\r\n\r\n')) await once(socket, 'data');
    };
    await request();
    assert.equal(rootOf(socket), 'guests');
    await world.renewIntermediate();
    await request();
    const later = await world.open(true);
    assert.equal(rootOf(later), 'the next root');
    for (const one of [socket, later]) one.destroy();
    assert.equal(world.received.length, 2);
  });

  it('another name in the handshake than that of the connection is refused', async () => {
    await assert.rejects(world.open(true, HOST, { host: 'www.example.com' }));
    assert.deepEqual(world.received, []);
  });
});
