import assert from 'node:assert/strict';
import { createPrivateKey, X509Certificate } from 'node:crypto';
import { once } from 'node:events';
import { readFile, rm, stat, writeFile } from 'node:fs/promises';
import type { AddressInfo } from 'node:net';
import path from 'node:path';
import { after, before, describe, test } from 'node:test';
import { connect, createServer } from 'node:tls';
import { isDeepStrictEqual } from 'node:util';
import { devRootFile, PREVIEW_CERTIFICATE_FILES } from '@releap/contract/preview-certificate';
import { eventually } from '@releap/testing/eventually';
import { quiet as log } from '@releap/testing/logging';
import { temporaryFolder } from '@releap/testing/temporary-folder';
import {
  type CertificatePair,
  type CertificateProvider,
  certificateFiles,
  devAuthority,
  MaintainedCertificate,
  type MaintainedCertificateOptions,
} from '../src/index.ts';
import { retryDelay } from '../src/maintained-certificate.ts';
import {
  createRoot,
  exportKeyPem,
  generateKeys,
  importSigningKey,
  type Issuer,
  issueLeaf,
  parseCertificate,
  toPem,
} from '../src/x509.ts';

const DOMAIN = 'preview.test';
const HOST = `8080-box.${DOMAIN}`;
const HOUR_MS = 3_600_000;
const DAY_MS = 24 * HOUR_MS;

let folder: string;
let homes = 0;
before(async () => {
  folder = await temporaryFolder('releap-certificates-');
});
after(() => rm(folder, { recursive: true, force: true }));

const newHome = (): string => path.join(folder, `home-${homes++}`);

async function newIssuer(): Promise<Issuer> {
  const keys = await generateKeys(true);
  const root = await createRoot({ commonName: 'test', keys, validMs: 365 * DAY_MS, pathLength: 0 });
  return { certificate: root, key: keys.privateKey };
}

async function newPair(issuer: Issuer, host = `*.${DOMAIN}`, validMs = 3 * DAY_MS): Promise<CertificatePair> {
  const keys = await generateKeys(true);
  const leaf = await issueLeaf(issuer, { hosts: [host], publicKey: keys.publicKey, validMs });
  return { certificate: toPem(leaf), key: await exportKeyPem(keys.privateKey) };
}

async function start(
  provider: CertificateProvider,
  options: Partial<MaintainedCertificateOptions> = {},
): Promise<MaintainedCertificate & AsyncDisposable> {
  const made = await MaintainedCertificate.start({
    provider,
    domain: DOMAIN,
    home: newHome(),
    log,
    timing: { checkMs: 10 },
    ...options,
  });
  return Object.assign(made, { [Symbol.asyncDispose]: () => made.close() });
}

/** What a TLS client says of a server with this certificate; undefined for nothing. */
async function refusal(pair: CertificatePair, ca: string, servername: string): Promise<string | undefined> {
  const server = createServer({ cert: pair.certificate, key: pair.key }, (socket) => socket.end());
  server.on('tlsClientError', () => undefined);
  server.listen(0, '127.0.0.1');
  await once(server, 'listening');
  const { port } = server.address() as AddressInfo;
  const client = connect({ host: '127.0.0.1', port, ca, servername });
  try {
    await once(client, 'secureConnect');
    return undefined;
  } catch (error) {
    return `${(error as NodeJS.ErrnoException).code}: ${(error as Error).message}`;
  } finally {
    client.destroy();
    server.close();
  }
}

