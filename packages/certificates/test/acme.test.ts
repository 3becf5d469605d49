/** Certificates from a real ACME server (Pebble), whose challenges are published in a real DNS server (Knot). */
import assert from 'node:assert/strict';
import { X509Certificate } from 'node:crypto';
import { once } from 'node:events';
import { chmod, mkdir, readdir, readFile, rm, stat, writeFile } from 'node:fs/promises';
import type { AddressInfo } from 'node:net';
import path from 'node:path';
import { after, before, test } from 'node:test';
import { connect, createServer } from 'node:tls';
import { ACME_BINDING, startAcmeServer, type TestAcmeServer } from '@releap/testing/acme-server';
import { startDnsServer, type TestDnsServer } from '@releap/testing/dns-server';
import { eventually } from '@releap/testing/eventually';
import { quiet as log } from '@releap/testing/logging';
import { freePort } from '@releap/testing/ports';
import { temporaryFolder } from '@releap/testing/temporary-folder';
import {
  type AcmeOptions,
  acmeCertificate,
  dnsHook,
  dynamicUpdates,
  MaintainedCertificate,
} from '../src/index.ts';

const DOMAIN = 'preview.test';
const RECORD = `_acme-challenge.${DOMAIN}`;

const stack = new AsyncDisposableStack();
let folder: string;
let home: string;
let dns: TestDnsServer;
let acme: TestAcmeServer;
/** By how much the clock of the maintenance is ahead, in milliseconds. */
let ahead = 0;

before(async () => {
  folder = await temporaryFolder('releap-acme-');
  stack.defer(() => rm(folder, { recursive: true, force: true }));
  home = path.join(folder, 'home');
  dns = stack.use(await startDnsServer(folder, DOMAIN));
  acme = stack.use(await startAcmeServer(folder, { dns: `127.0.0.1:${dns.port}` }));
});
after(() => stack.disposeAsync());

async function start(options: Partial<AcmeOptions> = {}): Promise<MaintainedCertificate & AsyncDisposable> {
  const made = await MaintainedCertificate.start({
    provider: acmeCertificate({
      home,
      domain: DOMAIN,
      directoryUrl: acme.directoryUrl,
      caFile: acme.caFile,
      dns: dynamicUpdates({ server: { host: '127.0.0.1', port: dns.port }, keyFile: dns.keyFile }),
      dnsServers: [`127.0.0.1:${dns.port}`],
      dnsWaitMs: 20_000,
      pollMs: [100, 500],
      log,
      ...options,
    }),
    domain: DOMAIN,
    home: options.home ?? home,
    log,
    timing: { checkMs: 20, retryMs: 200, retryMaxMs: 1_000 },
    now: () => new Date(Date.now() + ahead),
  });
  return Object.assign(made, { [Symbol.asyncDispose]: () => made.close() });
}

/** A hook that publishes records by itself, and notes its calls. */
async function hook(name: string, script: string): Promise<string> {
  const file = path.join(folder, name);
  await writeFile(file, `#!/bin/sh\necho "$@" >> ${file}.calls\n${script}\n`);
  await chmod(file, 0o755);
  return file;
}

const calls = async (file: string): Promise<string[]> =>
  (await readFile(`${file}.calls`, 'utf8').catch(() => '')).trim().split('\n');

test('a wildcard certificate by signed dynamic updates; it is renewed ahead, also by an authority that forgot the account', async () => {
  await using certificate = await start();
  await eventually('a certificate', () => {
    assert.equal(certificate.status.problem, undefined);
    return certificate.current;
  });
  const first = certificate.current ?? assert.fail();
  assert.deepEqual(await dns.txt(RECORD), [], 'the record is removed');
  assert.ok(first.certificate.split('BEGIN CERTIFICATE').length > 2, 'with its intermediate');
  assert.equal(new X509Certificate(first.certificate).subjectAltName, `DNS:*.${DOMAIN}`);
  const folders = await readdir(path.join(home, 'certificates/acme'));
  assert.equal(folders.length, 1);
  const kept = path.join(home, 'certificates/acme', folders[0] ?? '');
  assert.deepEqual((await readdir(kept)).sort(), ['account.key', 'account.url', `${DOMAIN}.pem`]);
  for (const name of await readdir(kept))
    assert.equal((await stat(path.join(kept, name))).mode & 0o777, 0o600);

  const server = createServer({ cert: first.certificate, key: first.key }, (socket) => socket.end());
  server.listen(0, '127.0.0.1');
  await once(server, 'listening');
  const { port } = server.address() as AddressInfo;
  const client = connect({ port, ca: await acme.root(), servername: `8080-box.${DOMAIN}` });
  await once(client, 'secureConnect');
  client.destroy();
  server.close();

  const account = await readFile(path.join(kept, 'account.url'), 'utf8');
  const { not_after: notAfter } = certificate.status.certificate ?? assert.fail();
  const untilDue = (): void => {
    ahead = new Date(certificate.status.renew_at ?? assert.fail()).getTime() - Date.now();
  };
  const renew = async (what: string): Promise<void> => {
    const used = certificate.current;
    untilDue();
    await eventually(what, () => certificate.current !== used);
    ahead = 0;
  };
  await renew('a second certificate');
  assert.notEqual(certificate.current?.key, first.key);
  assert.ok(new Date(certificate.status.certificate?.not_after ?? '') >= new Date(notAfter));
  assert.equal(await readFile(path.join(kept, 'account.url'), 'utf8'), account);

  await acme.stop();
  const used = certificate.current;
  untilDue();
  await eventually('failures', () => certificate.status.failures >= 2);
  assert.match(certificate.status.problem ?? '', /ECONNREFUSED/);
  assert.equal(certificate.current, used, 'the old one serves meanwhile');
  await acme.start();
  await renew('a certificate of the authority that has begun anew');
  assert.deepEqual([certificate.status.failures, certificate.status.problem], [0, undefined]);
});

