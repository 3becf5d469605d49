/**
 * Makes certificates: roots, intermediates and leaves with elliptic keys. The library behind it takes 40 MB: processes that
 * rarely need it import this module when they do.
 */
import 'reflect-metadata';
import { randomBytes, webcrypto } from 'node:crypto';
import { AsnConvert } from '@peculiar/asn1-schema';
import {
  GeneralName,
  GeneralSubtree,
  GeneralSubtrees,
  id_ce_nameConstraints,
  NameConstraints,
} from '@peculiar/asn1-x509';
import {
  AuthorityKeyIdentifierExtension,
  BasicConstraintsExtension,
  ExtendedKeyUsage,
  ExtendedKeyUsageExtension,
  Extension,
  KeyUsageFlags,
  KeyUsagesExtension,
  Pkcs10CertificateRequest,
  Pkcs10CertificateRequestGenerator,
  SubjectAlternativeNameExtension,
  SubjectKeyIdentifierExtension,
  X509Certificate,
  X509CertificateGenerator,
} from '@peculiar/x509';

/** Algorithms of Web Crypto, for all keys and signatures. */
const KEY = { name: 'ECDSA', namedCurve: 'P-256' } as const;
const SIGNATURE = { name: 'ECDSA', hash: 'SHA-256' } as const;
export const DAY_MS = 24 * 3_600_000;
/** Clocks of clients and guests may be behind. */
export const BACKDATED_MS = DAY_MS;
/** RFC 5280, ub-common-name. */
const COMMON_NAME_MAX = 64;

/** What signs a certificate. */
export interface Issuer {
  certificate: X509Certificate;
  key: webcrypto.CryptoKey;
}

interface CertificateRequest {
  publicKey: webcrypto.CryptoKey;
  /** How long it is valid from `now` on. It never outlives its issuer. */
  validMs: number;
  /** How long before. */
  backdatedMs?: number;
  now?: Date;
}

export async function generateKeys(extractable: boolean): Promise<webcrypto.CryptoKeyPair> {
  return await webcrypto.subtle.generateKey(KEY, extractable, ['sign', 'verify']);
}

/** @param pkcs8 DER */
export async function importSigningKey(pkcs8: Buffer): Promise<webcrypto.CryptoKey> {
  return await webcrypto.subtle.importKey('pkcs8', pkcs8, KEY, false, ['sign']);
}

/** PKCS #8, DER. */
export async function exportKey(key: webcrypto.CryptoKey): Promise<Buffer> {
  return Buffer.from(await webcrypto.subtle.exportKey('pkcs8', key));
}

/** PKCS #8, PEM. */
export async function exportKeyPem(key: webcrypto.CryptoKey): Promise<string> {
  const lines = (await exportKey(key)).toString('base64').replaceAll(/.{64}(?!$)/g, '$&\n');
  return `-----BEGIN PRIVATE KEY-----\n${lines}\n-----END PRIVATE KEY-----\n`;
}

export const parseCertificate = (pem: string): X509Certificate => new X509Certificate(pem);

export function toPem(certificate: X509Certificate): string {
  return `${certificate.toString('pem').trim()}\n`;
}

/** A PKCS #10 request, DER as base64. Its names mean nothing: the issuer chooses them. */
export async function createRequest(keys: webcrypto.CryptoKeyPair): Promise<string> {
  const request = await Pkcs10CertificateRequestGenerator.create({
    name: 'CN=releap',
    keys,
    signingAlgorithm: SIGNATURE,
  });
  return Buffer.from(request.rawData).toString('base64');
}

/** The key of a request, which has proved that it is the sender's. @throws when it is no valid request for such a key */
export async function keyOfRequest(request: string): Promise<webcrypto.CryptoKey> {
  const csr = new Pkcs10CertificateRequest(Buffer.from(request, 'base64'));
  if (!(await csr.verify())) throw new Error('its signature is not valid');
  return await webcrypto.subtle.importKey('spki', csr.publicKey.rawData, KEY, true, ['verify']);
}

export interface RootOptions {
  commonName: string;
  keys: webcrypto.CryptoKeyPair;
  validMs: number;
  /** Intermediates below each other that it may sign. */
  pathLength: number;
  /** If given, certificates below it are valid for names of this domain alone, and for no address. */
  domain?: string;
}