describe('a certificate in files', () => {
  test('is checked and read again; what is not usable leaves the one before in use', async () => {
    const issuer = await newIssuer();
    const [file, keyFile] = [path.join(folder, 'cert.pem'), path.join(folder, 'key.pem')];
    const put = async ({ certificate, key }: CertificatePair): Promise<void> => {
      // The certificate of one pair and the key of the next may be a pair, too: a look in between must not find one.
      await rm(keyFile, { force: true });
      await writeFile(file, certificate);
      await writeFile(keyFile, key);
    };
    const home = newHome();
    await using certificate = await start(certificateFiles(file, keyFile), { home });
    assert.equal(certificate.current, undefined);
    assert.match(certificate.status.problem ?? '', /ENOENT.*cert\.pem/);

    const placeholder = await certificate.served();
    assert.match(new X509Certificate(placeholder.certificate).subject, /no certificate yet/);
    assert.equal(await certificate.served(), placeholder);

    const seen: CertificatePair[] = [];
    certificate.onChange((pair) => seen.push(pair));
    const first = await newPair(issuer);
    await put(first);
    await eventually('the certificate', () => certificate.current !== undefined);
    assert.deepEqual(seen, [first]);
    assert.equal(await certificate.served(), certificate.current);
    const { mode } = await stat(certificate.file);
    assert.equal(mode & 0o777, 0o600);
    const text = await readFile(certificate.file, 'utf8');
    assert.ok(text.includes(first.certificate) && text.includes(first.key));

    const second = await newPair(issuer);
    for (const [bad, problem] of [
      [{ ...second, key: first.key }, /the key does not belong to the certificate/],
      [{ ...second, certificate: 'no certificate' }, /the certificate cannot be read/],
      [{ ...second, key: '' }, /the key cannot be read/],
      [
        await newPair(issuer, '*.other.test'),
        /not valid for names below preview\.test: it is for DNS:\*\.other/,
      ],
      [await newPair(issuer, DOMAIN), /\*\.preview\.test is needed/],
    ] as const) {
      await put(bad);
      await eventually(String(problem), () => problem.test(certificate.status.problem ?? ''));
      assert.deepEqual(certificate.current, first);
    }
    // Written after it is known.
    await eventually('the status in its file', async () => {
      const text = await readFile(path.join(home, PREVIEW_CERTIFICATE_FILES.status), 'utf8');
      return isDeepStrictEqual(JSON.parse(text), certificate.status);
    });
    assert.equal(
      certificate.status.certificate?.fingerprint,
      new X509Certificate(first.certificate).fingerprint256,
    );

    await put(second);
    await eventually('the second one', () => certificate.current?.key === second.key);
    assert.equal(certificate.status.problem, undefined);
    // Clients refuse it; nothing else can be served.
    const expired = await newPair(issuer, `*.${DOMAIN}`, -HOUR_MS);
    await put(expired);
    await eventually('the expired one', () => certificate.current?.key === expired.key);
    assert.ok((certificate.notAfter ?? new Date()) < new Date());
    assert.equal(seen.length, 3);
  });
});

describe('the development CA', () => {
  test('its root is for one domain; its leaf is renewed ahead, and made again when it is damaged', async () => {
    const home = newHome();
    let now = new Date();
    const provider = devAuthority({ home, domain: DOMAIN, log });
    const rootFile = path.join(home, devRootFile(DOMAIN));
    const files = ['root.pem', 'root.key', 'leaf.pem'].map((name) => path.join(path.dirname(rootFile), name));
    let first: CertificatePair | undefined;
    {
      await using certificate = await start(provider, { home, now: () => now });
      first = certificate.current;
      assert.ok(first);
      for (const file of [...files, certificate.file])
        assert.equal((await stat(file)).mode & 0o777, 0o600, file);
      const root = await readFile(rootFile, 'utf8');
      assert.equal(await refusal(first, root, HOST), undefined);
      assert.match((await refusal(first, root, 'www.other.test')) ?? '', /ERR_TLS_CERT_ALTNAME_INVALID/);

      now = new Date(Date.now() + 45 * DAY_MS);
      await eventually('a look', () => certificate.status.renew_at !== undefined);
      assert.equal(certificate.current, first);
      now = new Date(Date.now() + 65 * DAY_MS);
      await eventually('a new leaf', () => certificate.current !== first);
      assert.equal(await readFile(rootFile, 'utf8'), root);
      first = certificate.current ?? assert.fail();
      assert.ok(new X509Certificate(first.certificate).verify(new X509Certificate(root).publicKey));
      now = new Date();
    }
    {
      await using certificate = await start(provider, { home });
      assert.deepEqual(certificate.current, first, 'a restart keeps root and leaf');
      await writeFile(files[2] ?? '', 'damaged');
      await eventually('another leaf', () => certificate.current?.key !== first?.key);
      const root = await readFile(rootFile, 'utf8');
      // A key that was not written completely: the root is of no use any more.
      await writeFile(files[1] ?? '', '');
      await eventually('another root', async () => (await readFile(rootFile, 'utf8')) !== root);
      const next = await readFile(rootFile, 'utf8');
      await eventually('a leaf of it', async () => {
        const pair = certificate.current;
        return pair !== undefined && (await refusal(pair, next, HOST)) === undefined;
      });
    }
  });

  test('with a stolen key of its root, no client trusts a certificate for other names', async () => {
    const home = newHome();
    await using _certificate = await start(devAuthority({ home, domain: DOMAIN, log }), { home });
    const root = await readFile(path.join(home, devRootFile(DOMAIN)), 'utf8');
    const key = await readFile(path.join(home, path.dirname(devRootFile(DOMAIN)), 'root.key'), 'utf8');
    const der = createPrivateKey(key).export({ type: 'pkcs8', format: 'der' });
    const issuer = { certificate: parseCertificate(root), key: await importSigningKey(der) };
    assert.equal(await refusal(await newPair(issuer, HOST), root, HOST), undefined);
    const other = await newPair(issuer, 'www.example.com');
    assert.match((await refusal(other, root, 'www.example.com')) ?? '', /permitted subtree violation/);
    const similar = await newPair(issuer, 'evilpreview.test');
    assert.match((await refusal(similar, root, 'evilpreview.test')) ?? '', /permitted subtree violation/);
  });
});