test('by a hook, which gets no credentials of the service; a restart uses what is there', async () => {
  const nsupdate = `nsupdate -k ${dns.keyFile}`;
  const program = await hook(
    'hook',
    `test -z "$RELEAP_GATEWAY_TOKEN" || exit 9
case $1 in
  present) printf 'server 127.0.0.1 ${dns.port}\\nupdate add %s. 60 TXT "%s"\\nsend\\n' "$2" "$3" | ${nsupdate};;
  cleanup) printf 'server 127.0.0.1 ${dns.port}\\nupdate delete %s. TXT "%s"\\nsend\\n' "$2" "$3" | ${nsupdate};;
esac`,
  );
  process.env['RELEAP_GATEWAY_TOKEN'] = 'secret';
  const own = { home: path.join(folder, 'with-hook'), dns: dnsHook(program, 30_000) };
  let first: string | undefined;
  {
    await using certificate = await start(own);
    await eventually('a certificate', () => {
      assert.equal(certificate.status.problem, undefined);
      return certificate.current;
    });
    first = certificate.current?.certificate;
  }
  delete process.env['RELEAP_GATEWAY_TOKEN'];
  const asked = await calls(program);
  assert.equal(asked.length, 2);
  assert.match(asked[0] ?? '', /^present _acme-challenge\.preview\.test [\w-]{43}$/);
  assert.equal(asked[1], asked[0]?.replace('present', 'cleanup'));
  await using again = await start(own);
  assert.equal(again.current?.certificate, first);
  assert.equal((await calls(program)).length, 2);
});

test('what goes wrong is said, and the next attempt may succeed', async () => {
  const own = path.join(folder, 'wrong');
  const failing = await hook('failing', 'echo "no such zone" >&2; exit 3');
  // Its child keeps the streams open, and ends with it.
  const hanging = await hook('hanging', 'sleep 600 & echo $! > $0.pid; wait');
  const silent = await hook('silent', 'exit 0');
  for (const [options, problem] of [
    [{ dns: dnsHook(failing, 30_000) }, /failing ended with exit code 3: no such zone/],
    [{ dns: dnsHook(hanging, 3_000) }, /hanging did not end within 3 s and was killed/],
    [{ dns: dnsHook(path.join(folder, 'absent'), 300) }, /absent does not exist/],
    [{ dns: dnsHook(dns.keyFile, 300) }, /update\.key may not be executed/],
    [
      { dns: dnsHook(silent, 30_000), dnsWaitMs: 1 },
      /TXT record _acme.* is not visible .* not at 127\.0\.0\.1/,
    ],
    // The authority looks by itself.
    [{ dns: dnsHook(silent, 30_000), dnsWaitMs: 0 }, /Error retrieving TXT records/],
    [{ caFile: path.join(folder, 'absent.pem') }, /ENOENT.*absent\.pem/],
    [{ directoryUrl: `https://localhost:${await freePort()}/dir` }, /ECONNREFUSED/],
    [
      { dns: dynamicUpdates({ server: { host: '127.0.0.1', port: dns.port } }) },
      /nsupdate ended with exit code 2: .*(REFUSED|NOTAUTH)/,
    ],
  ] as const) {
    await rm(own, { recursive: true, force: true });
    await using certificate = await start({ home: own, ...options });
    await eventually(String(problem), () => {
      if (certificate.status.problem !== undefined) assert.match(certificate.status.problem, problem);
      return certificate.status.failures > 0;
    });
    assert.equal(certificate.current, undefined);
  }
  const sleeping = (await readFile(`${hanging}.pid`, 'utf8')).trim();
  // By its command: the number may be that of another process by now.
  await eventually('the end of what the hook has started', async () => {
    const command = await readFile(`/proc/${sleeping}/cmdline`, 'utf8').catch(() => '');
    return !command.startsWith('sleep');
  });
  assert.ok((await calls(failing)).some((line) => line.startsWith('cleanup')));

  // As after a kill: the record of a challenge is still there.
  const [account] = await readdir(path.join(home, 'certificates/acme'));
  const left = path.join(own, 'certificates/acme', account ?? '');
  await rm(own, { recursive: true, force: true });
  await mkdir(left, { recursive: true });
  await writeFile(path.join(left, `${DOMAIN}.record`), `${RECORD} left-behind\n`);
  const updates = dynamicUpdates({ server: { host: '127.0.0.1', port: dns.port }, keyFile: dns.keyFile });
  await updates.add(RECORD, 'left-behind', AbortSignal.timeout(30_000));
  assert.deepEqual(await dns.txt(RECORD), ['left-behind']);
  await using certificate = await start({ home: own });
  await eventually('a certificate', () => certificate.current);
  assert.deepEqual(await dns.txt(RECORD), []);
});

test('an account of an authority that binds it to another one', async () => {
  const bound = await startAcmeServer(folder, { dns: `127.0.0.1:${dns.port}`, binding: true });
  stack.use(bound);
  const hmacKeyFile = path.join(folder, 'hmac');
  await writeFile(hmacKeyFile, `${ACME_BINDING.hmacKey}\n`);
  const own = {
    home: path.join(folder, 'bound'),
    directoryUrl: bound.directoryUrl,
    caFile: bound.caFile,
    email: 'operator@preview.test',
  };
  {
    await using certificate = await start(own);
    await eventually('a refusal', () => certificate.status.failures > 0);
    assert.match(certificate.status.problem ?? '', /externalAccountBinding/);
  }
  await using certificate = await start({ ...own, binding: { keyId: ACME_BINDING.keyId, hmacKeyFile } });
  await eventually('a certificate', () => certificate.current);
});
