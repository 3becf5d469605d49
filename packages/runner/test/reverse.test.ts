/** Hosts that accept no connections: the runner opens them, and gateways use them as if they had opened them. */
import assert from 'node:assert/strict';
import { randomUUID } from 'node:crypto';
import { once } from 'node:events';
import { rm } from 'node:fs/promises';
import http from 'node:http';
import { type AddressInfo, connect, createServer, type Server, type Socket } from 'node:net';
import { join } from 'node:path';
import { text } from 'node:stream/consumers';
import { after, before, describe, test } from 'node:test';
import {
  DataHosts,
  type HostCertificate,
  REVERSE_URL,
  ReverseConnections,
  type ReverseOptions,
  reversePreface,
} from '@releap/certificates/hosts';
import { PORT_STREAM_PROTOCOL } from '@releap/contract';
import { until } from '@releap/testing/eventually';
import { TestAuthority } from '@releap/testing/host-authority';
import { quiet as log } from '@releap/testing/logging';
import { temporaryFolder } from '@releap/testing/temporary-folder';
import { Agent, request } from 'undici';
import { connectorOf } from '@releap/certificates/hosts';
import { type DataServer, startDataServer } from '../src/data/data-server.ts';
import { ReverseDialer } from '../src/data/reverse-dialer.ts';
import { routeUpgrades } from '../src/data/upgrades.ts';
import { echoRoute } from './support/echo-route.ts';

const RUNNER = randomUUID();

let folder: string;
let authority: TestAuthority;
let gatewayCertificate: HostCertificate;
before(async () => {
  folder = await temporaryFolder('releap-reverse-');
  authority = await TestAuthority.create();
  gatewayCertificate = await authority.certificate({ role: 'gateway', id: randomUUID() });
});
after(async () => {
  gatewayCertificate.close();
  await rm(folder, { recursive: true, force: true });
});

/** A process that accepts such connections. */
class Gateway implements AsyncDisposable {
  readonly reverse: ReverseConnections;
  readonly server: Server;
  readonly accepted = new Set<Socket>();
  asked: string[] = [];

  constructor(options: Partial<ReverseOptions> = {}) {
    this.reverse = new ReverseConnections({
      certificate: gatewayCertificate,
      ask: (runnerId) => void this.asked.push(runnerId),
      log,
      ...options,
    });
    this.server = createServer({ allowHalfOpen: true }, (socket) => {
      this.accepted.add(socket);
      socket.once('close', () => this.accepted.delete(socket));
      this.reverse.accept(socket);
    });
  }

  /** @returns its address */
  async listen(port = 0): Promise<string> {
    this.server.listen({ host: '127.0.0.1', port });
    await once(this.server, 'listening');
    const address = `127.0.0.1:${(this.server.address() as AddressInfo).port}`;
    this.reverse.listensAt(address);
    return address;
  }

  host(runnerId = RUNNER) {
    return new DataHosts({ reverse: this.reverse }).of({ runnerId, dataUrl: REVERSE_URL });
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.reverse.close();
    for (const socket of this.accepted) socket.destroy();
    this.server.close();
  }
}

interface Runner extends AsyncDisposable {
  dialer: ReverseDialer;
  data: DataServer;
}

async function runner(certificate?: HostCertificate, runnerId = RUNNER): Promise<Runner> {
  const own = certificate ?? (await authority.certificate({ role: 'runner', id: runnerId }));
  const dialer = new ReverseDialer({
    runnerId,
    certificate: own,
    controlHost: '127.0.0.1',
    log,
    backoffMs: { min: 10, max: 50 },
  });
  const data = await startDataServer({
    socketPath: join(folder, `${randomUUID()}.sock`),
    reverse: dialer,
    verify: async () => true,
    register(app) {
      routeUpgrades(app);
      app.get('/vms/:id/hello', () => 'hello');
      echoRoute(app);
    },
    log,
  });
  return {
    dialer,
    data,
    async [Symbol.asyncDispose]() {
      await data.close();
      own.close();
    },
  };
}

const HEADERS = { host: 'runner', authorization: 'Bearer token' };

async function hello(socket: Socket): Promise<string> {
  const asked = http.get({ createConnection: () => socket, path: '/vms/box/hello', headers: HEADERS });
  const [answer] = (await once(asked, 'response')) as [http.IncomingMessage];
  return await text(answer);
}

