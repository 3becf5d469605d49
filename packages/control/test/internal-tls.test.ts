/** The internal listener for other machines, and how they know it. Who gets no plain HTTP is tested between networks (test/far-host). */
import assert from 'node:assert/strict';
import { once } from 'node:events';
import { readFile, stat } from 'node:fs/promises';
import { connect } from 'node:net';
import { join } from 'node:path';
import { text } from 'node:stream/consumers';
import { after, before, describe, it } from 'node:test';
import { connect as connectTls } from 'node:tls';
import { ControlAccess } from '@releap/certificates/hosts';
import { type HostAuthorityRecord, RUNNER_DATA_KEY_PATH } from '@releap/contract';
import { GATEWAY_TOKEN } from '@releap/testing/credentials';
import { until } from '@releap/testing/eventually';
import { TestAuthority } from '@releap/testing/host-authority';
import { keyPath, testKeys } from '@releap/testing/keys';
import { quiet } from '@releap/testing/logging';
import { temporaryFolder } from '@releap/testing/temporary-folder';
import { startWorld, type World } from '@releap/testing/world';
import { startGateway } from '@releap/gateway';

let world: World;
let folder: string;
let url: string;
let fingerprint: string;
before(async () => {
  world = await startWorld({ keys: testKeys(keyPath()), internalTls: true });
  folder = await temporaryFolder('releap-internal-');
  url = world.internalUrl.replace('http:', 'https:');
  ({ fingerprint } = (await world.operator('GET', '/operator/host-authority')).body as HostAuthorityRecord);
});
after(() => world[Symbol.asyncDispose]());

const post = (access: ControlAccess): Promise<number> =>
  access.fetch(new URL(RUNNER_DATA_KEY_PATH, access.url), { method: 'POST' }).then(async (answer) => {
    await answer.text();
    return answer.status;
  });
/** What undici says is in the cause. */
const refused = async (access: ControlAccess): Promise<string> =>
  await post(access).then(
    (status) => `answered ${status}`,
    (error: Error) => `${error.message} ${String(error.cause)}`,
  );

describe('the internal listener with TLS', () => {
  it('is known by the fingerprint of its authority, and then by the root itself', async () => {
    const file = join(folder, 'root.pem');
    assert.equal(await post(new ControlAccess(url, { file, fingerprint })), 401);
    assert.match(await readFile(file, 'utf8'), /BEGIN CERTIFICATE/);
    assert.equal((await stat(file)).mode & 0o777, 0o600);
    // The file is enough, and decides from then on.
    const known = new ControlAccess(url, { file });
    assert.equal(await post(known), 401);
    assert.equal(await known.isPinned(), true);
    assert.equal(await post(new ControlAccess(url, { file, fingerprint: '0'.repeat(64) })), 401);
  });

  it('is refused where it is of another authority, and nothing is sent to it', async () => {
    const file = join(folder, 'other.pem');
    const wrong = new ControlAccess(url, { file, fingerprint: '0'.repeat(64) });
    assert.match(await refused(wrong), /RELEAP_CONTROL_FINGERPRINT/);
    await assert.rejects(readFile(file), { code: 'ENOENT' });
    const learned = new ControlAccess(url, { file, fingerprint });
    assert.equal(await learned.isPinned(), true);
    await learned.follow((await TestAuthority.create()).root);
    assert.match(await refused(new ControlAccess(url, { file, fingerprint })), /certificate/i);
    assert.doesNotMatch(await refused(new ControlAccess(url)), /answered/);
  });

  it('serves a gateway that knows it by the fingerprint', async () => {
    const gateway = await startGateway({
      listen: { host: '127.0.0.1', port: 0 },
      controlUrl: url,
      controlTrust: { file: join(folder, 'gateway.pem'), fingerprint },
      credential: async () => GATEWAY_TOKEN,
      log: quiet,
      limits: { graceMs: 100 },
    });
    const sandbox = '00000000-0000-4000-8000-00000000000b';
    await until(async () => {
      const answer = await fetch(`http://127.0.0.1:${gateway.port}/toolbox/${sandbox}/files`, {
        headers: { authorization: `Bearer rlp_${'a'.repeat(43)}` },
      });
      await answer.text();
      return answer.status === 401;
    });
    await gateway.close();
  });

  it('speaks plain HTTP to its own machine, at the same port', async () => {
    assert.equal((await world.operator('GET', '/operator/hosts')).status, 200);
  });

  it('ends connections that are neither', async () => {
    const port = Number(new URL(url).port);
    const socket = connect(port, '127.0.0.1');
    socket.end('nonsense\r\n\r\n');
    assert.match(await text(socket), /^HTTP\/1\.1 400 /);
    const half = connect(port, '127.0.0.1');
    half.end(Buffer.of(0x16, 3, 1, 0xff, 0xff));
    await once(half.resume(), 'close');
    const old = connectTls({ port, host: '127.0.0.1', maxVersion: 'TLSv1.2', rejectUnauthorized: false });
    const [error] = (await once(old, 'error')) as [NodeJS.ErrnoException];
    assert.match(error.code ?? '', /EPROTO|PROTOCOL_VERSION/);
    assert.equal((await world.operator('GET', '/operator/hosts')).status, 200);
  });
});
