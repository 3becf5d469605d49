import { mkdir, readFile } from 'node:fs/promises';
import path from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { PREVIEW_CERTIFICATE_FILES, PreviewCertificateStatus } from '@releap/contract/preview-certificate';
import type { Logger } from 'pino';
import { Check } from 'typebox/value';
import {
  type CertificateFacts,
  type CertificatePair,
  inspectPair,
  joinPair,
  renewalTime,
} from './certificate.ts';
import { writePrivateFile } from './private-file.ts';

/** Where a certificate comes from. */
export interface CertificateProvider {
  readonly source: PreviewCertificateStatus['source'];
  /** The certificate that there is; undefined for none. Called every minute. @throws an error for people */
  load(now: Date): Promise<CertificatePair | undefined>;
  /** Obtains and stores a new one, which may take minutes. Absent: `load` does, or the operator. */
  renew?(signal: AbortSignal): Promise<CertificatePair>;
}

export interface CertificateTiming {
  checkMs: number;
  /** After the first failure; then twice as long each time, up to `retryMaxMs`. */
  retryMs: number;
  retryMaxMs: number;
  renewMs: number;
}

/** An authority may allow few failures an hour: Let's Encrypt 5. */
const TIMING: CertificateTiming = {
  checkMs: 60_000,
  retryMs: 3 * 60_000,
  retryMaxMs: 6 * 3_600_000,
  renewMs: 15 * 60_000,
};

const PLACEHOLDER_MS = 365 * 24 * 3_600_000;

export interface MaintainedCertificateOptions {
  provider: CertificateProvider;
  /** The certificate is for the names below it. */
  domain: string;
  /** Of the service. */
  home: string;
  log: Logger;
  timing?: Partial<CertificateTiming>;
  now?: () => Date;
}

/**
 * The certificate of previews. What is served changes only to a usable certificate; every problem is logged once and is in
 * the status file. `$RELEAP_HOME/certificates/previews.pem` has what is served, for programs that read files.
 */
export class MaintainedCertificate {
  readonly file: string;
  readonly #options: MaintainedCertificateOptions;
  readonly #timing: CertificateTiming;
  readonly #statusFile: string;
  readonly #closing = new AbortController();
  readonly #listeners = new Set<(pair: CertificatePair) => void>();
  readonly #renewals = { ok: 0, failed: 0 };
  #pair: CertificatePair | undefined;
  #facts: CertificateFacts | undefined;
  #placeholder: Promise<CertificatePair> | undefined;
  #problem: string | undefined;
  #failures = 0;
  #attemptedAt: Date | undefined;
  #nextAttemptAt: Date | undefined;
  #written = '';
  #loop: Promise<void> = Promise.resolve();

  private constructor(options: MaintainedCertificateOptions) {
    this.#options = options;
    this.#timing = { ...TIMING, ...options.timing };
    this.file = path.join(options.home, PREVIEW_CERTIFICATE_FILES.pair);
    this.#statusFile = path.join(options.home, PREVIEW_CERTIFICATE_FILES.status);
  }

  /** Loads what there is; a certificate that must be obtained first comes later. */
  static async start(options: MaintainedCertificateOptions): Promise<MaintainedCertificate> {
    const made = new MaintainedCertificate(options);
    await mkdir(path.dirname(made.file), { recursive: true, mode: 0o700 });
    await made.#restore();
    await made.#load();
    made.#loop = made.#maintain();
    return made;
  }

  /** Undefined until there is one. */
  get current(): CertificatePair | undefined {
    return this.#pair;
  }

  /** For a TLS server: the certificate, or until there is one, one that no client trusts. */
  async served(): Promise<CertificatePair> {
    return this.#pair ?? (await (this.#placeholder ??= makePlaceholder()));
  }

  /** When the certificate that is served expires. */
  get notAfter(): Date | undefined {
    return this.#facts?.notAfter;
  }

  /** Attempts at new certificates since the start. */
  get renewals(): Readonly<Record<'ok' | 'failed', number>> {
    return this.#renewals;
  }

  /** @param listener called with each new certificate, after `file` has it. @returns removes it */
  onChange(listener: (pair: CertificatePair) => void): () => void {
    this.#listeners.add(listener);
    return () => void this.#listeners.delete(listener);
  }

