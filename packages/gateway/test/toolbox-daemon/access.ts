/** Access to the toolbox daemon: credentials, errors, ports, its end. */
import assert from 'node:assert/strict';
import { once } from 'node:events';
import { type IncomingHttpHeaders } from 'node:http';
import { createServer, type AddressInfo } from 'node:net';
import { test } from 'node:test';
import { newToken, newUuid } from '@releap/contract';
import { until } from '@releap/testing/eventually';
import type { GrantLease } from '../../src/control/grants.ts';
import { toolbox } from '../../src/targets/toolbox.ts';
import {
  DATA_TOKEN,
  key,
  box,
  agent,
  folder,
  url,
  authorization,
  call,
  daemons,
} from '../support/toolbox-world.ts';

test('no credential enters the guest, and errors have the forms of both protocols', async () => {
  const route = toolbox.route({
    method: 'GET',
    url: `/toolbox/${box}/work-dir`,
    headers: { ...authorization, cookie: 'a=b', 'x-api-key': key, 'x-daytona-sdk-version': '0.190.1' },
    hosts: 1,
    address: '127.0.0.1',
  });
  assert.equal(route?.service, 'toolbox');
  const sent = route?.headers.request({ ...authorization, cookie: 'a=b', 'x-kept': '1' }, DATA_TOKEN, 'id');
  assert.deepEqual(Object.keys(sent ?? {}).sort(), ['x-kept', 'x-request-id']);

  for (const [method, tail, status, text] of [
    ['POST', 'lsp/start', 501, /POST \/lsp\/start/],
    ['GET', 'computeruse/process-status', 501, /computeruse\/process-status/],
    ['GET', 'no/such', 404, /no such path|not found/i],
    ['GET', 'git/no-such', 404, /not found/],
    ['PATCH', 'files/move', 405, /not allowed/],
    ['GET', 'files/search?path=%00&pattern=x', 400, /NUL/],
    ['GET', `files/search?path=${folder}/none&pattern=x`, 404, /not found/],
    ['GET', 'port/70000/in-use', 400, /1 to 65535/],
  ] as const) {
    const { body, text: raw, ...answer } = await call(method, tail);
    assert.equal(answer.status, status, `${method} ${tail}: ${raw}`);
    assert.match(String(body['message'] ?? body['error']), text);
    assert.equal(typeof body['error'], 'string', tail);
  }
  const refused = await fetch(url('work-dir', newUuid()), { headers: authorization });
  assert.equal(refused.status, 404);
  const body = (await refused.json()) as Record<string, unknown>;
  assert.deepEqual([body['error'], body['statusCode']], [body['message'], 404]);
  assert.equal((await fetch(url('work-dir'))).status, 401);
});

test('a WebSocket may send a preview token in its URL, which does not reach the guest', () => {
  const upgrade = { upgrade: 'websocket' };
  const route = (tail: string, headers: IncomingHttpHeaders) =>
    toolbox.route({ method: 'GET', url: `/toolbox/${box}/${tail}`, headers, hosts: 1, address: '127.0.0.1' });
  const token = newToken('preview');
  const found = route(`process/pty/a/connect?x=%20&DAYTONA_SANDBOX_AUTH_KEY=${token}&y`, upgrade);
  assert.equal(found?.token, token);
  assert.equal(found.upstreamPath({} as GrantLease), '/process/pty/a/connect?x=%20&y');
  // The runner serves this one.
  const entrypoint = route(
    `process/session/entrypoint/logs?follow=true&DAYTONA_SANDBOX_AUTH_KEY=${token}`,
    upgrade,
  );
  assert.deepEqual([entrypoint?.token, entrypoint?.service], [token, undefined]);
  const lease = { vmId: box } as GrantLease;
  assert.match(entrypoint?.upstreamPath(lease) ?? '', /\/process\/session\/entrypoint\/logs\?follow=true$/);
  // A header takes precedence.
  const both = route(`process/pty/a/connect?DAYTONA_SANDBOX_AUTH_KEY=${token}`, {
    ...upgrade,
    ...authorization,
  });
  assert.equal(both?.token, key);
  assert.equal(both.upstreamPath({} as GrantLease), '/process/pty/a/connect');
  for (const [tail, headers] of [
    [`process/session?DAYTONA_SANDBOX_AUTH_KEY=${token}`, {}],
    [`process/pty/a/connect?DAYTONA_SANDBOX_AUTH_KEY=${key}`, upgrade],
    [`process/stream?DAYTONA_SANDBOX_AUTH_KEY=${token}`, upgrade],
  ] as const)
    assert.throws(() => route(tail, headers), /missing or invalid credentials/, tail);
});

test('the daemon knows folders and ports of the sandbox, and is started again after its end', async () => {
  assert.deepEqual((await call('GET', 'work-dir')).body, { dir: agent.folder });
  assert.deepEqual((await call('GET', 'user-home-dir')).body, { dir: '/root' });
  const server = createServer().listen(0, '127.0.0.1');
  await once(server, 'listening');
  const { port } = server.address() as AddressInfo;
  assert.deepEqual((await call('GET', `port/${port}/in-use`)).body, { isInUse: true });
  assert.ok((await call<{ ports: number[] }>('GET', 'port')).body.ports.includes(port));
  server.close();
  await once(server, 'close');
  assert.deepEqual((await call('GET', `port/${port}/in-use`)).body, { isInUse: false });

  const [first] = await daemons();
  assert.ok(first !== undefined);
  process.kill(first, 'SIGKILL');
  await until(async () => (await call('GET', 'version')).status === 200);
  const again = await daemons();
  assert.equal(again.length, 1);
  assert.notEqual(again[0], first);
});
