import { generateKeyPair } from 'node:crypto';
import { createSecureContext, type SecureContext } from 'node:tls';
import { promisify } from 'node:util';
import type { Logger } from 'pino';
import { certificateRequest } from './certificate-request.ts';

/** The answer of the control plane. */
export interface IssuedCertificate {
  /** PEM. */
  certificate: string;
  /** What peers are verified with: one root, or while the root is replaced two. */
  roots: string;
  not_after: string;
}

/** What a process shows to its peers, and verifies them with. PEM. */
export interface HostIdentity {
  key: string;
  certificate: string;
  roots: string;
  notAfter: Date;
  /** For connections that this process opens. */
  readonly context: SecureContext;
}

export interface HostCertificateOptions {
  /** @param request PKCS #10, DER as base64 */
  issue: (request: string) => Promise<IssuedCertificate>;
  log: Logger;
  /** After the first failed renewal; then twice as long each time, up to `retryMaxMs`. */
  retryMs?: number;
  retryMaxMs?: number;
}

/** Of the metric that each process with such a certificate has. */
export const EXPIRY_METRIC = {
  name: 'releap_host_certificate_expiry_timestamp_seconds',
  help: 'When the certificate that this process shows to other machines expires; 0 without one',
} as const;

/** The earliest end of these, as Unix time in seconds; 0 when there is none. */
export function expirySeconds(...certificates: readonly Pick<HostCertificate, 'current'>[]): number {
  const ends = certificates.flatMap(({ current }) =>
    current === undefined ? [] : [current.notAfter.getTime()],
  );
  return ends.length === 0 ? 0 : Math.min(...ends) / 1000;
}

const RETRY_MS = 5_000;
const RETRY_MAX_MS = 5 * 60_000;
const FAILED_FOR_MS = 1_000;
/** Of the time that a certificate is valid when it arrives. */
const RENEW_SHARE = 0.5;
/** A clock that is far ahead or behind must neither make requests without a pause nor end the renewals. */
const RENEW_MIN_MS = 1_000;
const RENEW_MAX_MS = 12 * 3_600_000;

const makeKeys = promisify(generateKeyPair);

/**
 * The certificate of this process, issued by the deployment's authority and renewed at half its life, each time with a new key. Keys
 * are in memory alone: a process that starts again gets another certificate.
 */
export class HostCertificate {
  readonly #options: HostCertificateOptions;
  readonly #listeners = new Set<(identity: HostIdentity) => void>();
  #current: HostIdentity | undefined;
  #obtaining: Promise<HostIdentity> | undefined;
  #failures = 0;
  #failure: { error: unknown; at: number } | undefined;
  #timer: NodeJS.Timeout | undefined;
  #isClosed = false;

  constructor(options: HostCertificateOptions) {
    this.#options = options;
  }

  /**
   * The present one. The first is requested at the first call: a deployment of one machine needs none.
   * @throws when there is none that is valid, and none can be issued
   */
  async get(): Promise<HostIdentity> {
    const current = this.#current;
    if (current !== undefined && current.notAfter.getTime() > Date.now()) return current;
    // Each request that needs it must not ask again.
    if (this.#failure !== undefined && performance.now() - this.#failure.at < FAILED_FOR_MS)
      throw this.#failure.error;
    return await this.renew();
  }

  /** Undefined before the first was issued. */
  get current(): HostIdentity | undefined {
    return this.#current;
  }

  /** Gets another one now. Those who ask at the same time share it. @throws when it cannot be issued */
  renew(): Promise<HostIdentity> {
    return (this.#obtaining ??= this.#renew().finally(() => (this.#obtaining = undefined)));
  }

  /** @param listener called with each new certificate */
  onChange(listener: (identity: HostIdentity) => void): void {
    this.#listeners.add(listener);
  }

  close(): void {
    this.#isClosed = true;
    clearTimeout(this.#timer);
  }

  async #renew(): Promise<HostIdentity> {
    const { log, retryMs = RETRY_MS, retryMaxMs = RETRY_MAX_MS } = this.#options;
    try {
      const identity = await this.#obtain();
      this.#failures = 0;
      this.#failure = undefined;
      this.#current = identity;
      const leftMs = identity.notAfter.getTime() - Date.now();
      this.#renewIn(Math.min(RENEW_MAX_MS, Math.max(RENEW_MIN_MS, leftMs * RENEW_SHARE)));
      for (const listener of this.#listeners) listener(identity);
      return identity;
    } catch (error) {
      this.#failure = { error, at: performance.now() };
      const delay = Math.min(retryMs * 2 ** this.#failures++, retryMaxMs);
      this.#renewIn(delay);
      const { notAfter } = this.#current ?? {};
      log.warn(
        { err: error, not_after: notAfter, again_in_ms: delay },
        'the certificate of this process could not be renewed',
      );
      throw error;
    }
  }

  async #obtain(): Promise<HostIdentity> {
    const keys = await makeKeys('ec', { namedCurve: 'P-256' });
    const { certificate, roots, not_after } = await this.#options.issue(certificateRequest(keys));
    const key = keys.privateKey.export({ type: 'pkcs8', format: 'pem' }) as string;
    return identityOf({ key, certificate, roots, notAfter: new Date(not_after) });
  }

  #renewIn(ms: number): void {
    clearTimeout(this.#timer);
    if (this.#isClosed) return;
    this.#timer = setTimeout(() => void this.renew().catch(() => undefined), ms).unref();
  }
}

function identityOf(parts: Omit<HostIdentity, 'context'>): HostIdentity {
  let context: SecureContext | undefined;
  return {
    ...parts,
    get context() {
      return (context ??= createSecureContext({
        key: parts.key,
        cert: parts.certificate,
        ca: parts.roots,
        minVersion: 'TLSv1.3',
      }));
    },
  };
}
