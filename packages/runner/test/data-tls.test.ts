/** The data server for other machines: who is let in, and what changes while connections are open. */
import assert from 'node:assert/strict';
import { randomUUID } from 'node:crypto';
import { once } from 'node:events';
import { rm, writeFile } from 'node:fs/promises';
import http from 'node:http';
import { connect, type Socket } from 'node:net';
import { join } from 'node:path';
import { text } from 'node:stream/consumers';
import { after, before, describe, test } from 'node:test';
import { connect as connectTls, type ConnectionOptions } from 'node:tls';
import { DataHosts, type HostCertificate, hostName, runnerOfHome } from '@releap/certificates/hosts';
import { PORT_STREAM_PROTOCOL } from '@releap/contract';
import { until } from '@releap/testing/eventually';
import { TestAuthority } from '@releap/testing/host-authority';
import { quiet as log } from '@releap/testing/logging';
import { temporaryFolder } from '@releap/testing/temporary-folder';
import { Registry } from 'prom-client';
import { type DataServer, startDataServer } from '../src/data/data-server.ts';
import { routeUpgrades } from '../src/data/upgrades.ts';
import { echoRoute } from './support/echo-route.ts';

const RUNNER = randomUUID();
const TOKEN = 'data-token';

/** Of the route that answers when a test says so. */
const held = { begun: Promise.withResolvers<void>(), answer: Promise.withResolvers<string>() };

let folder: string;
let authority: TestAuthority;
let certificate: HostCertificate;
let data: DataServer;
before(async () => {
  folder = await temporaryFolder('releap-data-tls-');
  authority = await TestAuthority.create();
  certificate = await authority.certificate({ role: 'runner', id: RUNNER });
  data = await start(certificate);
});
after(async () => {
  await data.close();
  certificate.close();
  await rm(folder, { recursive: true, force: true });
});

async function start(
  shown: Pick<HostCertificate, 'current' | 'onChange'>,
  handshakeMs = 10_000,
): Promise<DataServer> {
  return await startDataServer({
    socketPath: join(folder, `${randomUUID()}.sock`),
    tls: { host: '127.0.0.1', port: 0, certificate: shown, handshakeMs },
    verify: async (token) => token === TOKEN,
    metrics: new Registry(),
    register(app) {
      routeUpgrades(app);
      app.get('/vms/:id/hello', () => 'hello');
      app.get('/vms/:id/held', () => {
        held.begun.resolve();
        return held.answer.promise;
      });
      echoRoute(app);
    },
    log,
  });
}

const hostOf = (shown: HostCertificate, runnerId = RUNNER, dataUrl = data.url) =>
  new DataHosts({ certificate: shown }).of({ runnerId, dataUrl });

interface Answer {
  status: number;
  body: string;
}

async function ask(socket: Socket, path = '/vms/box/hello', token = TOKEN): Promise<Answer> {
  const request = http.get({
    createConnection: () => socket,
    path,
    headers: { host: 'runner', authorization: `Bearer ${token}` },
  });
  const [answer] = (await once(request, 'response')) as [http.IncomingMessage];
  return { status: answer.statusCode ?? 0, body: await text(answer) };
}

/** What becomes of a client that is to be refused, during the handshake or after it. */
async function refusal(options: ConnectionOptions): Promise<string> {
  const { port } = new URL(data.url);
  const socket = connectTls({
    host: '127.0.0.1',
    port: Number(port),
    servername: hostName({ role: 'runner', id: RUNNER }),
    ca: authority.root,
    ...options,
  });
  return await ask(socket).then(
    ({ status }) => `answered ${status}`,
    (error: NodeJS.ErrnoException) => error.code ?? error.message,
  );
}

const shownBy = ({ current }: HostCertificate): ConnectionOptions => ({
  key: current?.key ?? '',
  cert: current?.certificate ?? '',
});

describe('who is let in', () => {
  test('gateways and control servers of the deployment, with a data token; and they know which runner it is', async () => {
    for (const role of ['gateway', 'control'] as const) {
      const own = await authority.certificate({ role, id: randomUUID() });
      const host = hostOf(own);
      assert.deepEqual(await ask(await host.dial()), { status: 200, body: 'hello' });
      assert.equal((await ask(await host.dial(), '/vms/box/hello', 'other')).status, 401);
      assert.equal(
        (await ask(await host.dial(), '/metrics')).status,
        401,
        'metrics are for root of the machine',
      );
      await assert.rejects(hostOf(own, randomUUID()).dial(), { code: 'ERR_TLS_CERT_ALTNAME_INVALID' });
      own.close();
    }
  });

  test('no client without a certificate, of another deployment, or that is a runner', async () => {
    const other = await TestAuthority.create();
    const id = randomUUID();
    const certificates = {
      stranger: await other.certificate({ role: 'gateway', id }),
      runner: certificate,
      // As if its authority had issued it by mistake.
      runnerAsClient: await authority.certificate({ role: 'runner', id }, 'client'),
      gatewayAsServer: await authority.certificate({ role: 'gateway', id }, 'server'),
    };
    assert.doesNotMatch(await refusal({}), /answered/);
    for (const [name, one] of Object.entries(certificates)) {
      assert.doesNotMatch(await refusal(shownBy(one)), /answered/, name);
      one.close();
    }
    const gateway = await authority.certificate({ role: 'gateway', id });
    assert.equal(await refusal(shownBy(gateway)), 'answered 200');
    assert.match(await refusal({ ...shownBy(gateway), maxVersion: 'TLSv1.2' }), /EPROTO|PROTOCOL_VERSION/);
    gateway.close();
  });

  test('no runner of another deployment poses as this one', async () => {
    const other = await TestAuthority.create();
    const posing = await other.certificate({ role: 'runner', id: RUNNER });
    await using server = Object.assign(await start(posing), {
      async [Symbol.asyncDispose]() {
        await server.close();
        posing.close();
      },
    });
    const own = await authority.certificate({ role: 'gateway', id: randomUUID() });
    await assert.rejects(hostOf(own, RUNNER, server.url).dial(), (error: NodeJS.ErrnoException) =>
      /SELF_SIGNED|UNABLE_TO|UNKNOWN_CA|CERT/i.test(error.code ?? ''),
    );
    own.close();
  });
});

