/** `GET /vms/:id/logs` and `/entrypoint-logs`: read from the host, never through the database. */
import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { create, startWorld, until, waitFor, type Created } from '@releap/testing/world';

const world = await startWorld();
const runner = await world.runner();

async function running(): Promise<Created> {
  const vm = await create(world.call, world);
  await waitFor(world.call, vm.id, 'running');
  return vm;
}

describe('GET /vms/:id/logs, /entrypoint-logs', () => {
  it('passes the log of the host through as text', async () => {
    const vm = await running();
    runner.logs.set(`/vms/${vm.uuid}/logs/console`, (_request, response) => response.end('boot ✓\n'));
    runner.logs.set(`/vms/${vm.uuid}/logs/entrypoint`, (_request, response) => response.end('hello\n'));
    const console = await world.call('GET', `/vms/${vm.id}/logs`);
    assert.deepEqual([console.status, console.text], [200, 'boot ✓\n']);
    assert.match(console.headers.get('content-type') ?? '', /^text\/plain/);
    assert.equal((await world.call('GET', `/vms/${vm.id}/entrypoint-logs`)).text, 'hello\n');
  });

  it('follows a log as it grows, and closes the request to the host when the client leaves', async () => {
    const vm = await running();
    let closed = false;
    runner.logs.set(`/vms/${vm.uuid}/logs/entrypoint?follow=1`, (_request, response) => {
      response.write('one\n');
      const timer = setInterval(() => response.write('more\n'), 20);
      response.on('close', () => {
        closed = true;
        clearInterval(timer);
      });
    });
    const leaving = new AbortController();
    const response = await fetch(`${world.url}/vms/${vm.id}/entrypoint-logs?follow=1`, {
      headers: { authorization: `Bearer ${world.call.key}` },
      signal: leaving.signal,
    });
    let text = '';
    await assert.rejects(async () => {
      for await (const chunk of response.body ?? []) {
        text += Buffer.from(chunk).toString();
        if (text.includes('more')) leaving.abort();
      }
    });
    assert.match(text, /^one\nmore\n/);
    await until(() => closed);
  });

  it('any number of clients may follow logs of one host: others can still read there', async () => {
    const vm = await running();
    const other = await running();
    let followers = 0;
    runner.logs.set(`/vms/${vm.uuid}/logs/console?follow=1`, (_request, response) => {
      followers++;
      response.write('one\n');
    });
    runner.logs.set(`/vms/${other.uuid}/logs/console`, (_request, response) => response.end('hello\n'));
    const leaving = new AbortController();
    const headers = { authorization: `Bearer ${world.call.key}` };
    const following: Promise<Response>[] = [];
    try {
      while (following.length < 80) {
        // A few at a time: the control plane gives a host ten seconds to begin its answer, also on a busy machine.
        for (let more = 0; more < 8; more++)
          following.push(
            fetch(`${world.url}/vms/${vm.id}/logs?follow=1`, { headers, signal: leaving.signal }),
          );
        await until(() => followers === following.length);
      }
      const signal = AbortSignal.timeout(60_000);
      const answer = await world.call('GET', `/vms/${other.id}/logs`, undefined, { signal });
      assert.deepEqual([answer.status, answer.text], [200, 'hello\n']);
    } finally {
      leaving.abort();
      await Promise.allSettled(following);
    }
  });

  it('logs 404: live sandbox not placed on a host', async () => {
    await using empty = await startWorld();
    const vm = await create(empty.call, empty);
    const answer = await empty.call('GET', `/vms/${vm.id}/logs`);
    assert.equal(answer.status, 404);
    assert.match(answer.body.error, /is pending and not yet placed on a host/);
  });

  it('logs 404: terminal sandbox without persisted log', async () => {
    const vm = await running();
    await world.call('DELETE', `/vms/${vm.id}`);
    await waitFor(world.call, vm.id, 'deleted');
    const answer = await world.call('GET', `/vms/${vm.id}/logs`);
    assert.equal(answer.status, 404);
    assert.match(answer.body.error, /is deleted and has no console log/);
    runner.logs.set(`/vms/${vm.uuid}/logs/console`, (_request, response) => response.end('kept'));
    assert.equal((await world.call('GET', `/vms/${vm.id}/logs`)).text, 'kept');
  });

  it('logs 503: a host that starts does not know yet what it has', async () => {
    const vm = await running();
    runner.logs.set(`/vms/${vm.uuid}/logs/console`, (_request, response) =>
      response.writeHead(503, { 'retry-after': '7' }).end('{"error":"starting"}'),
    );
    const answer = await world.call('GET', `/vms/${vm.id}/logs`);
    assert.deepEqual(
      [answer.status, answer.body.code, answer.headers.get('retry-after')],
      [503, 'unavailable', '7'],
    );
  });

  it('logs 502: host did not answer', async () => {
    const vm = await running();
    runner.logs.set(`/vms/${vm.uuid}/logs/console`, (_request, response) => response.writeHead(500).end());
    assert.equal((await world.call('GET', `/vms/${vm.id}/logs`)).status, 502);
    runner.logs.set(`/vms/${vm.uuid}/logs/console`, (request) => request.socket.destroy());
    assert.equal((await world.call('GET', `/vms/${vm.id}/logs`)).status, 502);
    runner.stopData();
    const answer = await world.call('GET', `/vms/${vm.id}/logs`);
    assert.deepEqual(
      [answer.status, answer.headers.get('content-type')],
      [502, 'application/json; charset=utf-8'],
    );
    assert.match(answer.body.error, /did not answer/);
  });
});
