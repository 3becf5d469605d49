/** The process of the engine, and what is in front of it. */
import assert from 'node:assert/strict';
import { randomBytes } from 'node:crypto';
import { once } from 'node:events';
import { readFile } from 'node:fs/promises';
import { connect } from 'node:net';
import { connect as connectHttp2, type IncomingHttpHeaders, type IncomingHttpStatusHeader } from 'node:http2';
import { join } from 'node:path';
import { buffer } from 'node:stream/consumers';
import { test } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import { connect as connectTls } from 'node:tls';
import { testAuthority } from '@releap/testing/certificates';
import { eventually } from '@releap/testing/eventually';
import { freePort } from '@releap/testing/ports';
import { DOMAIN, token } from '../support/preview-world.ts';
import { ENGINE, world, ports, call, route } from '../support/engine-world.ts';

test('an engine that ends is started again, and one that cannot be started is replaced by the gateway itself', async () => {
  const host = world.hostOf('public-killed');
  await route(host);
  const admin = join(world.folder, ENGINE, 'admin.sock');
  const processes = await readFile('/proc/self/task/self/children', 'utf8').catch(() => '');
  assert.equal(processes, '');
  const children = await readFile(`/proc/${process.pid}/task/${process.pid}/children`, 'utf8');
  let killed = 0;
  for (const pid of children.trim().split(' ')) {
    const text = await readFile(`/proc/${pid}/cmdline`, 'utf8').catch(() => '');
    if (!text.includes(`${join(world.folder, ENGINE)}/`)) continue;
    process.kill(Number(pid), 'SIGKILL');
    killed++;
  }
  assert.equal(killed, 1, admin);
  await eventually('an answer', async () => (await call(ports.engine, host)).status === 200);
  await route(host);

  const broken = await world.gateway('broken', {
    engine: { folder: join(world.folder, 'broken'), uid: 1, threads: -1 },
  });
  assert.equal(broken.previews?.isEngine, false);
  assert.equal((await call(broken.previews?.port ?? 0, host)).headers['x-guest'], 'yes');
});

test('HTTP/2 and TLS in front: requests, events and the sign-in of a browser; a renewed certificate is used', async () => {
  const authority = await testAuthority('previews');
  let issued = await authority.issue(`*.${DOMAIN}`);
  const secure = await world.gateway('secure', {
    isTls: true,
    engine: { ...world.engine('secure'), certificateMs: 50 },
    tls: {
      listen: { host: '127.0.0.1', port: await freePort() },
      load: async () => ({ certificate: issued.cert, key: issued.key }),
    },
  });
  assert.equal(secure.previews?.isEngine, true);
  const host = world.hostOf('private-h2');
  const session = connectHttp2(`https://127.0.0.1:${secure.tls?.port}`, {
    ca: authority.certificate,
    servername: host,
  });
  const request = async (headers: Record<string, string>, body?: Buffer) => {
    const stream = session.request({ ':authority': host, ...headers });
    stream.end(body);
    const [answer] = (await once(stream, 'response')) as [IncomingHttpHeaders & IncomingHttpStatusHeader];
    return { answer, body: await buffer(stream) };
  };
  try {
    const page = { accept: 'text/html', 'sec-fetch-mode': 'navigate' };
    const signIn = await request({ ':path': `/x?rlp_token=${token}`, ...page });
    assert.equal(signIn.answer['location'], `https://${host}/x`);
    const cookie = `__Host-rlp_preview=${token}`;
    assert.match(String(signIn.answer['set-cookie']), new RegExp(`^${cookie}; Path=/; HttpOnly`));
    const frame = { ...page, 'sec-fetch-dest': 'iframe', 'sec-fetch-site': 'cross-site' };
    const framed = await request({ ':path': `/x?rlp_token=${token}`, ...frame });
    const frameCookie = `__Host-rlp_preview_frame=${token}`;
    assert.equal(
      String(framed.answer['set-cookie']),
      `${frameCookie}; Path=/; HttpOnly; SameSite=None; Secure; Partitioned`,
    );
    const shown = await request({ ':path': '/x', ...frame, cookie: frameCookie });
    assert.deepEqual([shown.answer[':status'], world.seen.at(-1)?.headers.cookie], [200, undefined]);
    assert.equal((await request({ ':path': '/x', ...frame, cookie })).answer[':status'], 401);
    const foreign = { 'sec-fetch-site': 'cross-site', origin: 'https://dashboard.example' };
    assert.equal((await request({ ':path': '/x', ...foreign, cookie: frameCookie })).answer[':status'], 401);
    const before = await world.routed('secure');
    await eventually('a route for the frame', async () => {
      const own = { 'sec-fetch-site': 'same-origin', cookie: frameCookie };
      assert.equal((await request({ ':path': '/', ...own })).answer[':status'], 200);
      return (await world.routed('secure')) > before;
    });
    await eventually('a route', async () => {
      assert.equal((await request({ ':path': '/', cookie })).answer[':status'], 200);
      return (await world.routed('secure')) > before;
    });
    const body = randomBytes(1_000_000);
    const answers = await Promise.all(
      Array.from({ length: 8 }, () => request({ ':method': 'POST', ':path': '/', cookie, own: 'x' }, body)),
    );
    for (const answer of answers) assert.ok(answer.body.equals(body));
    const seen = world.seen.at(-1)?.headers;
    assert.deepEqual(
      [seen?.host, seen?.cookie, seen?.['x-forwarded-proto'], seen?.['x-forwarded-for']],
      [host, undefined, 'https', '127.0.0.1'],
    );
    assert.equal((await request({ ':path': '/' })).answer[':status'], 401);

    const serial = async (): Promise<string> => {
      const socket = connectTls({
        port: secure.tls?.port ?? 0,
        host: '127.0.0.1',
        rejectUnauthorized: false,
      });
      await once(socket, 'secureConnect');
      const { serialNumber } = socket.getPeerCertificate();
      socket.destroy();
      return serialNumber;
    };
    const first = await serial();
    issued = await authority.issue(`*.${DOMAIN}`);
    await eventually('the renewed certificate', async () => (await serial()) !== first);
    assert.equal((await request({ ':path': '/', cookie })).answer[':status'], 200, 'on the open connection');
  } finally {
    session.close();
  }
});

