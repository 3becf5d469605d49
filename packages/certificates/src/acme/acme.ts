/** A certificate for all names below a domain from an ACME authority (RFC 8555), by DNS-01: the only challenge for wildcards. */
import { createHash } from 'node:crypto';
import { mkdir, readFile, rm } from 'node:fs/promises';
import path from 'node:path';
import { getCACertificates } from 'node:tls';
import type { Authorization, Client } from 'acme-client';
import type { Logger } from 'pino';
import { type CertificatePair, joinPair, splitPair } from '../certificate.ts';
import type { CertificateProvider } from '../maintained-certificate.ts';
import { makePrivateFile, readIfThere, writePrivateFile } from '../private-file.ts';
import type { ChallengeDns } from './challenge-dns.ts';
import { acmeHttp, UnreachableError } from './http.ts';
import { untilVisible } from './visible-record.ts';

export interface AcmeOptions {
  home: string;
  domain: string;
  directoryUrl: string;
  /** For notices of the authority. */
  email?: string;
  /** External account binding: credentials of an account that exists at the authority otherwise. */
  binding?: { keyId: string; hmacKeyFile: string };
  /** Authorities (PEM) that the directory may be verified with, besides those of the host. */
  caFile?: string;
  dns: ChallengeDns;
  /** Of the TXT record, where `_acme-challenge.<domain>` is a CNAME to it. */
  recordName?: string;
  /** See `VisibilityOptions`. */
  dnsServers?: readonly string[];
  dnsWaitMs: number;
  log: Logger;
  /** Between two looks at what the authority does, in milliseconds: the first, and the longest. */
  pollMs?: readonly [first: number, longest: number];
}

const POLLS = 12;
const POLL_MS = [1_000, 20_000] as const;
const CLEANUP_MS = 120_000;
/** Then it is left to the next start. */
const STOP_MS = 5_000;

/** At most one renews at a time: how the library sends requests is a setting of the process. */
export function acmeCertificate(options: AcmeOptions): CertificateProvider {
  return new AcmeCertificate(options);
}

class AcmeCertificate implements CertificateProvider {
  readonly source = 'acme';
  readonly #options: AcmeOptions;
  readonly #accountFolder: string;
  readonly #certificateFile: string;
  /** A record that may still be published, as a line of name and value. */
  readonly #recordFile: string;

  constructor(options: AcmeOptions) {
    this.#options = options;
    const { home, domain, directoryUrl } = options;
    // An authority for trials leaves nothing to the real one.
    const digest = createHash('sha256').update(directoryUrl).digest('hex').slice(0, 16);
    this.#accountFolder = path.join(home, 'certificates/acme', `${new URL(directoryUrl).hostname}-${digest}`);
    this.#certificateFile = path.join(this.#accountFolder, `${domain}.pem`);
    this.#recordFile = path.join(this.#accountFolder, `${domain}.record`);
  }

