/** The keys and certificates that guests see: an intermediate of this process, and leaves for the hosts. */
import 'reflect-metadata';
import { randomBytes, webcrypto } from 'node:crypto';
import { createSecureContext, type SecureContext } from 'node:tls';
import {
  AuthorityKeyIdentifierExtension,
  BasicConstraintsExtension,
  ExtendedKeyUsage,
  ExtendedKeyUsageExtension,
  KeyUsageFlags,
  KeyUsagesExtension,
  Pkcs10CertificateRequestGenerator,
  SubjectAlternativeNameExtension,
  X509Certificate,
  X509CertificateGenerator,
} from '@peculiar/x509';

const KEY = { name: 'ECDSA', namedCurve: 'P-256' } as const;
const SIGNATURE = { name: 'ECDSA', hash: 'SHA-256' } as const;
const DAY_MS = 24 * 3_600_000;
/** Guests' clocks may be behind. */
const BACKDATED_MS = DAY_MS;
/** Leaves are made anew after this time. */
const LEAF_USED_MS = DAY_MS / 2;
const LEAF_VALID_MS = 2 * DAY_MS;
/** Hosts whose leaves are kept. A wildcard may have any number of hosts. */
const LEAVES_MAX = 500;

interface Intermediate {
  key: webcrypto.CryptoKey;
  certificate: X509Certificate;
  pem: string;
}

interface Leaf {
  context: Promise<SecureContext>;
  madeAt: number;
}

export class Authority {
  /** Requests that are not answered yet, with their keys. The keys are not extractable. */
  readonly #requested = new Map<string, webcrypto.CryptoKey>();
  readonly #leaves = new Map<string, Leaf>();
  readonly #ready = Promise.withResolvers<void>();
  #intermediate: Intermediate | undefined;
  #leafKeys: Promise<{ pair: webcrypto.CryptoKeyPair; pem: string }> | undefined;

  /** Whether a certificate is to be requested: there is none, or half of its time is over. */
  get wantsCertificate(): boolean {
    if (this.#intermediate === undefined) return true;
    const { notBefore, notAfter } = this.#intermediate.certificate;
    const issued = notBefore.getTime() + BACKDATED_MS;
    return Date.now() > issued + (notAfter.getTime() - issued) / 2;
  }

  /** A PKCS #10 request for a new key, DER as base64. */
  async request(): Promise<string> {
    const keys = await webcrypto.subtle.generateKey(KEY, false, ['sign', 'verify']);
    const request = await Pkcs10CertificateRequestGenerator.create({
      name: 'CN=releap',
      keys,
      signingAlgorithm: SIGNATURE,
    });
    const text = Buffer.from(request.rawData).toString('base64');
    this.#requested.clear();
    this.#requested.set(text, keys.privateKey);
    return text;
  }

  /** @param request one of `request`; others are ignored */
  accept(request: string, pem: string): void {
    const key = this.#requested.get(request);
    if (key === undefined) return;
    this.#requested.delete(request);
    this.#intermediate = { key, certificate: new X509Certificate(pem), pem };
    this.#leaves.clear();
    this.#ready.resolve();
  }

  /** What a guest that connects to this host sees: a leaf for it, and the intermediate. */
  async contextFor(host: string): Promise<SecureContext> {
    await this.#ready.promise;
    const known = this.#leaves.get(host);
    if (known !== undefined && performance.now() - known.madeAt < LEAF_USED_MS) {
      // The least recently used one is removed first.
      this.#leaves.delete(host);
      this.#leaves.set(host, known);
      return await known.context;
    }
    const leaf: Leaf = { context: this.#makeContext(host), madeAt: performance.now() };
    this.#leaves.set(host, leaf);
    leaf.context.catch(() => this.#leaves.delete(host));
    const [oldest] = this.#leaves.keys();
    if (this.#leaves.size > LEAVES_MAX && oldest !== undefined) this.#leaves.delete(oldest);
    return await leaf.context;
  }

  async #makeContext(host: string): Promise<SecureContext> {
    const intermediate = this.#intermediate;
    if (intermediate === undefined) throw new Error('there is no certificate yet');
    const { pair, pem } = await (this.#leafKeys ??= makeLeafKeys());
    const now = Date.now();
    const leaf = await X509CertificateGenerator.create({
      serialNumber: positiveSerial(),
      // Names of hosts may be longer than a common name.
      subject: `O=Releap, CN=${host.length > 64 ? 'intercepted' : host}`,
      issuer: intermediate.certificate.subject,
      notBefore: new Date(now - BACKDATED_MS),
      notAfter: new Date(Math.min(now + LEAF_VALID_MS, intermediate.certificate.notAfter.getTime())),
      publicKey: pair.publicKey,
      signingKey: intermediate.key,
      signingAlgorithm: SIGNATURE,
      extensions: [
        new BasicConstraintsExtension(false, undefined, true),
        new KeyUsagesExtension(KeyUsageFlags.digitalSignature, true),
        new ExtendedKeyUsageExtension([ExtendedKeyUsage.serverAuth]),
        new SubjectAlternativeNameExtension([{ type: 'dns', value: host }]),
        await AuthorityKeyIdentifierExtension.create(intermediate.certificate),
      ],
    });
    return createSecureContext({
      key: pem,
      cert: `${leaf.toString('pem').trim()}\n${intermediate.pem}`,
      minVersion: 'TLSv1.2',
    });
  }
}

/** One key pair for all leaves: an attacker who can read one from this process can read all of them. */
async function makeLeafKeys(): Promise<{ pair: webcrypto.CryptoKeyPair; pem: string }> {
  const pair = await webcrypto.subtle.generateKey(KEY, true, ['sign', 'verify']);
  const der = Buffer.from(await webcrypto.subtle.exportKey('pkcs8', pair.privateKey));
  const lines = der.toString('base64').replaceAll(/.{64}/g, '$&\n');
  return { pair, pem: `-----BEGIN PRIVATE KEY-----\n${lines}\n-----END PRIVATE KEY-----\n` };
}

function positiveSerial(): string {
  const bytes = randomBytes(16);
  bytes.writeUInt8((bytes.readUInt8(0) & 0x7f) | 0x40, 0);
  return bytes.toString('hex');
}