export async function createRoot(options: RootOptions): Promise<X509Certificate> {
  const { commonName, keys, validMs, pathLength, domain } = options;
  return await X509CertificateGenerator.createSelfSigned({
    ...validity(validMs),
    serialNumber: serialNumber(),
    name: `O=Releap, CN=${commonName}`,
    keys,
    signingAlgorithm: SIGNATURE,
    extensions: [
      new BasicConstraintsExtension(true, pathLength, true),
      new KeyUsagesExtension(KeyUsageFlags.keyCertSign | KeyUsageFlags.cRLSign, true),
      await SubjectKeyIdentifierExtension.create(keys.publicKey),
      ...(domain === undefined ? [] : [onlyBelow([domain])]),
    ],
  });
}

/**
 * An authority for TLS servers that signs leaves alone.
 * @param options `domains`: if given, its leaves are valid for these names and those below them alone, and for no address
 */
export async function issueIntermediate(
  issuer: Issuer,
  {
    commonName,
    domains,
    ...request
  }: CertificateRequest & { commonName: string; domains?: readonly string[] },
): Promise<X509Certificate> {
  return await issue(issuer, commonName, request, [
    new BasicConstraintsExtension(true, 0, true),
    new KeyUsagesExtension(KeyUsageFlags.keyCertSign, true),
    new ExtendedKeyUsageExtension([ExtendedKeyUsage.serverAuth]),
    await SubjectKeyIdentifierExtension.create(request.publicKey),
    ...(domains === undefined ? [] : [onlyBelow(domains)]),
  ]);
}

/** The side of a TLS connection that a certificate is for. */
export type TlsSide = 'server' | 'client';
const USAGES = { server: ExtendedKeyUsage.serverAuth, client: ExtendedKeyUsage.clientAuth } as const;

/**
 * The certificate of a TLS server, or of a client.
 * @param options `hosts`: names, which may begin with `*.`
 */
export async function issueLeaf(
  issuer: Issuer,
  { hosts, side = 'server', ...request }: CertificateRequest & { hosts: readonly string[]; side?: TlsSide },
): Promise<X509Certificate> {
  // Names of hosts may be longer than a common name; clients read the alternative names.
  const [first = ''] = hosts;
  const commonName = first.length > COMMON_NAME_MAX ? 'server' : first;
  return await issue(issuer, commonName, request, [
    new BasicConstraintsExtension(false, undefined, true),
    new KeyUsagesExtension(KeyUsageFlags.digitalSignature, true),
    new ExtendedKeyUsageExtension([USAGES[side]]),
    new SubjectAlternativeNameExtension(hosts.map((value) => ({ type: 'dns' as const, value }))),
  ]);
}

async function issue(
  { certificate: issuer, key }: Issuer,
  commonName: string,
  { publicKey, validMs, backdatedMs, now }: CertificateRequest,
  extensions: Extension[],
): Promise<X509Certificate> {
  const { notBefore, notAfter } = validity(validMs, now, backdatedMs);
  return await X509CertificateGenerator.create({
    notBefore,
    notAfter: new Date(Math.min(notAfter.getTime(), issuer.notAfter.getTime())),
    serialNumber: serialNumber(),
    subject: `O=Releap, CN=${commonName}`,
    issuer: issuer.subject,
    publicKey,
    signingKey: key,
    signingAlgorithm: SIGNATURE,
    extensions: [...extensions, await AuthorityKeyIdentifierExtension.create(issuer)],
  });
}

/** Name constraints (RFC 5280 §4.2.1.10). Addresses are excluded, as a constraint on one kind of names leaves others free. */
function onlyBelow(domains: readonly string[]): Extension {
  const subtrees = (...names: Partial<GeneralName>[]): GeneralSubtrees =>
    new GeneralSubtrees(names.map((name) => new GeneralSubtree({ base: new GeneralName(name) })));
  const constraints = new NameConstraints({
    // Without any there is no constraint: a name that nothing has (RFC 6761).
    permittedSubtrees: subtrees(
      ...(domains.length === 0 ? ['invalid'] : domains).map((dNSName) => ({ dNSName })),
    ),
    excludedSubtrees: subtrees({ iPAddress: '0.0.0.0/0' }, { iPAddress: '::/0' }),
  });
  return new Extension(id_ce_nameConstraints, true, AsnConvert.serialize(constraints));
}

function validity(
  ms: number,
  now = new Date(),
  backdatedMs = BACKDATED_MS,
): { notBefore: Date; notAfter: Date } {
  const at = now.getTime();
  return { notBefore: new Date(at - backdatedMs), notAfter: new Date(at + ms) };
}

function serialNumber(): string {
  const bytes = randomBytes(16);
  // RFC 5280 §4.1.2.2: positive.
  bytes.writeUInt8((bytes.readUInt8(0) & 0x7f) | 0x40, 0);
  return bytes.toString('hex');
}
