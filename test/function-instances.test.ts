/** Instances of functions in real micro-VMs, as a gateway leases them: from the start of their handler, and from memory. */
import assert from 'node:assert/strict';
import { readFile } from 'node:fs/promises';
import { request } from 'node:http';
import { join } from 'node:path';
import type { Duplex } from 'node:stream';
import { text } from 'node:stream/consumers';
import { after, before, describe, test } from 'node:test';
import {
  newUuid,
  PORT_STREAM_PROTOCOL,
  portStreamPath,
  type FunctionVersionRecord,
  type GatewayGrant,
} from '@releap/contract';
import { eventually } from '@releap/testing/eventually';
import { GatewayClient } from '@releap/testing/gateway-client';
import type { Service } from '@releap/testing/service';
import { sharedService } from '@releap/testing/shared-service';

const PORT = 8080;
/** The answer to a request: what the handler drew from the kernel's random numbers when it started, and what a process draws now. */
const HANDLER = [
  '/bin/sh',
  '-c',
  `mkdir -p /www/cgi-bin && cat /proc/sys/kernel/random/uuid > /www/started
printf '#!/bin/sh\\nprintf "content-type: text/plain\\\\r\\\\n\\\\r\\\\n"; echo $(cat /www/started) $(cat /proc/sys/kernel/random/uuid) $(hostname) $RLP_FN_PORT $GREETING' > /www/cgi-bin/who
chmod +x /www/cgi-bin/who && echo ready && exec httpd -f -p $RLP_FN_PORT -h /www`,
];

/** One request to the handler, over the data server of the instance's host. */
async function call({ data_url, data_token, vm_id }: GatewayGrant): Promise<string> {
  const upgrade = Promise.withResolvers<Duplex>();
  request({
    ...(data_url.startsWith('unix:')
      ? { socketPath: data_url.slice('unix:'.length) }
      : { host: new URL(data_url).hostname, port: new URL(data_url).port }),
    path: portStreamPath(vm_id, PORT),
    headers: { connection: 'Upgrade', upgrade: PORT_STREAM_PROTOCOL, authorization: `Bearer ${data_token}` },
  })
    .on('upgrade', (_response, socket) => upgrade.resolve(socket))
    .on('response', (response) => upgrade.reject(new Error(`status ${response.statusCode}`)))
    .on('error', upgrade.reject)
    .end();
  const socket = await upgrade.promise;
  socket.write('GET /cgi-bin/who HTTP/1.0\r\n\r\n');
  const answer = await text(socket);
  assert.match(answer, /^HTTP\/1\.[01] 200/);
  return answer.split('\r\n\r\n')[1]?.trim() ?? '';
}

describe('instances of functions', () => {
  let service: Service;
  let gateway: GatewayClient;
  before(async () => {
    service = await sharedService();
    const token = (await readFile(join(service.home, 'gateway.token'), 'utf8')).trim();
    gateway = await new GatewayClient(service.bootstrap.internal_url ?? '', token).open(newUuid());
  });
  after(async () => {
    gateway?.[Symbol.dispose]();
    await service?.[Symbol.asyncDispose]();
  });

  async function deploy(name: string, body: object): Promise<FunctionVersionRecord> {
    const sent = { name, image: { type: 'named', name: 'busybox' }, mem_mib: 256, scratch_mib: 64, ...body };
    const answer = await service.call('POST', '/fns', sent);
    assert.equal(answer.status, 200, JSON.stringify(answer.body));
    const read = async (): Promise<FunctionVersionRecord | undefined> =>
      (await service.call<{ versions: FunctionVersionRecord[] }>('GET', `/fns/${name}/versions`)).body
        .versions[0];
    return eventually(`the version of ${name} was tried`, async () => {
      const version = await read();
      return version?.template_state === 'pending' ? undefined : version;
    });
  }
  /** Calls an instance when its handler listens. */
  const reply = (grant: GatewayGrant): Promise<string[]> =>
    eventually('the handler answers', async () => (await call(grant).catch(() => undefined))?.split(' '));

  test('start the handler, with its environment and its port', async () => {
    const version = await deploy('plain', { handler: HANDLER, env: { GREETING: 'hello' } });
    assert.deepEqual([version.template_state, version.template_error], ['published', null]);
    const grants = await Promise.all([gateway.instance(version.id), gateway.instance(version.id)]);
    const [one = [], two = []] = await Promise.all(grants.map(reply));
    assert.deepEqual(one.slice(2), ['plain', String(PORT), 'hello']);
    assert.notEqual(one[0], two[0], 'each has started its own');
    gateway.release(grants.map(({ id }) => id));
  });

  test('of fn_ready continue from one handler that was ready, each with random numbers of its own', async () => {
    const version = await deploy('ready', {
      handler: HANDLER,
      snapshot_kind: 'fn_ready',
      env: { GREETING: 'hi' },
    });
    assert.deepEqual([version.template_state, version.template_error], ['published', null]);
    const grants = await Promise.all([gateway.instance(version.id), gateway.instance(version.id)]);
    const [one = [], two = []] = await Promise.all(grants.map(reply));
    assert.equal(one[0], two[0], 'both are copies of one process');
    assert.notEqual(one[1], two[1]);
    assert.deepEqual(one.slice(2), ['ready', String(PORT), 'hi']);
    gateway.release(grants.map(({ id }) => id));
  });

  test('that cannot serve say why', async () => {
    const version = await deploy('broken', { handler: ['/bin/sh', '-c', 'echo no such module; exit 7'] });
    assert.equal(version.template_state, 'failed');
    assert.equal(
      version.template_error,
      `the handler ended with status 7 before it listened on port ${PORT}; its last output:\nno such module`,
    );
  });

  test('end when no gateway has them, and are never among the sandboxes of the project', async () => {
    assert.deepEqual((await service.call<{ vms: object[] }>('GET', '/vms')).body.vms, []);
    assert.deepEqual((await service.call<{ snapshots: object[] }>('GET', '/snapshots')).body.snapshots, []);
    for (const name of ['plain', 'ready', 'broken'])
      assert.equal((await service.call('DELETE', `/fns/${name}`)).status, 204);
  });
});