test('an address that opens as many connections as it can leaves some to others', async () => {
  const proxies = ['192.0.2.1'];
  const shared = await world.gateway(
    'shared',
    { engine: { ...world.engine('shared'), proxies } },
    { connections: 40 },
  );
  assert.equal(shared.previews?.isEngine, true);
  const port = shared.previews?.port ?? 0;
  const host = world.hostOf('public-shared');
  /** Undefined when the engine closes the connection without an answer. */
  const open = async (localAddress: string) => {
    const socket = connect({ host: '127.0.0.1', port, localAddress });
    socket.on('error', () => undefined);
    socket.write(`GET / HTTP/1.1\r\nHost: ${host}\r\n\r\n`);
    const answered = Promise.withResolvers<boolean>();
    socket.once('data', () => answered.resolve(true)).once('close', () => answered.resolve(false));
    return (await answered.promise) ? socket : undefined;
  };
  const flood = [];
  for (let socket = await open('127.0.0.1'); socket !== undefined; socket = await open('127.0.0.1'))
    flood.push(socket);
  assert.equal(flood.length, 20);
  const other = await open('127.0.0.2');
  assert.ok(other !== undefined);
  for (const socket of [...flood, other]) socket.destroy();
  await eventually('a place', async () => {
    const socket = await open('127.0.0.1');
    socket?.destroy();
    return socket !== undefined;
  });
});

test('a gateway that drains waits for requests that the engine has led past it', async () => {
  const host = world.hostOf('public-drained');
  const own = await world.gateway('drained');
  const port = own.previews?.port ?? 0;
  await eventually('a route', async () => {
    assert.equal((await call(port, host)).status, 200);
    return (await world.routed('drained')) > 0;
  });
  const finish = Promise.withResolvers<void>();
  world.serve = (_request, response) => {
    response.write('begin ');
    void finish.promise.then(() => response.end('end'));
  };
  world.seen = [];
  const answered = call(port, host);
  await eventually('the request', () => world.seen.length > 0);
  const drained = own.drain(60_000);
  let isOver = false;
  void drained.then(() => (isOver = true));
  await sleep(500);
  assert.equal(isOver, false);
  finish.resolve();
  assert.equal((await answered).body.toString(), 'begin end');
  await drained;
});