  async load(): Promise<CertificatePair | undefined> {
    const text = await readIfThere(this.#certificateFile);
    return text === undefined ? undefined : splitPair(text);
  }

  async renew(signal: AbortSignal): Promise<CertificatePair> {
    const { log, domain } = this.#options;
    await mkdir(this.#accountFolder, { recursive: true, mode: 0o700 });
    await this.#removeOldRecord(signal);
    const { default: acme } = await import('acme-client');
    await using http = acmeHttp(await this.#authorities(), signal);
    acme.axios.defaults.adapter = http.adapter;
    const client = await untilAborted(signal, this.#register(acme.Client, signal));
    log.info({ directory: this.#options.directoryUrl }, `ordering a certificate for *.${domain}`);
    const identifiers = [{ type: 'dns', value: `*.${domain}` }];
    const order = await untilAborted(signal, client.createOrder({ identifiers }));
    for (const authorization of await untilAborted(signal, client.getAuthorizations(order)))
      await this.#authorize(client, authorization, signal);
    // A new key for each certificate.
    const [key, csr] = await acme.crypto.createCsr(
      { altNames: [`*.${domain}`] },
      await acme.crypto.createPrivateEcdsaKey('P-256'),
    );
    const finalized = await untilAborted(signal, client.finalizeOrder(order, csr));
    const certificate = await untilAborted(signal, client.getCertificate(finalized));
    const pair = { certificate, key: key.toString('utf8') };
    await writePrivateFile(this.#certificateFile, joinPair(pair));
    return splitPair(joinPair(pair));
  }

  async #authorities(): Promise<string[] | undefined> {
    const { caFile } = this.#options;
    if (caFile === undefined) return undefined;
    return [...getCACertificates('default'), await readFile(caFile, 'utf8')];
  }

  /** A client with an account: the one of earlier orders, or a new one where the authority does not know it any more. */
  async #register(AcmeClient: typeof Client, signal: AbortSignal): Promise<Client> {
    const { directoryUrl, email, binding, log, pollMs = POLL_MS } = this.#options;
    const keyFile = path.join(this.#accountFolder, 'account.key');
    const urlFile = path.join(this.#accountFolder, 'account.url');
    const { crypto } = (await import('acme-client')).default;
    if ((await readIfThere(keyFile)) === undefined)
      await makePrivateFile(keyFile, (await crypto.createPrivateEcdsaKey('P-256')).toString('utf8'));
    const common = {
      directoryUrl,
      accountKey: await readFile(keyFile, 'utf8'),
      backoffAttempts: POLLS,
      backoffMin: pollMs[0],
      backoffMax: pollMs[1],
    };
    const contact = email === undefined ? [] : [`mailto:${email}`];
    const accountUrl = (await readIfThere(urlFile))?.trim();
    if (accountUrl !== undefined) {
      const client = new AcmeClient({ ...common, accountUrl });
      try {
        await client.updateAccount({ contact });
        return client;
      } catch (error) {
        if (signal.aborted || !(error instanceof Error) || error instanceof UnreachableError) throw error;
        log.warn({ directory: directoryUrl }, `the account is refused, a new one is made: ${error.message}`);
        await rm(urlFile, { force: true });
      }
    }
    const client = new AcmeClient({
      ...common,
      ...(binding === undefined
        ? {}
        : {
            externalAccountBinding: {
              kid: binding.keyId,
              hmacKey: (await readFile(binding.hmacKeyFile, 'utf8')).trim(),
            },
          }),
    });
    await client.createAccount({ termsOfServiceAgreed: true, contact });
    await writePrivateFile(urlFile, `${client.getAccountUrl()}\n`);
    return client;
  }

  async #authorize(client: Client, authorization: Authorization, signal: AbortSignal): Promise<void> {
    const { dns, domain, dnsServers, dnsWaitMs, recordName = `_acme-challenge.${domain}` } = this.#options;
    if (authorization.status === 'valid') return;
    const challenge = authorization.challenges.find(({ type }) => type === 'dns-01');
    if (challenge === undefined) throw new Error('the authority offers no DNS-01 challenge');
    const value = await client.getChallengeKeyAuthorization(challenge);
    await writePrivateFile(this.#recordFile, `${recordName} ${value}\n`);
    try {
      await dns.add(recordName, value, signal);
      await untilVisible(recordName, value, {
        ...(dnsServers === undefined ? {} : { servers: dnsServers }),
        waitMs: dnsWaitMs,
        signal,
      });
      await untilAborted(signal, client.completeChallenge(challenge));
      await untilAborted(signal, client.waitForValidStatus(challenge));
    } finally {
      // Also when the service stops or the time is over.
      await this.#removeOldRecord(AbortSignal.timeout(signal.aborted ? STOP_MS : CLEANUP_MS));
    }
  }

  /** Removes the record of the last challenge, also one that a killed process has left. */
  async #removeOldRecord(signal: AbortSignal): Promise<void> {
    const { dns, log } = this.#options;
    const [name, value] = (await readIfThere(this.#recordFile))?.trim().split(' ') ?? [];
    if (name === undefined || value === undefined) return;
    try {
      await dns.remove(name, value, signal);
      await rm(this.#recordFile, { force: true });
    } catch (error) {
      log.warn({ err: error, name }, 'the TXT record of a challenge could not be removed');
    }
  }
}

/** The library has no way to end its pauses between two requests. */
async function untilAborted<T>(signal: AbortSignal, promise: Promise<T>): Promise<T> {
  promise.catch(() => undefined);
  signal.throwIfAborted();
  const aborted = Promise.withResolvers<never>();
  const onAbort = (): void => aborted.reject(signal.reason as Error);
  signal.addEventListener('abort', onAbort, { once: true });
  try {
    return await Promise.race([promise, aborted.promise]);
  } finally {
    signal.removeEventListener('abort', onAbort);
  }
}