describe('a host that accepts no connections', () => {
  test('is asked to open them when a request needs one, and serves as many as are needed', async () => {
    await using one = await runner();
    await using gateway = new Gateway({ ask: (_id, address) => one.dialer.dial(address) });
    await gateway.listen();
    assert.equal(await hello(await gateway.host().dial()), 'hello');
    const agent = new Agent({ connect: connectorOf(gateway.host()), connections: null });
    const answers = await Promise.all(
      Array.from({ length: 200 }, async () => {
        const { statusCode, body } = await request('http://localhost/vms/box/hello', {
          dispatcher: agent,
          headers: HEADERS,
        });
        return [statusCode, await body.text()];
      }),
    );
    assert.ok(answers.every(([status, body]) => status === 200 && body === 'hello'));
    await agent.destroy();
  });

  test('passes on the end of one direction', async () => {
    await using one = await runner();
    await using gateway = new Gateway({ ask: (_id, address) => one.dialer.dial(address) });
    await gateway.listen();
    const connection = await gateway.host().dial({ allowHalfOpen: true });
    const asked = http.get({
      createConnection: () => connection,
      path: '/vms/box/echo',
      headers: { ...HEADERS, connection: 'Upgrade', upgrade: PORT_STREAM_PROTOCOL },
    });
    const [, socket] = (await once(asked, 'upgrade')) as [http.IncomingMessage, Socket];
    const sent = 'x'.repeat(1_000_000);
    socket.end(sent);
    assert.equal(await text(socket), sent);
  });

  test('keeps some open to each that has asked, also after that has started anew', async () => {
    await using one = await runner();
    const first = new Gateway({ ask: (_id, address) => one.dialer.dial(address) });
    const address = await first.listen();
    await hello(await first.host().dial());
    await until(() => first.accepted.size >= 4);
    await first[Symbol.asyncDispose]();
    // It does not ask: the runner comes by itself.
    await using second = new Gateway({ waitMs: 60_000 });
    await second.listen(Number(address.split(':')[1]));
    assert.equal(await hello(await second.host().dial()), 'hello');
  });

  test('opens others for those that have waited for long', async () => {
    await using one = await runner();
    await using gateway = new Gateway({ ask: (_id, address) => one.dialer.dial(address), idleMs: 200 });
    await gateway.listen();
    await hello(await gateway.host().dial());
    await until(() => gateway.accepted.size >= 4);
    const before = new Set(gateway.accepted);
    await until(() => [...gateway.accepted].some((socket) => !before.has(socket)));
    assert.equal(await hello(await gateway.host().dial()), 'hello');
  });

  test('that is away is an error within the time, also where none are accepted', async () => {
    await using gateway = new Gateway({ waitMs: 50 });
    await assert.rejects(gateway.host().dial(), { code: 'EHOSTUNREACH', message: /accepts no connections/ });
    await gateway.listen();
    await assert.rejects(gateway.host().dial(), { code: 'EHOSTUNREACH', message: /opened no connection/ });
    assert.deepEqual(gateway.asked, [RUNNER]);
    await assert.rejects(new DataHosts().of({ runnerId: RUNNER, dataUrl: REVERSE_URL }).dial(), {
      code: 'EHOSTUNREACH',
    });
  });
});

describe('who is no host', () => {
  test('gets no requests: a runner of another deployment, or one that names another', async () => {
    const other = await TestAuthority.create();
    const posing = await other.certificate({ role: 'runner', id: RUNNER });
    const another = await authority.certificate({ role: 'runner', id: randomUUID() });
    const asGateway = await authority.certificate({ role: 'gateway', id: RUNNER }, 'server');
    for (const certificate of [posing, another, asGateway]) {
      await using one = await runner(certificate);
      let dialled = 0;
      await using gateway = new Gateway({
        waitMs: 1_000,
        ask(_id, address) {
          dialled++;
          one.dialer.dial(address);
        },
      });
      await gateway.listen();
      await assert.rejects(gateway.host().dial(), /has opened no connection/);
      assert.ok(dialled > 0);
    }
  });

  test('is disconnected when it says something else, or nothing', async () => {
    await using gateway = new Gateway();
    const address = await gateway.listen();
    const port = Number(address.split(':')[1]);
    for (const said of [
      'GET / HTTP/1.1\r\nhost: gateway\r\n\r\n',
      '\0RLP\u0001short',
      reversePreface(RUNNER),
    ]) {
      const socket = connect(port, '127.0.0.1').on('error', () => undefined);
      socket.end(said);
      await once(socket.resume(), 'close');
    }
    const silent = Array.from({ length: 100 }, () => connect(port, '127.0.0.1').on('error', () => undefined));
    // Those over the limit of one address.
    await until(() => silent.filter(({ closed }) => closed).length >= 36 || gateway.accepted.size <= 64);
    for (const socket of silent) socket.destroy();
    await until(() => gateway.accepted.size === 0);
  });

  test('gets no answers: a gateway of another deployment', async () => {
    const other = await TestAuthority.create();
    const certificate = await other.certificate({ role: 'gateway', id: randomUUID() });
    await using one = await runner();
    await using gateway = new Gateway({
      certificate,
      waitMs: 1_000,
      ask: (_id, address) => one.dialer.dial(address),
    });
    await gateway.listen();
    await assert.rejects(gateway.host().dial(), /has opened no connection/);
    certificate.close();
  });
});
