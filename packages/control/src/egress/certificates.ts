/**
 * Certificates for the interception of TLS: one root a deployment, and intermediates for runners. Loaded on first use,
 * because the library takes 40 MB and most control servers need it once a week.
 */
import 'reflect-metadata';
import { randomBytes, webcrypto } from 'node:crypto';
import { badRequest } from '@releap/contract';
import {
  AuthorityKeyIdentifierExtension,
  BasicConstraintsExtension,
  ExtendedKeyUsage,
  ExtendedKeyUsageExtension,
  KeyUsageFlags,
  KeyUsagesExtension,
  Pkcs10CertificateRequest,
  SubjectKeyIdentifierExtension,
  X509Certificate,
  X509CertificateGenerator,
} from '@peculiar/x509';

const KEY = { name: 'ECDSA', namedCurve: 'P-256' } as const;
const SIGNATURE = { name: 'ECDSA', hash: 'SHA-256' } as const;
const DAY_MS = 24 * 3_600_000;
const ROOT_MS = 10 * 365 * DAY_MS;
const INTERMEDIATE_MS = 7 * DAY_MS;
/** Guests' clocks may be behind. */
const BACKDATED_MS = DAY_MS;

export interface Root {
  /** PEM. */
  certificate: string;
  /** PKCS #8, base64. */
  key: string;
}

/** @param label distinguishes the roots of deployments for people */
export async function createRoot(label: string): Promise<Root> {
  const keys = await webcrypto.subtle.generateKey(KEY, true, ['sign', 'verify']);
  const certificate = await X509CertificateGenerator.createSelfSigned({
    ...validity(ROOT_MS),
    serialNumber: serialNumber(),
    name: `O=Releap, CN=Releap egress root ${label}`,
    keys,
    signingAlgorithm: SIGNATURE,
    extensions: [
      new BasicConstraintsExtension(true, 1, true),
      new KeyUsagesExtension(KeyUsageFlags.keyCertSign | KeyUsageFlags.cRLSign, true),
      await SubjectKeyIdentifierExtension.create(keys.publicKey),
    ],
  });
  const key = Buffer.from(await webcrypto.subtle.exportKey('pkcs8', keys.privateKey)).toString('base64');
  return { certificate: pem(certificate), key };
}

/**
 * An intermediate for the key of a request, valid for a week. Names and extensions of the request are ignored.
 * @throws 400
 */
export async function signIntermediate(
  root: Root,
  request: string,
  runnerId: string,
): Promise<{ certificate: string; notAfter: Date }> {
  const publicKey = await keyOf(request);
  const issuer = new X509Certificate(root.certificate);
  const dates = validity(INTERMEDIATE_MS);
  const certificate = await X509CertificateGenerator.create({
    ...dates,
    serialNumber: serialNumber(),
    subject: `O=Releap, CN=Releap egress ${runnerId}`,
    issuer: issuer.subject,
    publicKey,
    signingKey: await webcrypto.subtle.importKey('pkcs8', Buffer.from(root.key, 'base64'), KEY, false, [
      'sign',
    ]),
    signingAlgorithm: SIGNATURE,
    extensions: [
      new BasicConstraintsExtension(true, 0, true),
      new KeyUsagesExtension(KeyUsageFlags.keyCertSign, true),
      new ExtendedKeyUsageExtension([ExtendedKeyUsage.serverAuth]),
      await SubjectKeyIdentifierExtension.create(publicKey),
      await AuthorityKeyIdentifierExtension.create(issuer),
    ],
  });
  return { certificate: pem(certificate), notAfter: dates.notAfter };
}

async function keyOf(request: string): Promise<webcrypto.CryptoKey> {
  try {
    const csr = new Pkcs10CertificateRequest(Buffer.from(request, 'base64'));
    if (!(await csr.verify())) throw new Error('its signature is not valid');
    return await webcrypto.subtle.importKey('spki', csr.publicKey.rawData, KEY, true, ['verify']);
  } catch (error) {
    throw badRequest(`request: ${error instanceof Error ? error.message : String(error)}`);
  }
}

function validity(ms: number): { notBefore: Date; notAfter: Date } {
  const now = Date.now();
  return { notBefore: new Date(now - BACKDATED_MS), notAfter: new Date(now + ms) };
}

function serialNumber(): string {
  const bytes = randomBytes(16);
  // RFC 5280 §4.1.2.2: positive.
  bytes.writeUInt8((bytes.readUInt8(0) & 0x7f) | 0x40, 0);
  return bytes.toString('hex');
}

function pem(certificate: X509Certificate): string {
  return `${certificate.toString('pem').trim()}\n`;
}
