/** Sandboxes that a drain moves from one host to the other. */
import assert from 'node:assert/strict';
import { once } from 'node:events';
import { readdir, writeFile } from 'node:fs/promises';
import { request as httpRequest, type IncomingMessage } from 'node:http';
import { join } from 'node:path';
import { text } from 'node:stream/consumers';
import { test } from 'node:test';
import type { EndpointRecord, HostDrainResponse, HostMove, HostMoves } from '@releap/contract';
import { eventually } from '@releap/testing/eventually';
import { COUNTER, COUNTS } from '@releap/testing/guest-programs';
import {
  bothReady,
  crashes,
  first,
  operator,
  PATIENCE_MS,
  second,
  service,
  SMALL,
} from '../support/second-host.ts';

const PORT = 8080;
const host = (id: string, verb: string, body = {}) =>
  operator<HostDrainResponse>('POST', `/operator/hosts/${id}/${verb}`, body);
const record = async (id: string) => (await service.call('GET', `/vms/${id}`)).body;
const moves = async (id: string): Promise<HostMove[]> =>
  (await operator<HostMoves>('GET', `/operator/hosts/${id}/moves`)).moves;

async function page(url: URL): Promise<string | false> {
  const request = httpRequest({
    host: '127.0.0.1',
    port: url.port,
    path: '/',
    headers: { host: url.host },
    agent: false,
  }).end();
  const [answer] = (await once(request, 'response')) as [IncomingMessage];
  const body = await text(answer);
  return answer.statusCode === 200 && body;
}

/** The newest move of the sandbox has ended, and its former host is empty. */
async function moved(id: string, from: string): Promise<HostMove> {
  return await eventually(
    'the move has ended',
    async () => {
      const [move] = (await moves(from)).filter(({ vm_id: vm }) => vm === id);
      const { hosts } = await operator<{ hosts: { id: string; moving: number; sandboxes: object }[] }>(
        'GET',
        '/operator/hosts',
      );
      const left = hosts.find((one) => one.id === from);
      return move?.status === 'done' && left?.moving === 0 && move;
    },
    PATIENCE_MS,
  ).catch(async (error: unknown) => {
    throw new Error(`${String(error)}\n${JSON.stringify(await moves(from))}\n${second.output}`);
  });
}

test('a sandbox that runs continues on the other host, with its id, its memory and its endpoints', async (t) => {
  const other = await bothReady();
  await host(other, 'drain');
  const vm = await service.create({ ...SMALL, persistent: true });
  const stopped = await service.create({ ...SMALL, persistent: true });
  assert.equal((await record(vm.id))['runner_id'], first.id);
  await eventually('exec', () =>
    service.exec(
      vm.id,
      `echo kept > /file; sync; echo held > /dev/shm/held; mkdir -p /www; echo page > /www/index.html
       httpd -p ${PORT} -h /www; ${COUNTER}`,
    ),
  );
  await eventually('exec', () => service.exec(stopped.id, 'echo stopped > /file; sync'));
  assert.equal((await service.call('POST', `/vms/${stopped.id}/stop`)).status, 200);
  await service.waitFor(stopped.id, 'stopped');
  const exposed = await service.call<EndpointRecord>('POST', `/vms/${vm.id}/endpoints`, {
    port: PORT,
    public: true,
  });
  assert.equal(exposed.status, 200, JSON.stringify(exposed.body));
  const url = new URL(exposed.body.url);
  assert.equal(await eventually('the page', () => page(url)), 'page\n');

  await host(other, 'undrain');
  const { moved: begun } = await host(first.id, 'drain', { move: true });
  assert.ok(begun.paused.includes(vm.id));
  const move = await moved(vm.id, first.id);
  t.diagnostic(`it did not run for ${move.pause_ms} ms`);
  assert.equal(move.error, null);
  const after = await record(vm.id);
  assert.deepEqual([after['status'], after['runner_id']], ['running', other]);
  const { result } = await eventually('exec', () => service.exec(vm.id, 'cat /file /dev/shm/held'));
  assert.equal(result, 'kept\nheld\n');
  const counts = await service.exec(vm.id, COUNTS);
  assert.equal(counts.exitCode, 0, counts.result);
  assert.equal(await eventually('the page', () => page(url)), 'page\n');

  await moved(stopped.id, first.id);
  assert.equal((await record(stopped.id))['runner_id'], other);
  assert.equal((await service.call('POST', `/vms/${stopped.id}/start`)).status, 200);
  await service.waitFor(stopped.id, 'running');
  assert.equal((await eventually('exec', () => service.exec(stopped.id, 'cat /file'))).result, 'stopped\n');
  await eventually('nothing on the first host', async () => {
    const left = await readdir(join(service.home, 'runner/vms')).catch(() => []);
    return ![vm, stopped].some(({ id }) => left.some((name) => id.endsWith(name)));
  });

  // And back, with each host killed at each step.
  await host(first.id, 'undrain');
  const steps = [
    'move:captured',
    'artifact:part-uploaded',
    'artifact:uploaded',
    'artifact:part-fetched',
    'restore:copied',
  ];
  for (const step of steps) await writeFile(join(crashes, step), '');
  await host(other, 'drain', { move: true });
  await moved(vm.id, other);
  assert.deepEqual(await readdir(crashes), []);
  assert.equal((await record(vm.id))['runner_id'], first.id);
  await service.waitFor(vm.id, 'running');
  assert.equal(
    (await eventually('exec', () => service.exec(vm.id, 'cat /file /dev/shm/held'))).result,
    'kept\nheld\n',
  );
  await moved(stopped.id, other);
  await host(other, 'undrain');
  for (const { id } of [vm, stopped]) await service.remove(id);
});