describe('a certificate that is renewed', () => {
  class Renewable implements CertificateProvider {
    readonly source = 'acme';
    stored: CertificatePair | undefined;
    asked = 0;
    answer: (signal: AbortSignal) => Promise<CertificatePair> = () => Promise.reject(new Error('refused'));

    async load(): Promise<CertificatePair | undefined> {
      return this.stored;
    }

    async renew(signal: AbortSignal): Promise<CertificatePair> {
      this.asked++;
      this.stored = await this.answer(signal);
      return this.stored;
    }
  }

  test('is replaced when two thirds of its life are over; failures are repeated later and later', async () => {
    const issuer = await newIssuer();
    const provider = new Renewable();
    const home = newHome();
    let now = new Date();
    const timing = { checkMs: 5, retryMs: 60_000, retryMaxMs: 240_000 };
    {
      await using certificate = await start(provider, { home, now: () => now, timing });
      await eventually('a failure', () => certificate.status.failures === 1);
      assert.equal(certificate.current, undefined);
      assert.equal(certificate.status.problem, 'refused');
      assert.deepEqual(certificate.renewals, { ok: 0, failed: 1 });
      now = new Date(now.getTime() + 80_000);
      await eventually('the second failure', () => certificate.status.failures === 2);
      now = new Date(now.getTime() + 80_000);
      assert.equal(provider.asked, 2, 'twice as long');
    }
    {
      await using certificate = await start(provider, { home, now: () => now, timing });
      // Not at once after a restart.
      now = new Date(now.getTime() - 75_000);
      await eventually('a look', () => certificate.status.next_attempt_at !== undefined);
      const first = await newPair(issuer);
      provider.answer = async () => first;
      now = new Date(now.getTime() + 200_000);
      await eventually('a certificate', () => certificate.current === first);
      assert.deepEqual([certificate.status.failures, certificate.status.problem], [0, undefined]);

      const asked = provider.asked;
      // Valid from a day before to 3 days after: two thirds are 40 hours from now.
      now = new Date(Date.now() + 39 * HOUR_MS);
      await eventually('a look', () => certificate.current === first);
      assert.equal(provider.asked, asked);
      provider.answer = () => Promise.reject(new Error('unreachable'));
      now = new Date(Date.now() + 41 * HOUR_MS);
      await eventually('a failure', () => certificate.status.failures === 1);
      assert.equal(certificate.current, first, 'the old one serves meanwhile');
      const second = await newPair(issuer);
      provider.answer = async () => second;
      now = new Date(now.getTime() + 10 * HOUR_MS);
      await eventually('the second one', () => certificate.current === second);
    }
  });

  test('an attempt that takes too long is ended, and so is one at the stop', async () => {
    const provider = new Renewable();
    let ended = 0;
    provider.answer = (signal) =>
      new Promise((_resolve, reject) => {
        signal.addEventListener('abort', () => {
          ended++;
          reject(signal.reason as Error);
        });
      });
    const timing = { checkMs: 5, renewMs: 20, retryMs: 1 };
    await using certificate = await start(provider, { timing });
    await eventually('a failure', () => certificate.status.failures > 0);
    assert.match(certificate.status.problem ?? '', /not done within 0\.02 s/);
    await certificate.close();
    const [asked, before] = [provider.asked, ended];
    await using other = await start(provider, { timing: { checkMs: 5, renewMs: 60_000 } });
    await eventually('an attempt', () => provider.asked > asked);
    await other.close();
    assert.equal(ended, before + 1);
    assert.equal(other.status.failures, 0);
  });

  test('delays double up to a bound, and differ between gateways', () => {
    const timing = { retryMs: 1_000, retryMaxMs: 8_000 };
    for (const [failures, delay] of [
      [1, 1_000],
      [2, 2_000],
      [4, 8_000],
      [40, 8_000],
    ] as const) {
      const delays = Array.from({ length: 50 }, () => retryDelay(failures, timing));
      assert.ok(delays.every((ms) => ms >= delay * 0.75 && ms <= delay * 1.25));
      assert.ok(new Set(delays).size > 10);
    }
  });
});
