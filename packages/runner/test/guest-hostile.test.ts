import assert from 'node:assert/strict';
import { once } from 'node:events';
import { mkdtemp, rm } from 'node:fs/promises';
import { type Socket, createServer } from 'node:net';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { test } from 'node:test';
import * as fc from 'fast-check';
import { until } from '@releap/testing/eventually';
import { propertyRuns } from '@releap/testing/repetitions';
import { GuestConnection } from '../src/guest/connection.ts';
import { FrameType, MAGIC, MAX_PAYLOAD_BYTES, encodeFrame, encodeMessage } from '../src/guest/frames.ts';
import { GuestClient, type GuestError } from '../src/guest/index.ts';
import { log } from '@releap/testing/guest-agent';

/** A guest that answers HELLO properly and then does what a test wants. */
async function hostileGuest(behave: (socket: Socket) => void) {
  const folder = await mkdtemp(path.join(tmpdir(), 'releap-hostile-'));
  const sockets = new Set<Socket>();
  const server = createServer((socket) => {
    sockets.add(socket);
    socket.on('error', () => undefined);
    socket.once('data', (hello: Buffer) => {
      const { nonce } = JSON.parse(hello.subarray(hello.indexOf('{'), hello.indexOf('}') + 1).toString()) as {
        nonce: string;
      };
      const answer = {
        protocol: 1,
        nonce,
        agent: 'x',
        boot_id: 'y',
        configured: false,
        entrypoint: { state: 'none' },
      };
      socket.write(Buffer.concat([MAGIC, encodeMessage(FrameType.hello, 0, answer)]));
      behave(socket);
    });
  });
  const socketPath = path.join(folder, 's');
  server.listen(socketPath);
  await once(server, 'listening');
  return {
    socketPath,
    async [Symbol.asyncDispose]() {
      for (const socket of sockets) socket.destroy();
      server.close();
      await rm(folder, { recursive: true, force: true });
    },
  };
}

/** Connects, opens one exec, and tells how the connection ended. */
async function endOf(behave: (socket: Socket) => void): Promise<GuestError> {
  await using guest = await hostileGuest(behave);
  const client = await GuestClient.connect(guest.socketPath, { log });
  const ended = Promise.withResolvers<GuestError>();
  client.onClose(ended.resolve);
  try {
    const running = client.exec({ shell: 'true' });
    running.exit.catch(() => undefined);
  } catch {
    // cut already
  }
  const error = await ended.promise;
  assert.throws(() => client.exec({ shell: 'true' }));
  return error;
}

const data = (stream: number, channel: number, size: number): Buffer =>
  encodeFrame(FrameType.data, stream, Buffer.of(channel), Buffer.alloc(size));

const violations: Record<string, (socket: Socket) => void> = {
  'a frame larger than allowed': (socket) => socket.write(Buffer.from('ffffffff0200000001', 'hex')),
  'an unknown frame type': (socket) => socket.write(encodeFrame(99, 1)),
  'data beyond the window': (socket) => {
    socket.once('data', () => {
      for (let index = 0; index < 10; index += 1) socket.write(data(1, 1, 60_000));
    });
  },
  'data on the input channel': (socket) => socket.once('data', () => socket.write(data(1, 0, 1))),
  'data on a stream that was never opened': (socket) => socket.write(data(77, 1, 1)),
  'data after the end': (socket) =>
    socket.once('data', () =>
      socket.write(Buffer.concat([encodeFrame(FrameType.end, 1, Buffer.of(1)), data(1, 1, 1)])),
    ),
  'an answer that is not JSON': (socket) =>
    socket.once('data', () => socket.write(encodeFrame(FrameType.result, 1, Buffer.from('{"exit')))),
  'an answer of endless parts': (socket) =>
    socket.once('data', () => {
      for (let index = 0; index < 70; index += 1)
        socket.write(encodeFrame(FrameType.part, 1, Buffer.alloc(65_536)));
    }),
  'a stream opened for no purpose': (socket) =>
    socket.write(encodeMessage(FrameType.open, 2, { method: 'exec' })),
  'a second entrypoint stream': (socket) => {
    const opening = { method: 'entrypoint', stdout_offset: 0, stderr_offset: 0 };
    socket.write(
      Buffer.concat([encodeMessage(FrameType.open, 2, opening), encodeMessage(FrameType.open, 4, opening)]),
    );
  },
  'entrypoint output beyond the window': (socket) => {
    socket.write(
      encodeMessage(FrameType.open, 2, { method: 'entrypoint', stdout_offset: 0, stderr_offset: 0 }),
    );
    for (let index = 0; index < 10; index += 1) socket.write(data(2, 1, 60_000));
  },
  'a grant beyond reason': (socket) =>
    socket.once('data', () => {
      const window = encodeFrame(FrameType.window, 1, Buffer.from('00ffffffff', 'hex'));
      socket.write(window);
    }),
  'an event in an unknown shape': (socket) =>
    socket.write(encodeMessage(FrameType.event, 0, { event: 'entrypoint', entrypoint: 7 })),
};

for (const [what, behave] of Object.entries(violations)) {
  test(`a guest that sends ${what} is cut off`, async () => {
    assert.equal((await endOf(behave)).code, 'protocol');
  });
}

test('a guest that disconnects fails its pending requests', async () => {
  assert.equal((await endOf((socket) => socket.once('data', () => socket.destroy()))).code, 'disconnected');
});

