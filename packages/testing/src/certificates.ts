/** Authorities of tests: the root that guests trust, and one of the servers outside. */
import 'reflect-metadata';
import {
  BasicConstraintsExtension,
  KeyUsageFlags,
  KeyUsagesExtension,
  Pkcs10CertificateRequest,
  SubjectAlternativeNameExtension,
  X509CertificateGenerator,
  type X509Certificate,
} from '@peculiar/x509';

const KEY = { name: 'ECDSA', namedCurve: 'P-256' } as const;
const SIGNATURE = { name: 'ECDSA', hash: 'SHA-256' } as const;
const HOUR_MS = 3_600_000;

export interface TestAuthority {
  /** PEM. */
  certificate: string;
  /** Signs the key of a PKCS #10 request (DER as base64) as an intermediate. */
  signIntermediate(request: string): Promise<string>;
  /** Key and certificate of a server. */
  issue(...hosts: string[]): Promise<{ key: string; cert: string }>;
}

export async function testAuthority(name: string): Promise<TestAuthority> {
  const keys = await crypto.subtle.generateKey(KEY, true, ['sign', 'verify']);
  const dates = { notBefore: new Date(Date.now() - HOUR_MS), notAfter: new Date(Date.now() + HOUR_MS) };
  const root = await X509CertificateGenerator.createSelfSigned({
    ...dates,
    name: `CN=${name}`,
    keys,
    signingAlgorithm: SIGNATURE,
    extensions: [
      new BasicConstraintsExtension(true, undefined, true),
      new KeyUsagesExtension(KeyUsageFlags.keyCertSign, true),
    ],
  });
  const common = { ...dates, issuer: root.subject, signingKey: keys.privateKey, signingAlgorithm: SIGNATURE };
  return {
    certificate: pem(root),
    async signIntermediate(request) {
      const { publicKey } = new Pkcs10CertificateRequest(Buffer.from(request, 'base64'));
      const extensions = [new BasicConstraintsExtension(true, 0, true)];
      return pem(
        await X509CertificateGenerator.create({
          ...common,
          subject: 'CN=intermediate',
          publicKey,
          extensions,
        }),
      );
    },
    async issue(...hosts) {
      const own = await crypto.subtle.generateKey(KEY, true, ['sign', 'verify']);
      const names = hosts.map((value) => ({ type: 'dns' as const, value }));
      const extensions = [new SubjectAlternativeNameExtension(names)];
      const { publicKey } = own;
      const leaf = await X509CertificateGenerator.create({
        ...common,
        subject: `CN=${hosts[0]}`,
        publicKey,
        extensions,
      });
      const der = Buffer.from(await crypto.subtle.exportKey('pkcs8', own.privateKey)).toString('base64');
      return { key: `-----BEGIN PRIVATE KEY-----\n${der}\n-----END PRIVATE KEY-----\n`, cert: pem(leaf) };
    },
  };
}

function pem(certificate: X509Certificate): string {
  return `${certificate.toString('pem').trim()}\n`;
}