describe('strangers', () => {
  test('that say nothing are disconnected, and have only so many connections at a time', async () => {
    const own = await authority.certificate({ role: 'gateway', id: randomUUID() });
    const hasty = await start(certificate, 500);
    const silent = Array.from({ length: 100 }, () => {
      const socket = connect(Number(new URL(hasty.url).port), '127.0.0.1');
      socket.on('error', () => undefined);
      return once(socket, 'close');
    });
    await Promise.all(silent);
    await hasty.close();
    // The places of those that broke off are free again.
    for (let index = 0; index < 200; index++) {
      const socket = connect(Number(new URL(data.url).port), '127.0.0.1').on('error', () => undefined);
      await once(socket, 'connect');
      socket.end('not a handshake');
      await once(socket.resume(), 'close');
    }
    assert.equal((await ask(await hostOf(own).dial())).status, 200);
    own.close();
  });

  test('get nothing from a runner that has no certificate yet', async () => {
    const own = await authority.certificate({ role: 'gateway', id: randomUUID() });
    const listeners: Parameters<HostCertificate['onChange']>[0][] = [];
    const later: Pick<HostCertificate, 'onChange'> & { current: HostCertificate['current'] } = {
      current: undefined,
      onChange: (listener) => void listeners.push(listener),
    };
    const server = await start(later);
    await assert.rejects(hostOf(own, RUNNER, server.url).dial(), { code: 'ECONNREFUSED' });
    later.current = certificate.current;
    for (const listener of listeners) listener(await certificate.get());
    assert.equal((await ask(await hostOf(own, RUNNER, server.url).dial())).status, 200);
    await server.close();
    own.close();
  });
});

test('a process in the home of the runner uses its Unix socket, whatever address others have', async () => {
  const socketPath = join(folder, 'local.sock');
  const idFile = join(folder, 'id');
  const local = runnerOfHome({ idFile, socketPath });
  const host = { runnerId: RUNNER, dataUrl: data.url };
  assert.equal(new DataHosts({ local }).of(host).isLocal, false);
  await writeFile(idFile, `${RUNNER}\n`);
  const known = new DataHosts({ local: runnerOfHome({ idFile, socketPath }) });
  assert.deepEqual([known.of(host).isLocal, known.of(host).key], [true, `unix:${socketPath}`]);
  assert.equal(known.of({ ...host, runnerId: randomUUID() }).isLocal, false);
  // Plain HTTP never leaves a machine, and without a certificate or an id no host is connected to.
  const plain = { runnerId: RUNNER, dataUrl: 'http://198.18.0.1:1' };
  for (const one of [host, { ...host, runnerId: undefined }, plain])
    await assert.rejects(new DataHosts().of(one).dial(), { code: 'EHOSTUNREACH' });
});

test('the end of one direction of a stream leaves the other one open', async () => {
  const own = await authority.certificate({ role: 'gateway', id: randomUUID() });
  const socket = await openStream(own);
  const sent = 'x'.repeat(1_000_000);
  socket.end(sent);
  assert.equal(await text(socket), sent);
  own.close();
});

test('a certificate is renewed on both sides while a connection is open', async () => {
  const own = await authority.certificate({ role: 'gateway', id: randomUUID() });
  const socket = await openStream(own);
  socket.write('before, ');
  const [first, mine] = [certificate.current, own.current];
  await Promise.all([certificate.renew(), own.renew()]);
  assert.notEqual(certificate.current, first);
  assert.notEqual(own.current, mine);
  const fresh = (await hostOf(own).dial()) as ReturnType<typeof connectTls>;
  await until(() => fresh.getPeerX509Certificate()?.toString() === certificate.current?.certificate);
  assert.equal((await ask(fresh)).status, 200);
  socket.end('after');
  assert.equal(await text(socket), 'before, after');
  own.close();
});

test('a request that has begun ends before its connection does, when the runner stops', async () => {
  const own = await authority.certificate({ role: 'gateway', id: randomUUID() });
  const stopping = await start(certificate);
  const host = hostOf(own, RUNNER, stopping.url);
  const asked = ask(await host.dial(), '/vms/box/held');
  await held.begun.promise;
  const closed = stopping.close();
  await assert.rejects(host.dial(), { code: 'ECONNREFUSED' });
  held.answer.resolve('to the end');
  assert.deepEqual(await asked, { status: 200, body: 'to the end' });
  await closed;
  own.close();
});

async function openStream(own: HostCertificate): Promise<Socket> {
  const connection = await hostOf(own).dial({ allowHalfOpen: true });
  const request = http.get({
    createConnection: () => connection,
    path: '/vms/box/echo',
    headers: {
      host: 'runner',
      authorization: `Bearer ${TOKEN}`,
      connection: 'Upgrade',
      upgrade: PORT_STREAM_PROTOCOL,
    },
  });
  const [, socket] = (await once(request, 'upgrade')) as [http.IncomingMessage, Socket];
  return socket;
}
