/**
 * Raw connections to ports of a guest, over a runner's data server and a real agent. The guest's network is played by 127.0.0.2:
 * a server that listens on 127.0.0.1 alone is reached by the agent only, as in a micro-VM.
 */
import assert from 'node:assert/strict';
import { createHash, randomBytes } from 'node:crypto';
import { once } from 'node:events';
import { rm } from 'node:fs/promises';
import { type AddressInfo, createServer, type Server, type Socket } from 'node:net';
import { join } from 'node:path';
import { after, before, describe, test } from 'node:test';
import { plainPeer } from '@releap/certificates/hosts';
import { ApiError, conflict } from '@releap/contract';
import { openPortStream } from '@releap/gateway';
import { registerPortStreams, startDataServer } from '@releap/runner/data';
import { until } from '@releap/testing/eventually';
import { log, startAgent, type TestAgent } from '@releap/testing/guest-agent';
import { freePort } from '@releap/testing/ports';
import { temporaryFolder } from '@releap/testing/temporary-folder';

const NETWORK = '127.0.0.2';
const TOKEN = 'data-token';

let agent: TestAgent;
let isStarting = false;
let data: Awaited<ReturnType<typeof startDataServer>>;
let folder: string;
before(async () => {
  agent = await startAgent();
  const guest = await agent.connect();
  folder = await temporaryFolder('releap-ports-');
  data = await startDataServer({
    socketPath: join(folder, 'data.sock'),
    verify: async (token) => token === TOKEN,
    isKnown: () => !isStarting,
    register: (app) =>
      registerPortStreams(app, (vmId) => {
        if (vmId === 'paused') throw conflict('the sandbox is paused, and must be running');
        return vmId === 'box' ? { address: NETWORK, guest: async () => guest } : undefined;
      }),
    log,
  });
});
after(async () => {
  await data.close();
  await agent[Symbol.asyncDispose]();
  await rm(folder, { recursive: true, force: true });
});

const open = (port: number, vmId = 'box', dataToken = TOKEN): Promise<Socket> =>
  openPortStream({ vmId, host: plainPeer(data.url), dataToken }, port);

async function refused(port: number, vmId?: string, token?: string): Promise<[number, string]> {
  const error = await open(port, vmId, token).then(
    () => assert.fail('it is connected'),
    (failure: unknown) => failure,
  );
  assert.ok(error instanceof ApiError, String(error));
  return [error.status, error.message];
}

/** A server in the guest; each connection is given to `serve`. */
async function listen(
  host: string,
  serve: (socket: Socket) => void,
): Promise<Server & Disposable & { port: number }> {
  const server = createServer({ allowHalfOpen: true }, (socket) => {
    socket.on('error', () => undefined);
    serve(socket);
  });
  server.listen(0, host);
  await once(server, 'listening');
  const { port } = server.address() as AddressInfo;
  return Object.assign(server, { port, [Symbol.dispose]: () => void server.close() });
}

async function read(socket: Socket): Promise<Buffer> {
  const chunks: Buffer[] = [];
  // An iterator would destroy the socket, and with it the other direction.
  socket.on('data', (chunk: Buffer) => chunks.push(chunk)).resume();
  await once(socket, 'end');
  return Buffer.concat(chunks);
}

const digest = (bytes: Buffer): string => createHash('sha256').update(bytes).digest('hex');

for (const host of ['0.0.0.0', NETWORK, '127.0.0.1', '::1']) {
  describe(`a server that listens on ${host}`, () => {
    test('answers after the client has ended its half, and reads after it has ended its own', async () => {
      // Reads everything, then answers: a client that closed both ways would get nothing.
      using server = await listen(host, (socket) => void read(socket).then((all) => socket.end(digest(all))));
      const body = randomBytes(3_000_000);
      const client = await open(server.port);
      client.end(body);
      assert.equal((await read(client)).toString(), digest(body));

      const received = Promise.withResolvers<Buffer>();
      using early = await listen(host, (socket) => {
        socket.end('done');
        received.resolve(read(socket));
      });
      const late = await open(early.port);
      assert.equal((await read(late)).toString(), 'done');
      late.end('thanks');
      assert.equal((await received.promise).toString(), 'thanks');
    });

    test('is slowed down by a client that does not read, and loses nothing', async () => {
      let written = 0;
      const total = 24_000_000;
      const block = randomBytes(100_000);
      using server = await listen(host, (socket) => {
        const write = (): void => {
          while (written < total) {
            written += block.length;
            if (!socket.write(block)) return void socket.once('drain', write);
          }
          socket.end();
        };
        write();
      });
      const client = await open(server.port);
      client.pause();
      let before = -1;
      await until(() => {
        const isStill = before === written && written > 0;
        before = written;
        return isStill;
      });
      assert.ok(written < total, `${written} bytes went somewhere`);
      assert.equal((await read(client)).length, total);
    });

    test('sees that a client has disconnected, and disconnects a client when it resets', async () => {
      const ended = Promise.withResolvers<void>();
      using server = await listen(host, (socket) => {
        // As over TCP, the end of a connection looks like that of one direction until something is sent.
        const writing = setInterval(() => socket.write('hello'), 10);
        socket.on('close', () => {
          clearInterval(writing);
          ended.resolve();
        });
      });
      const client = await open(server.port);
      await once(client, 'data');
      client.destroy();
      await ended.promise;

      using cruel = await listen(host, (socket) => socket.once('data', () => socket.resetAndDestroy()));
      const victim = await open(cruel.port);
      victim.write('x');
      victim.resume();
      await once(victim, 'end');
      // Nothing more is sent to a server that has reset: the other direction is closed, too.
      const closed = Promise.withResolvers<void>();
      victim.on('close', closed.resolve);
      const writing = setInterval(() => victim.write('x'), 10);
      await closed.promise;
      clearInterval(writing);
    });
  });
}

test('of a runner that starts it is said when to try again', async () => {
  isStarting = true;
  const error = await open(1).then(
    () => assert.fail('it is connected'),
    (failure: unknown) => failure,
  );
  isStarting = false;
  assert.ok(error instanceof ApiError, String(error));
  assert.deepEqual([error.status, error.headers], [503, { 'retry-after': '1' }]);
});

test('says why a port is not reached: unknown sandbox, not running, nothing listens, no data token, no port', async () => {
  const closed = await freePort();
  assert.deepEqual(await refused(closed), [502, `nothing listens on port ${closed} of the sandbox`]);
  assert.equal((await refused(closed, 'other'))[0], 404);
  assert.deepEqual(await refused(closed, 'paused'), [409, 'the sandbox is paused, and must be running']);
  assert.deepEqual(await refused(closed, 'box', 'wrong'), [
    502,
    'the machine that runs the sandbox answered 401',
  ]);
  for (const port of [0, 65_536, 1.5, -1, Number.NaN])
    assert.equal((await refused(port))[0], 400, String(port));
});