test('a guest that never answers is given up after the deadline', async () => {
  await using guest = await hostileGuest(() => undefined);
  const client = await GuestClient.connect(guest.socketPath, { log });
  await assert.rejects(client.status({ deadlineMs: 50 }), { code: 'timeout' });
  await assert.rejects(client.ping(50), { code: 'timeout' });
  assert.equal(client.closed, false);
  client.close();
});

test('time in which this process stalled is no silence of a guest, whose input is cleared after it', async () => {
  const folder = await mkdtemp(path.join(tmpdir(), 'releap-silent-'));
  let received = 0;
  const server = createServer((socket) => socket.on('data', (chunk: Buffer) => (received += chunk.length)));
  server.listen(path.join(folder, 's'));
  await once(server, 'listening');
  const connection = await GuestConnection.open(path.join(folder, 's'), { log });
  connection.greet(600_000, { resyncAfterMs: 500 }).catch(() => undefined);
  try {
    // As on a machine that is suspended.
    Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, 1_000);
    for (let turns = 0; turns < 5; turns += 1) await new Promise(setImmediate);
    assert.ok(received < 1_000, `${received} bytes`);
    await until(() => received > MAX_PAYLOAD_BYTES);
  } finally {
    connection.close();
    server.close();
    await rm(folder, { recursive: true });
  }
});

test('answers that do not match the schema are refused', async () => {
  const answers = fc.oneof(
    fc.object(),
    fc.record({ exit_code: fc.anything(), entries: fc.anything(), bytes: fc.anything() }),
  );
  await fc.assert(
    fc.asyncProperty(answers, async (answer) => {
      await using guest = await hostileGuest((socket) => {
        socket.once('data', () => socket.write(encodeMessage(FrameType.result, 1, answer)));
      });
      const client = await GuestClient.connect(guest.socketPath, { log });
      await assert.rejects(client.status(), { code: 'protocol' });
      client.close();
    }),
    { numRuns: propertyRuns(30) },
  );
});

test('random bytes after HELLO end the connection or do nothing', async () => {
  await fc.assert(
    fc.asyncProperty(fc.uint8Array({ minLength: 1, maxLength: 2000 }), async (bytes) => {
      await using guest = await hostileGuest((socket) => {
        socket.write(bytes);
        setTimeout(() => socket.end(), 5);
      });
      const client = await GuestClient.connect(guest.socketPath, { log }).catch(() => undefined);
      if (client === undefined || client.closed) return;
      const ended = Promise.withResolvers<GuestError>();
      client.onClose(ended.resolve);
      assert.match((await ended.promise).code, /protocol|disconnected/);
    }),
    { numRuns: propertyRuns(50) },
  );
});

test('a guest that reads nothing gets a bounded number of requests', async () => {
  await using guest = await hostileGuest((socket) => socket.pause());
  await using client = await GuestClient.connect(guest.socketPath, { log });
  const ask = (): void => {
    const running = client.exec({ shell: 'x'.repeat(3 * 1024 * 1024) });
    running.exit.catch(() => undefined);
    running.cancel();
  };
  assert.throws(
    () => {
      for (let asked = 0; asked < 20; asked += 1) ask();
    },
    { code: 'state' },
  );
});

/** Answers every request with an exit code. */
function honest(socket: Socket): void {
  socket.on('data', (chunk: Buffer) => {
    for (let at = 0; at + 9 <= chunk.length; ) {
      const length = chunk.readUInt32BE(at);
      const type = chunk[at + 4];
      const id = chunk.readUInt32BE(at + 5);
      if (type === FrameType.open) socket.write(encodeMessage(FrameType.result, id, { exit_code: 0 }));
      at += 9 + length;
    }
  });
}

const floods: Record<string, Buffer> = {
  events: encodeMessage(FrameType.event, 0, {}),
  'answers to pings that nobody sent': encodeFrame(FrameType.pong, 0, Buffer.alloc(8)),
  'empty data': encodeFrame(FrameType.data, 1, Buffer.of(1)),
};
for (const [what, frame] of Object.entries(floods)) {
  test(`a guest that sends ${what} at full speed is held back, and its neighbour answers`, async () => {
    const many = Buffer.concat(Array.from({ length: 5_000 }, () => frame));
    let sent = 0;
    let stopped = false;
    await using hostile = await hostileGuest((socket) => {
      const more = (): void => {
        if (stopped || socket.destroyed) return;
        sent += 5_000;
        if (socket.write(many)) setImmediate(more);
        else socket.once('drain', more);
      };
      socket.once('data', more);
    });
    await using neighbour = await hostileGuest(honest);
    const loud = await GuestClient.connect(hostile.socketPath, { log });
    await using client = await GuestClient.connect(neighbour.socketPath, { log });
    loud.exec({ shell: 'true' }).exit.catch(() => undefined);
    const started = performance.now();
    for (let n = 0; n < 50; n++) {
      assert.equal((await client.exec({ shell: 'true' }).exit).exitCode, 0);
    }
    const seconds = (performance.now() - started) / 1000;
    stopped = true;
    // What is not taken from the socket stays with the guest: what it holds, and what the system keeps for it.
    const kept = Math.ceil((1024 * 1024) / frame.length);
    assert.ok(sent <= 20_000 + 20_000 * seconds + kept + 10_000, `${sent} in ${seconds} s`);
    loud.close();
  });
}
