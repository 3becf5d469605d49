import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { mkdtemp, rm } from 'node:fs/promises';
import { createServer } from 'node:net';
import type { Socket } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, before, describe, it } from 'node:test';
import { fileURLToPath } from 'node:url';
import { QmpClient } from '../src/vmm/qemu/qmp.ts';
import { unpackedVmm, vmmCommand } from '../src/vmm/qemu/vmm-store.ts';
import type { QmpError } from '../src/vmm/qemu/qmp.ts';

const BUILD_DIR = fileURLToPath(new URL('../../../build', import.meta.url));

let dir: string;
before(async () => {
  dir = await mkdtemp(join(tmpdir(), 'releap-qmp-'));
});
after(async () => {
  await rm(dir, { recursive: true, force: true });
});

const GREETING = '{"QMP": {"version": {}, "capabilities": []}}\n';

/** A peer that sends what a test wants. */
async function peer(name: string, talk: (socket: Socket) => void): Promise<{ path: string } & Disposable> {
  const path = join(dir, name);
  const sockets = new Set<Socket>();
  const server = createServer((socket) => {
    sockets.add(socket);
    socket.on('error', () => undefined);
    talk(socket);
  });
  await new Promise<void>((resolve) => server.listen(path, resolve));
  return {
    path,
    [Symbol.dispose]: () => {
      server.close();
      for (const socket of sockets) socket.destroy();
    },
  };
}

/** Answers the capability negotiation, then does what `next` says. */
function greeted(next: (socket: Socket, line: string) => void): (socket: Socket) => void {
  return (socket) => {
    socket.write(GREETING);
    socket.on('data', (chunk: Buffer) => {
      for (const line of chunk.toString('utf8').trim().split('\n')) {
        if (line.includes('qmp_capabilities')) socket.write('{"return": {}, "id": 1}\n');
        else next(socket, line);
      }
    });
  };
}

describe('the QMP client', () => {
  it('talks to a real QEMU: commands in order, errors with their class, events', async () => {
    const path = join(dir, 'real');
    const vmm = await unpackedVmm(BUILD_DIR);
    assert.ok(vmm);
    const { program, args, env } = vmmCommand(vmm.folder);
    const machine = ['-machine', 'none', '-nodefaults', '-nographic'];
    const qemu = spawn(program, [...args, ...machine, '-qmp', `unix:${path},server=on,wait=off`], {
      env,
      stdio: 'ignore',
    });
    const exited = new Promise((resolve) => qemu.once('exit', resolve));
    try {
      const client = await QmpClient.connect(path, { deadlineMs: 60_000 });
      const stopped = client.waitEvent(({ event }) => event === 'STOP', 60_000);
      const [name, status] = await Promise.all([
        client.execute('query-name'),
        client.execute('query-status'),
        client.execute('stop'),
      ]);
      assert.deepEqual(name, {});
      assert.equal((status as { running: boolean }).running, true);
      await stopped;
      await assert.rejects(
        client.execute('no-such-command'),
        (error: QmpError) => error.kind === 'CommandNotFound' && error.message.includes('no-such-command'),
      );
      await assert.rejects(client.execute('device_del', { id: 'nobody' }), { kind: 'DeviceNotFound' });
      const closed = new Promise<Error>((resolve) => client.onClose(resolve));
      await client.execute('quit').catch(() => undefined);
      await closed;
      await assert.rejects(client.execute('query-name'), { kind: 'Closed' });
    } finally {
      qemu.kill('SIGKILL');
      await exited;
    }
  });

  it('gives up on a VMM that never listens, and at once on one that is dead', async () => {
    const path = join(dir, 'nobody');
    await assert.rejects(QmpClient.connect(path, { deadlineMs: 30 }), /nothing listened on .* within 30 ms/);
    await assert.rejects(
      QmpClient.connect(path, { deadlineMs: 60_000, alive: () => false }),
      /ended before it listened/,
    );
  });

  it('gives up on a peer that accepts the connection and never sends a greeting', async () => {
    using silent = await peer('silent', () => undefined);
    await assert.rejects(QmpClient.connect(silent.path, { deadlineMs: 50 }), { kind: 'Timeout' });
  });

  it('ends a command at its deadline and ignores the answer that comes too late', async () => {
    const held: (() => void)[] = [];
    using slow = await peer(
      'slow',
      greeted((socket, line) => {
        const { id, execute } = JSON.parse(line) as { id: number; execute: string };
        const answer = () => socket.write(`${JSON.stringify({ return: execute, id })}\n`);
        if (execute === 'slow') held.push(answer);
        else answer();
      }),
    );
    const client = await QmpClient.connect(slow.path);
    await assert.rejects(client.execute('slow', undefined, { deadlineMs: 20 }), { kind: 'Timeout' });
    for (const answer of held) answer();
    assert.equal(await client.execute('quick'), 'quick');
    client.close();
  });

  for (const [what, bytes] of [
    ['what is not JSON', 'garbage\n'],
    ['JSON that is no object', '[1,2]x\n'],
    ['a number', '42\n'],
    ['a line without end', 'x'.repeat(1024 * 1024 + 70_000)],
  ] as const) {
    it(`disconnects a VMM that sends ${what}`, async () => {
      using hostile = await peer(
        `hostile-${what.replaceAll(' ', '-')}`,
        greeted((socket) => socket.write(bytes)),
      );
      const client = await QmpClient.connect(hostile.path);
      await assert.rejects(client.execute('anything'), { kind: 'Protocol' });
      assert.equal(client.closed, true);
    });
  }

  it('accepts messages cut at any byte', async () => {
    using cut = await peer(
      'cut',
      greeted((socket, line) => {
        const { id } = JSON.parse(line) as { id: number };
        const text = `{"event": "BLOCK_JOB_READY", "data": {"x": "ü"}}\r\n${JSON.stringify({ return: 'ü', id })}\n`;
        const bytes = Buffer.from(text);
        let at = 0;
        const next = (): void => {
          if (at >= bytes.length) return;
          socket.write(bytes.subarray(at, at + 1));
          at += 1;
          setImmediate(next);
        };
        next();
      }),
    );
    const client = await QmpClient.connect(cut.path);
    const event = client.waitEvent(() => true, 60_000);
    assert.equal(await client.execute('anything'), 'ü');
    assert.deepEqual(await event, { event: 'BLOCK_JOB_READY', data: { x: 'ü' } });
    client.close();
  });

  it('bounds the commands in flight', async () => {
    using mute = await peer(
      'mute',
      greeted(() => undefined),
    );
    const client = await QmpClient.connect(mute.path);
    const all = Array.from({ length: 65 }, () => client.execute('x').catch((error: QmpError) => error.kind));
    assert.equal(await all[64], 'Protocol');
    client.close();
    assert.deepEqual(new Set(await Promise.all(all.slice(0, 64))), new Set(['Closed']));
  });
});
