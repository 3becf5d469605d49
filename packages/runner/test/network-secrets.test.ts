/** Secrets in connections of sandboxes: redirected by the firewall, decided on by netd, and put in by the interceptor. */
import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { createHash } from 'node:crypto';
import { once } from 'node:events';
import { rm, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { after, before, test } from 'node:test';
import { fileURLToPath } from 'node:url';
import { testAuthority } from '@releap/testing/certificates';
import { eventually } from '@releap/testing/eventually';
import { filesWith } from '@releap/testing/find-text';
import { run } from '../src/process/index.ts';
import { isolateNetwork } from './support/isolated-network.ts';
import type { Namespace } from './support/namespaces.ts';
import { NetworkWorld } from './support/network-world.ts';

isolateNetwork(fileURLToPath(import.meta.url));

const VM = 'secretive';
const TOKEN = `rlps_${'Tok3n'.repeat(9).slice(0, 43)}`;
const VALUE = 'a-value-that-nobody-sees-4d7a';
const ZONE: Record<string, string> = { 'api.example': '203.0.113.2', 'other.example': '203.0.113.3' };
const RUN_DIR = `/run/releap-test-${process.pid}`;

let world: NetworkWorld;
let guest: Namespace;
/** Certificates that a guest's programs trust: the root of interception, and that of the server. */
let trusted: string;

before(async () => {
  const [guests, servers] = [await testAuthority('guests'), await testAuthority('servers')];
  const placeholders = [createHash('sha256').update(TOKEN).digest('hex')];
  const secret = { name: 'KEY', value: VALUE, allowed_domains: ['api.example'], placeholders };
  world = await NetworkWorld.start({
    resolve: (name) => (ZONE[name] === undefined ? undefined : [ZONE[name]]),
    ttl: 30,
    network: {
      // The user that netd is must reach it.
      runDir: RUN_DIR,
      secrets: {
        extraCa: servers.certificate,
        source: {
          certificate: (request) => guests.signIntermediate(request),
          changed: (known) =>
            Promise.resolve({
              sandboxes: known
                .filter(({ revision }) => revision === undefined)
                .map(({ id }) => ({ id, revision: '1', secrets: [secret] })),
              more: false,
            }),
        },
      },
    },
  });
  const { key, cert } = await servers.issue('api.example', 'other.example');
  const files = { key, cert, guests: guests.certificate, servers: servers.certificate };
  const at = (name: string): string => join(world.home, `${name}.pem`);
  for (const [name, text] of Object.entries(files)) await writeFile(at(name), text);
  trusted = at('trusted');
  await writeFile(trusted, `${guests.certificate}${servers.certificate}`);
  const echo = spawn(
    'nsenter',
    [
      `--net=${world.internet.path}`,
      '--',
      process.execPath,
      support('echo-server.mjs'),
      at('key'),
      at('cert'),
    ],
    { stdio: ['ignore', 'pipe', 'inherit'] },
  );
  world.internet.keep(echo);
  await once(echo.stdout, 'data');
  guest = await world.guest(VM, undefined, { intercept: true });
  world.network.replaceSecrets(VM, ['api.example'], { KEY: TOKEN });
});
after(async () => {
  await guest?.[Symbol.asyncDispose]();
  await world?.[Symbol.asyncDispose]();
  await rm(RUN_DIR, { recursive: true, force: true });
});

const support = (name: string): string => fileURLToPath(new URL(`support/${name}`, import.meta.url));

/** Runs a program in the network of the guest. */
const inGuest = async (...argv: string[]): Promise<string> =>
  await run('nsenter', [
    `--net=${guest.path}`,
    '--',
    'env',
    `SSL_CERT_FILE=${trusted}`,
    `NODE_EXTRA_CA_CERTS=${trusted}`,
    `GIT_SSL_CAINFO=${trusted}`,
    'GIT_TERMINAL_PROMPT=0',
    ...argv,
  ]);
const hosts = ['api.example', 'other.example'].flatMap((host) =>
  [8080, 443].flatMap((port) => ['--resolve', `${host}:${port}:${ZONE[host]}`]),
);
const curl = (...argv: string[]): Promise<string> =>
  inGuest('curl', '-sS', '--max-time', '60', '--cacert', trusted, ...hosts, '-H', `X-Key: ${TOKEN}`, ...argv);

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
    host: 'api.example',
    key: TOKEN,
    seen: VALUE.length,
  });
  const plain = JSON.parse(await curl('http://api.example:8080/')) as Record<string, unknown>;
  assert.equal(plain['seen'], VALUE.length);
});

test('another domain is passed on as it is, with its own certificate; also in a redirect', async () => {
  // Not the root of interception: the server's certificate is what arrives.
  const direct = JSON.parse(
    await curl('--cacert', join(world.home, 'servers.pem'), 'https://other.example/'),
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
    await inGuest(
      'git',
      '-c',
      'http.curloptResolve=api.example:443:203.0.113.2',
      'ls-remote',
      `https://user:${TOKEN}@api.example/repo`,
    ),
    /^c0ffee[0-9a-f]+\trefs\/heads\/main$/m,
  );
  const lookup = `(host, options, done) => options.all ? done(null, [{ address: '203.0.113.2', family: 4 }]) : done(null, '203.0.113.2', 4)`;
  const script = `require('https').get('https://api.example/', { lookup: ${lookup}, headers: { 'x-key': '${TOKEN}' } }, (r) => r.pipe(process.stdout))`;
  assert.match(await inGuest(process.execPath, '-e', script), new RegExp(`"seen":${VALUE.length}`));
  const python = `
import http.client, socket, ssl
s = ssl.create_default_context().wrap_socket(socket.create_connection(("203.0.113.2", 443)), server_hostname="api.example")
s.sendall(b"GET / HTTP/1.1\\r\\nHost: api.example\\r\\nX-Key: ${TOKEN}\\r\\nConnection: close\\r\\n\\r\\n")
r = http.client.HTTPResponse(s); r.begin(); print(r.read().decode())`;
  assert.match(await inGuest('/usr/bin/python3', '-c', python), new RegExp(`"seen":${VALUE.length}`));
});

test('it survives the runner and its own death, and the value is in no file', async () => {
  const pid = (await world.network.interceptorPid()) ?? assert.fail('it does not run');
  await world.network.detach();
  const seen = async (): Promise<unknown> =>
    (JSON.parse(await curl('https://api.example/')) as Record<string, unknown>)['seen'];
  assert.equal(await seen(), VALUE.length);
  await world.reopen();
  // As for a sandbox that the runner has found again.
  world.network.replaceSecrets(VM, ['api.example'], { KEY: TOKEN });
  assert.equal(await seen(), VALUE.length);
  assert.equal(await world.network.interceptorPid(), pid);
  process.kill(pid, 'SIGKILL');
  await eventually('another one replaces', async () => (await seen()) === VALUE.length);
  assert.notEqual(await world.network.interceptorPid(), pid);
  assert.deepEqual(filesWith(world.home, VALUE), []);
});
