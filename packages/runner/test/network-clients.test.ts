/** Real clients: through the interceptor with a secret, and through the egress proxy that reads names and passes bytes on. */
import assert from 'node:assert/strict';
import { execFile } from 'node:child_process';
import { readFile, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { once } from 'node:events';
import { type AddressInfo, createServer } from 'node:net';
import { after, before, describe, test } from 'node:test';
import { fileURLToPath } from 'node:url';
import { promisify } from 'node:util';
import { isNightly } from '@releap/testing/repetitions';
import { SECRET_VALUE as VALUE, secretPlaceholder, type SecretEgress } from '@releap/testing/secret-egress';
import { buildGoProgram } from './support/go-program.ts';
import { isolateNetwork } from '@releap/testing/isolated-network';
import type { Namespace } from './support/namespaces.ts';
import { type SecretWorld, startSecretWorld } from './support/secret-world.ts';

isolateNetwork(fileURLToPath(import.meta.url));

const TOKEN = secretPlaceholder('Tok3n');
const support = (name: string): string => fileURLToPath(new URL(`support/${name}`, import.meta.url));
const run = promisify(execFile);

let secret: SecretWorld;
let egress: SecretEgress;
/** One with a secret for api.example, and one whose policy allows other.example. */
let secretive: Namespace;
let bound: Namespace;
let home: string;
let goClient: string;

before(async () => {
  secret = await startSecretWorld('secretive', TOKEN);
  ({ egress, guest: secretive } = secret);
  ({ home } = secret.world);
  bound = await secret.world.guest('bound', { enabled: true, allow: ['other.example'] });
  await bound.ask('resolve', { name: 'other.example' });
  goClient = join(home, 'https-client');
  await buildGoProgram('https-client', goClient);
});
after(async () => {
  await bound?.[Symbol.asyncDispose]();
  await secret?.[Symbol.asyncDispose]();
});

/** What a program writes in the network of a guest, whatever it exits with. */
async function inGuest(guest: Namespace, argv: readonly string[], trusted = egress.trusted): Promise<string> {
  const { stdout, stderr } = await secret
    .run(argv, { guest, trusted })
    .catch((error: { stdout: string; stderr: string }) => error);
  return `${stdout}${stderr}`;
}

const goRequest = (url: string): string[] => [
  'sh',
  '-c',
  'echo "$1" | "$0"',
  goClient,
  JSON.stringify([{ url, key: TOKEN }]),
];

describe('with a secret', () => {
  test('pip installs from a private index', async () => {
    const target = join(home, 'site');
    const said = await inGuest(secretive, [
      '/usr/bin/python3',
      '-m',
      'pip',
      'install',
      '--no-cache-dir',
      '--no-deps',
      '--target',
      target,
      '--index-url',
      `https://user:${TOKEN}@api.example/simple/`,
      'hello',
    ]);
    assert.match(said, /Successfully installed hello-1\.0/);
    assert.match(await readFile(join(target, 'hello.py'), 'utf8'), /WORD/);
  });

  test('npm installs from a private registry', async () => {
    const folder = join(home, 'app');
    await run('mkdir', [folder]);
    await writeFile(join(folder, 'package.json'), '{"name":"app","version":"1.0.0"}');
    await writeFile(
      join(folder, '.npmrc'),
      `registry=https://api.example/npm/\n//api.example/npm/:_authToken=${TOKEN}\naudit=false\nfund=false\nupdate-notifier=false\n`,
    );
    const said = await inGuest(secretive, ['npm', 'install', '--prefix', folder, 'hello@1.0.0']);
    assert.match(said, /added 1 package/);
    const installed = await readFile(join(folder, 'node_modules/hello/package.json'), 'utf8');
    assert.match(installed, /"hello"/);
  });

  test('a static Go binary speaks HTTP/2', async () => {
    const said = await inGuest(secretive, goRequest('https://api.example/go'));
    assert.match(said, /HTTP\/2\.0 200 /);
    assert.ok(said.includes(String.raw`\"seen\":${VALUE.length}`), said);
  });

  const heavy = { skip: !isNightly() && 'three virtual machines of Java: in the nightly run' };
  test('Java trusts the store that the agent has added the certificate to', heavy, async (t) => {
    const java = await run('sh', ['-c', 'command -v java javac keytool']).catch(() => undefined);
    if (java === undefined) return t.skip('needs a JDK, as of default-jdk-headless: 190 MB');
    const root = join(home, 'image');
    const store = join(root, 'etc/ssl/certs/java/cacerts');
    await run('mkdir', ['-p', join(root, 'etc/ssl/certs/java')]);
    const password = ['-storepass', 'changeit'];
    const other = ['-importcert', '-noprompt', '-alias', 'other', '-file', egress.serverAuthority];
    await run('keytool', [...other, '-keystore', store, '-storetype', 'jks', ...password]);
    const pem = join(home, 'root.pem');
    await writeFile(pem, egress.guests.certificate);
    await run(process.env['RELEAP_TEST_GO'] || 'go', ['run', './internal/boot/installtrust', root, pem], {
      cwd: fileURLToPath(new URL('../../../guest', import.meta.url)),
      env: { ...process.env, GOTOOLCHAIN: 'local' },
    });
    const said = await inGuest(secretive, [
      'java',
      `-Djavax.net.ssl.trustStore=${store}`,
      support('HttpsClient.java'),
      TOKEN,
      'https://api.example/java',
    ]);
    assert.match(said, new RegExp(`^HTTP_2 .*"url":"/java".*"seen":${VALUE.length}`, 'm'));
  });
});

describe('with an egress policy', () => {
  const get = (host: string): string =>
    `GET / HTTP/1.1\\r\\nHost: ${host}\\r\\nConnection: close\\r\\n\\r\\n`;
  const openssl = (host: string, version: string): string[] => [
    'sh',
    '-c',
    `(printf '${get(host)}'; sleep 1) | openssl s_client -quiet -verify_return_error -${version} -CAfile ${egress.serverAuthority} -connect ${host}:443 -servername ${host}`,
  ];
  const curl = (host: string, ...more: string[]): string[] => [
    'curl',
    '-sS',
    '--max-time',
    '60',
    '--cacert',
    egress.serverAuthority,
    ...more,
    `https://${host}/`,
  ];
  const node = (host: string): string[] => [
    process.execPath,
    '-e',
    `require('https').get('https://${host}/', (r) => r.pipe(process.stdout)).on('error', (e) => console.log(e.code))`,
  ];
  const python = (host: string): string[] => [
    '/usr/bin/python3',
    '-c',
    `import urllib.request; print(urllib.request.urlopen("https://${host}/").read().decode())`,
  ];
  const clients: Record<string, (host: string) => string[]> = {
    'openssl, TLS 1.2': (host) => openssl(host, 'tls1_2'),
    'openssl, TLS 1.3': (host) => openssl(host, 'tls1_3'),
    'curl, TLS 1.2': (host) => curl(host, '--tls-max', '1.2'),
    'curl, TLS 1.3': (host) => curl(host, '--tlsv1.3'),
    // Node's and Go's have keys of X25519MLKEM768: ClientHellos of several segments.
    Node: node,
    Python: python,
    Go: (host) => goRequest(`https://${host}/`),
  };
  for (const [name, argv] of Object.entries(clients))
    test(`${name} reaches the allowed name with its own handshake, and no other`, async () => {
      const allowed = await inGuest(bound, argv('other.example'), egress.serverAuthority);
      assert.match(allowed, /url\\?":\\?"\//);
      const refused = await inGuest(bound, argv('api.example'), egress.serverAuthority);
      assert.doesNotMatch(refused, /url\\?":/);
      assert.match(refused, /refused|reset|ECONN|Couldn't connect/i);
    });

  test('the ClientHello of Node is longer than a segment', async () => {
    const length = Promise.withResolvers<number>();
    const server = createServer((socket) => {
      socket.once('data', (bytes) => {
        // Of its first record.
        length.resolve(bytes.readUInt16BE(3));
        socket.destroy();
      });
    });
    server.listen(0, '127.0.0.1');
    await once(server, 'listening');
    const { port } = server.address() as AddressInfo;
    const [program = '', ...argv] = node(`localhost:${port}`);
    await run(program, argv);
    server.close();
    assert.ok((await length.promise) > 1448);
  });
});
