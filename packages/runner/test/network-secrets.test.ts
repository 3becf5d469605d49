/** Secrets in connections of sandboxes: redirected by the firewall, decided on by netd, and put in by the interceptor. */
import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import { fileURLToPath } from 'node:url';
import { eventually } from '@releap/testing/eventually';
import { filesWith } from '@releap/testing/find-text';
import { SECRET_NAME, SECRET_VALUE as VALUE, secretPlaceholder } from '@releap/testing/secret-egress';
import { isolateNetwork } from '@releap/testing/isolated-network';
import type { NetworkWorld } from './support/network-world.ts';
import { type SecretWorld, startSecretWorld } from './support/secret-world.ts';

isolateNetwork(fileURLToPath(import.meta.url));

const VM = 'secretive';
const TOKEN = secretPlaceholder('Tok3n');

let secret: SecretWorld;
let world: NetworkWorld;

before(async () => {
  secret = await startSecretWorld(VM, TOKEN);
  ({ world } = secret);
});
after(() => secret?.[Symbol.asyncDispose]());

const inGuest = async (...argv: string[]): Promise<string> => (await secret.run(argv)).stdout;
const curl = (...argv: string[]): Promise<string> =>
  inGuest('curl', '-sS', '--max-time', '60', '-H', `X-Key: ${TOKEN}`, ...argv);

test('placeholders are replaced on the way, and values in responses', async () => {
  const answer = JSON.parse(
    await curl(
      '-d',
      `{"k":"${TOKEN}"}`,
      '-H',
      'Content-Type: application/json',
      `https://api.example/?q=${TOKEN}`,
    ),
  ) as Record<string, unknown>;
  assert.equal(answer['seen'], VALUE.length);
  // The server got the value and repeats it: the guest sees its placeholder.
  assert.deepEqual(answer, {
    url: `/?q=${TOKEN}`,
    body: `{"k":"${TOKEN}"}`,
    length: `{"k":"${VALUE}"}`.length,
    host: 'api.example',
    key: TOKEN,
    seen: VALUE.length,
    // curl and this server agree on it.
    version: '2.0',
  });
  assert.match(await curl('http://api.example:8080/'), /goes to http:\/\/api\.example.*use https:\/\//);
});

test('another domain is passed on as it is, with its own certificate; also in a redirect', async () => {
  // Not the root of interception: the server's certificate is what arrives.
  const direct = JSON.parse(
    await curl('--cacert', secret.egress.serverAuthority, 'https://other.example/'),
  ) as Record<string, unknown>;
  assert.deepEqual([direct['key'], direct['seen']], [TOKEN, TOKEN.length]);
  const followed = JSON.parse(await curl('-L', 'https://api.example/redirect')) as Record<string, unknown>;
  assert.equal(followed['url'], `/?from=${TOKEN}`);
  assert.equal(followed['seen'], TOKEN.length);
});

test('an address that is not one of the host gets nothing', async () => {
  const lie = ['--resolve', 'api.example:8080:203.0.113.3'];
  const plain = await inGuest(
    'curl',
    '-sS',
    '--max-time',
    '60',
    ...lie,
    '-H',
    `X-Key: ${TOKEN}`,
    'http://api.example:8080/',
  );
  assert.equal((JSON.parse(plain) as Record<string, unknown>)['seen'], TOKEN.length);
});

test('git, Python and Node trust the certificate as curl does', async () => {
  assert.match(
    await inGuest('git', 'ls-remote', `https://user:${TOKEN}@api.example/repo`),
    /^c0ffee[0-9a-f]+\trefs\/heads\/main$/m,
  );
  const seen = new RegExp(`"seen": ?${VALUE.length}`);
  const script = `require('https').get('https://api.example/', { headers: { 'x-key': '${TOKEN}' } }, (r) => r.pipe(process.stdout))`;
  assert.match(await inGuest(process.execPath, '-e', script), seen);
  const python = `
import urllib.request
request = urllib.request.Request("https://api.example/", headers={"X-Key": "${TOKEN}"})
print(urllib.request.urlopen(request).read().decode())`;
  assert.match(await inGuest('/usr/bin/python3', '-c', python), seen);
});

test('it survives the runner and its own death, and the value is in no file', async () => {
  const pid = (await world.network.interceptorPid()) ?? assert.fail('it does not run');
  await world.network.detach();
  const seen = async (): Promise<unknown> =>
    (JSON.parse(await curl('https://api.example/')) as Record<string, unknown>)['seen'];
  assert.equal(await seen(), VALUE.length);
  await world.reopen();
  // As for a sandbox that the runner has found again.
  world.network.replaceSecrets(VM, ['api.example'], { [SECRET_NAME]: TOKEN });
  assert.equal(await seen(), VALUE.length);
  assert.equal(await world.network.interceptorPid(), pid);
  process.kill(pid, 'SIGKILL');
  await eventually('another one replaces', async () => (await seen()) === VALUE.length);
  assert.notEqual(await world.network.interceptorPid(), pid);
  assert.deepEqual(filesWith(world.home, VALUE), []);
});