  get status(): PreviewCertificateStatus {
    const { provider, domain } = this.#options;
    const facts = this.#facts;
    return {
      source: provider.source,
      domain,
      ...(facts === undefined
        ? {}
        : {
            certificate: {
              issuer: facts.issuer,
              fingerprint: facts.fingerprint,
              not_after: facts.notAfter.toISOString(),
            },
          }),
      ...(facts === undefined || provider.source === 'files'
        ? {}
        : { renew_at: renewalTime(facts).toISOString() }),
      ...(this.#problem === undefined ? {} : { problem: this.#problem }),
      failures: this.#failures,
      ...(this.#attemptedAt === undefined ? {} : { attempted_at: this.#attemptedAt.toISOString() }),
      ...(this.#nextAttemptAt === undefined ? {} : { next_attempt_at: this.#nextAttemptAt.toISOString() }),
    };
  }

  /** Ends the maintenance. A program that runs for it is killed. */
  async close(): Promise<void> {
    this.#closing.abort(new Error('the service stops'));
    await this.#loop;
  }

  async #maintain(): Promise<void> {
    const { signal } = this.#closing;
    for (;;) {
      if (this.#isDue()) await this.#renew();
      await sleep(this.#timing.checkMs, undefined, { signal }).catch(() => undefined);
      if (signal.aborted) return;
      await this.#load();
    }
  }

  get #now(): Date {
    return this.#options.now?.() ?? new Date();
  }

  #isDue(): boolean {
    const now = this.#now;
    if (this.#options.provider.renew === undefined || this.#closing.signal.aborted) return false;
    if (this.#facts !== undefined && now < renewalTime(this.#facts)) return false;
    return this.#nextAttemptAt === undefined || now >= this.#nextAttemptAt;
  }

  async #load(): Promise<void> {
    const { provider, log } = this.#options;
    try {
      const pair = await provider.load(this.#now);
      if (pair !== undefined) await this.#use(pair);
      // A failed renewal is the problem until one succeeds.
      if (this.#failures === 0) this.#problem = undefined;
    } catch (error) {
      const problem = messageOf(error);
      if (problem !== this.#problem) {
        const rest = this.#pair === undefined ? 'previews have no TLS' : 'the one before is still served';
        log.error(
          { source: provider.source },
          `the certificate of previews is not usable: ${problem}; ${rest}`,
        );
      }
      this.#problem = problem;
    }
    await this.#writeStatus();
  }

  async #renew(): Promise<void> {
    const { provider, domain, log } = this.#options;
    this.#attemptedAt = this.#now;
    this.#nextAttemptAt = new Date(this.#attemptedAt.getTime() + this.#timing.retryMs);
    await this.#writeStatus();
    try {
      using deadline = deadlineOf(this.#timing.renewMs);
      const signal = AbortSignal.any([this.#closing.signal, deadline.signal]);
      signal.throwIfAborted();
      const pair = await provider.renew?.(signal);
      if (pair !== undefined) await this.#use(pair);
      this.#renewals.ok++;
      this.#failures = 0;
      this.#problem = undefined;
      this.#nextAttemptAt = undefined;
    } catch (error) {
      if (this.#closing.signal.aborted) return;
      this.#renewals.failed++;
      this.#failures++;
      const delay = retryDelay(this.#failures, this.#timing);
      this.#nextAttemptAt = new Date(this.#now.getTime() + delay);
      this.#problem = messageOf(error);
      const rest = this.#pair === undefined ? 'previews have no TLS' : 'the one before is still served';
      log.error(
        { source: provider.source, domain, failures: this.#failures, again_in_ms: delay },
        `no new certificate for *.${domain}: ${this.#problem}; ${rest}`,
      );
    }
    await this.#writeStatus();
  }

  /** Serves it from now on, if it is another one. @throws when it is not usable */
  async #use(pair: CertificatePair): Promise<void> {
    const { domain, log } = this.#options;
    if (pair.certificate === this.#pair?.certificate && pair.key === this.#pair.key) return;
    const facts = inspectPair(pair, domain);
    await writePrivateFile(this.file, joinPair(pair));
    [this.#pair, this.#facts] = [pair, facts];
    log.info({ not_after: facts.notAfter, issuer: facts.issuer }, 'previews have a certificate');
    if (facts.notAfter < this.#now) log.error('the certificate of previews has expired: clients refuse it');
    for (const listener of this.#listeners) listener(pair);
  }

  /** A gateway that restarts over and over must not ask an authority each time. */
  async #restore(): Promise<void> {
    const { provider, domain } = this.#options;
    let status: unknown;
    try {
      status = JSON.parse(await readFile(this.#statusFile, 'utf8'));
    } catch {
      // Absent, or damaged.
      return;
    }
    if (!Check(PreviewCertificateStatus, status)) return;
    if (status.source !== provider.source || status.domain !== domain || status.attempted_at === undefined)
      return;
    const attemptedAt = new Date(status.attempted_at);
    if (status.next_attempt_at === undefined || attemptedAt > this.#now) return;
    // The operator may have mended what failed: after a restart, the waits begin anew with the shortest.
    this.#nextAttemptAt = new Date(attemptedAt.getTime() + this.#timing.retryMs);
  }

  async #writeStatus(): Promise<void> {
    const text = `${JSON.stringify(this.status, null, 2)}\n`;
    if (text === this.#written) return;
    try {
      await writePrivateFile(this.#statusFile, text);
      this.#written = text;
    } catch (error) {
      this.#options.log.warn({ err: error }, 'the status of the certificate could not be written');
    }
  }
}

async function makePlaceholder(): Promise<CertificatePair> {
  const { createRoot, exportKeyPem, generateKeys, toPem } = await import('./x509.ts');
  const keys = await generateKeys(true);
  const commonName = 'previews have no certificate yet';
  const root = await createRoot({ commonName, keys, validMs: PLACEHOLDER_MS, pathLength: 0 });
  return { certificate: toPem(root), key: await exportKeyPem(keys.privateKey) };
}

/** An own error, as that of `AbortSignal.timeout` does not say which time. */
function deadlineOf(ms: number): Disposable & { signal: AbortSignal } {
  const controller = new AbortController();
  const timer = setTimeout(() => controller.abort(new Error(`it was not done within ${ms / 1000} s`)), ms);
  return { signal: controller.signal, [Symbol.dispose]: () => clearTimeout(timer) };
}

/** Doubled with each failure, with jitter: gateways of a region that failed together do not return together. */
export function retryDelay(
  failures: number,
  timing: Pick<CertificateTiming, 'retryMs' | 'retryMaxMs'>,
): number {
  const delay = Math.min(timing.retryMs * 2 ** (failures - 1), timing.retryMaxMs);
  return Math.round(delay * (0.75 + Math.random() / 2));
}

/** Some errors of connections have only a code. */
function messageOf(error: unknown): string {
  if (!(error instanceof Error)) return String(error);
  if (error.message !== '') return error.message;
  return (error as NodeJS.ErrnoException).code ?? error.name;
}
