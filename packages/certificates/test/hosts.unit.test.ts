import assert from 'node:assert/strict';
import { generateKeyPairSync, X509Certificate } from 'node:crypto';
import { test } from 'node:test';
import { TestAuthority } from '@releap/testing/host-authority';
import { quiet } from '@releap/testing/logging';
import { until } from '@releap/testing/eventually';
import {
  certificateRequest,
  HostCertificate,
  hostName,
  type IssuedCertificate,
  parseHostName,
} from '../src/hosts/index.ts';
import { keyOfRequest } from '../src/x509.ts';

const ID = '00000000-0000-4000-8000-00000000000a';

test('a request is valid PKCS #10, for keys of P-256, and proves that its key is the sender’s', async () => {
  const keys = generateKeyPairSync('ec', { namedCurve: 'P-256' });
  const request = certificateRequest(keys);
  const key = Buffer.from(await crypto.subtle.exportKey('spki', await keyOfRequest(request)));
  assert.deepEqual(key, keys.publicKey.export({ type: 'spki', format: 'der' }));
  const other = generateKeyPairSync('ec', { namedCurve: 'P-256' });
  await assert.rejects(
    keyOfRequest(certificateRequest({ publicKey: keys.publicKey, privateKey: other.privateKey })),
    /signature/,
  );
});

test('the name of a host is read strictly', () => {
  const name = { role: 'gateway', id: ID } as const;
  assert.deepEqual(parseHostName(`DNS:${hostName(name)}`), name);
  for (const text of [
    undefined,
    '',
    hostName(name),
    `DNS:${ID}.operator.releap.internal`,
    `DNS:${ID}.gateway.releap.internal.example`,
    `DNS:x.${ID}.gateway.releap.internal`,
    `DNS:gateway.releap.internal`,
    `DNS:a.gateway.releap.internal`,
    `DNS:${ID}.gateway.releap.internal, DNS:${ID}.control.releap.internal`,
    `URI:spiffe://x, DNS:${ID}.gateway.releap.internal`,
    `DNS:"${ID}.gateway.releap.internal"`,
  ])
    assert.equal(parseHostName(text), undefined, text);
});

test('the authority is of use for names of hosts alone', async () => {
  const authority = await TestAuthority.create();
  const certificate = await authority.certificate({ role: 'runner', id: ID });
  const { current } = certificate;
  certificate.close();
  assert.ok(current);
  const root = new X509Certificate(current.roots);
  assert.match(root.subject, /hosts/);
  assert.ok(new X509Certificate(current.certificate).verify(root.publicKey));
  assert.equal(
    new X509Certificate(current.certificate).subjectAltName,
    `DNS:${hostName({ role: 'runner', id: ID })}`,
  );
  assert.ok(root.raw.includes(Buffer.from('releap.internal')));
});

test('a certificate is requested at its first use, shared, and renewed with another key before it ends', async () => {
  const authority = await TestAuthority.create();
  let asked = 0;
  const certificate = new HostCertificate({
    async issue(request): Promise<IssuedCertificate> {
      asked++;
      const issued = await authority.issue(request, { role: 'runner', id: ID });
      // As long as the shortest interval of renewals.
      return asked > 2 ? issued : { ...issued, not_after: new Date(Date.now() + 2_000).toISOString() };
    },
    log: quiet,
  });
  assert.equal(certificate.current, undefined);
  assert.equal(asked, 0);
  const [one, same] = await Promise.all([certificate.get(), certificate.get()]);
  assert.equal(one, same);
  assert.equal(asked, 1);
  const keys = new Set([one.key]);
  certificate.onChange(({ key }) => void keys.add(key));
  await until(() => keys.size === 3);
  assert.equal(await certificate.get(), certificate.current);
  certificate.close();
});

test('a renewal that fails is repeated, and the present certificate is used meanwhile', async () => {
  const authority = await TestAuthority.create();
  let isBroken = false;
  let refused = 0;
  const certificate = new HostCertificate({
    async issue(request) {
      if (!isBroken) return await authority.issue(request, { role: 'gateway', id: ID });
      refused++;
      throw new Error('control is away');
    },
    log: quiet,
    retryMs: 1,
  });
  const first = await certificate.get();
  isBroken = true;
  await assert.rejects(certificate.renew(), /control is away/);
  assert.equal(await certificate.get(), first);
  await until(() => refused > 2);
  isBroken = false;
  await until(() => certificate.current !== first);
  certificate.close();
});
