/** The keys and certificates that guests see: an intermediate of this process, and leaves for the hosts. */
import type { webcrypto } from 'node:crypto';
import { createSecureContext, type SecureContext } from 'node:tls';
import { DomainSet } from '@releap/contract/netd';
import {
  BACKDATED_MS,
  createRequest,
  DAY_MS,
  exportKeyPem,
  generateKeys,
  type Issuer,
  issueLeaf,
  parseCertificate,
  toPem,
} from '@releap/certificates/x509';

/** A request without an answer is repeated after this time. */
const ANSWER_MS = 5_000;
/** Leaves are made anew after this time. */
const LEAF_USED_MS = DAY_MS / 2;
const LEAF_VALID_MS = 2 * DAY_MS;
/** Hosts whose leaves are kept. A wildcard may have any number of hosts. */
const LEAVES_MAX = 500;

interface Intermediate extends Issuer {
  pem: string;
}

interface Leaf {
  context: Promise<SecureContext>;
  madeAt: number;
}

export class Authority {
  /** Requests that are not answered yet, with their keys. The keys are not extractable. */
  readonly #requested = new Map<string, { key: webcrypto.CryptoKey; domains: readonly string[] }>();
  readonly #leaves = new Map<string, Leaf>();
  /** Replaced with each certificate. */
  #next = Promise.withResolvers<void>();
  /** What the certificate is valid for, as far as was known as it was requested. */
  #covered: ReadonlySet<string> = new Set();
  /** Where the secrets of sandboxes may be sent. */
  #domains: readonly string[] = [];
  #requestedAt = Number.NEGATIVE_INFINITY;
  #intermediate: Intermediate | undefined;
  #leafKeys: Promise<{ pair: webcrypto.CryptoKeyPair; pem: string }> | undefined;

  /** The certificate has to be valid for these names and patterns. One that is gone stays in it until the next one. */
  setDomains(domains: readonly string[]): void {
    this.#domains = domains;
  }

  /** Whether a certificate is to be requested: there is none, it lacks a domain, or half of its time is over. */
  get wantsCertificate(): boolean {
    // A request that is under way is not replaced by another with each sandbox that comes.
    if (this.#requested.size > 0 && performance.now() - this.#requestedAt < ANSWER_MS) return false;
    if (this.#intermediate === undefined || !this.#coversAll) return true;
    const { notBefore, notAfter } = this.#intermediate.certificate;
    const issued = notBefore.getTime() + BACKDATED_MS;
    return Date.now() > issued + (notAfter.getTime() - issued) / 2;
  }

  get #coversAll(): boolean {
    return this.#domains.every((domain) => this.#covered.has(domain));
  }

  /** A PKCS #10 request for a new key, DER as base64. */
  async request(): Promise<string> {
    this.#requestedAt = performance.now();
    const domains = this.#domains;
    const keys = await generateKeys(false);
    const request = await createRequest(keys);
    this.#requested.clear();
    this.#requested.set(request, { key: keys.privateKey, domains });
    return request;
  }

  /** @param request one of `request`; others are ignored */
  accept(request: string, pem: string): void {
    const requested = this.#requested.get(request);
    if (requested === undefined) return;
    const { key, domains } = requested;
    this.#requested.delete(request);
    this.#intermediate = { key, certificate: parseCertificate(pem), pem };
    this.#covered = new Set(domains);
    this.#leaves.clear();
    this.#next.resolve();
    this.#next = Promise.withResolvers();
  }

  /** What a guest that connects to this host sees: a leaf for it, and the intermediate. */
  async contextFor(host: string): Promise<SecureContext> {
    // The client gives up first: the handshake has a deadline.
    while (
      this.#intermediate === undefined ||
      (!this.#coversAll && !DomainSet.of([...this.#covered]).matches(host))
    )
      await this.#next.promise;
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
    const leaf = await issueLeaf(intermediate, {
      hosts: [host],
      publicKey: pair.publicKey,
      validMs: LEAF_VALID_MS,
    });
    return createSecureContext({
      key: pem,
      cert: `${toPem(leaf)}${intermediate.pem}`,
      minVersion: 'TLSv1.2',
    });
  }
}

/** One key pair for all leaves: an attacker who can read one from this process can read all of them. */
async function makeLeafKeys(): Promise<{ pair: webcrypto.CryptoKeyPair; pem: string }> {
  const pair = await generateKeys(true);
  return { pair, pem: await exportKeyPem(pair.privateKey) };
}
