/** The toolbox daemon in a micro-VM: what its state survives. Its operations: packages/gateway/test/toolbox-daemon.test.ts. */
import assert from 'node:assert/strict';
import { once } from 'node:events';
import { after, before, describe, test } from 'node:test';
import { eventually } from '@releap/testing/eventually';
import { sharedService } from '@releap/testing/shared-service';
import type { Service } from '@releap/testing/service';
import { WebSocket } from 'ws';

describe('sessions and terminals of a sandbox', () => {
  let service: Service;
  let base: string;
  let source: string;
  let child: string | undefined;
  before(async () => {
    service = await sharedService();
    base = await service.toolboxUrl();
    source = (
      await service.create({
        image: 'busybox',
        cpu: 0.25,
        mem_mib: 256,
        scratch_mib: 64,
        persistent: true,
        env: { NAME: 'box' },
      })
    ).id;
  });
  after(async () => {
    for (const id of [source, child]) if (id !== undefined) await service.remove(id);
    await service?.[Symbol.asyncDispose]();
  });

  const headers = (): Record<string, string> => ({ authorization: `Bearer ${service.bootstrap.api_key}` });
  async function call<T = Record<string, string>>(
    id: string,
    method: string,
    tail: string,
    body?: object,
  ): Promise<{ status: number; body: T }> {
    const answer = await fetch(`${base}/${id}/${tail}`, {
      method,
      headers: { ...headers(), 'content-type': 'application/json' },
      ...(body === undefined ? {} : { body: JSON.stringify(body) }),
    });
    const text = await answer.text();
    return { status: answer.status, body: (text === '' ? {} : JSON.parse(text)) as T };
  }
  async function reaches(id: string, status: string): Promise<void> {
    assert.equal((await service.waitFor(id, status))['status'], status);
  }

  test('answer 501 where the image has no program for an operation', async () => {
    for (const [method, tail, body] of [
      ['POST', 'process/code-run', { code: '1', language: 'python' }],
      ['GET', 'process/interpreter/execute', undefined],
      ['POST', 'git/clone', { url: 'https://example.test/x.git', path: 'x' }],
    ] as const) {
      const answer = await call(source, method, tail, body);
      assert.equal(answer.status, 501, tail);
      assert.match(String(answer.body['message']), /the image has no/);
    }
  });

  test('survive a pause and a fork, and continue apart', async () => {
    assert.equal((await call(source, 'POST', 'process/session', { sessionId: 's' })).status, 201);
    const exec = (id: string, command: string, runAsync = false): Promise<{ body: Record<string, string> }> =>
      call(id, 'POST', 'process/session/s/exec', { command, runAsync });
    assert.equal((await exec(source, 'cd /proc; WORD=kept; echo $NAME')).body['output'], 'box\n');
    assert.equal((await call(source, 'POST', 'process/session', { sessionId: 'async' })).status, 201);
    const running = await call(source, 'POST', 'process/session/async/exec', {
      command: 'echo begun; read line; echo read $line',
      runAsync: true,
    });
    const command = `process/session/async/command/${running.body['cmdId']}`;
    await call(source, 'POST', 'process/pty', { id: 'p', lazyStart: false });

    const forked = await service.call<{ vm_id: string }>('POST', `/vms/${source}/fork`, {});
    assert.equal(forked.status, 200);
    child = forked.body.vm_id;
    assert.equal((await service.call('POST', `/vms/${source}/pause`)).status, 200);
    await reaches(source, 'paused');
    // Gateways hear of it after those who wait for it at the API.
    await eventually('a refusal', async () => (await call(source, 'GET', 'work-dir')).status === 409);
    assert.equal((await service.call('POST', `/vms/${source}/resume`)).status, 200);
    for (const id of [child, source]) {
      await reaches(id, 'running');
      assert.equal((await exec(id, 'echo $WORD $PWD')).body['output'], 'kept /proc\n');
      assert.equal((await call(id, 'POST', `${command}/input`, { data: `${id}\n` })).status, 204);
      await eventually('the command has ended', async () => {
        const { body } = await call<{ exitCode?: number }>(id, 'GET', command);
        return body.exitCode === 0 ? true : undefined;
      });
      assert.equal((await call(id, 'GET', `${command}/logs`)).body['output'], `begun\nread ${id}\n`);

      const socket = new WebSocket(`${base}/${id}/process/pty/p/connect`.replace('http', 'ws'), {
        headers: headers(),
      });
      socket.once('message', () => socket.send(Buffer.from('exit 5\n')));
      const [code, reason] = (await once(socket, 'close')) as [number, Buffer];
      assert.deepEqual([code, String(reason)], [1000, '{"exitCode":5}']);
      assert.equal((await call(id, 'DELETE', 'process/session/s')).status, 204);
    }
  });
});
