/**
 * How this runner proves who it is to the control plane: with a credential that it generated itself, whose digest the
 * control plane has registered under the runner's id. It also has the key that verifies data tokens.
 */
import { createHash, randomBytes } from 'node:crypto';
import { readFile, rename } from 'node:fs/promises';
import { join } from 'node:path';
import {
  HostCertificateResponse,
  RUNNER_DATA_KEY_PATH,
  RUNNER_HOST_CERTIFICATE_PATH,
  RUNNER_JOIN_PATH,
  RunnerDataKey,
  validate,
  type RunnerJoinRequest,
} from '@releap/contract';
import type { Logger } from 'pino';
import { writePrivateFile } from './private-file.ts';

export interface ControlIdentityOptions {
  /** Holds `credential`, mode 0600. */
  folder: string;
  runnerId: string;
  /** Internal listener of the control plane. */
  controlUrl: string;
  /** Default: without TLS, or as authorities of this machine say. */
  fetch?: typeof fetch;
  /** Lets a machine join that the control plane does not know; undefined when there is none. Read only when needed. */
  joinToken: () => Promise<string | undefined>;
  log: Logger;
}

export interface DataKey {
  id: string;
  key: Uint8Array;
}

const ANSWER_MS = 10_000;
/** A machine whose clock differs by more does not join. Data tokens allow 30 s, and clocks drift apart. */
const CLOCK_MS = 15_000;
const CREDENTIAL = /^rlpr_[A-Za-z0-9_-]{43}$/;

export class ControlIdentity {
  readonly runnerId: string;
  readonly #options: ControlIdentityOptions;
  #credential: string;
  #dataKey: DataKey | undefined;
  #fetching: Promise<DataKey> | undefined;
  #aheadMs = 0;

  private constructor(options: ControlIdentityOptions, credential: string) {
    this.#options = options;
    this.runnerId = options.runnerId;
    this.#credential = credential;
  }

  /** Reads the credential of this home, or generates one. Nothing is sent yet. */
  static async open(options: ControlIdentityOptions): Promise<ControlIdentity> {
    const file = join(options.folder, 'credential');
    const present = await readIfThere(file);
    // Empty after a power failure that came right after it was made.
    if (present !== undefined && present !== '') {
      if (!CREDENTIAL.test(present))
        throw new Error(`${file} does not hold a credential; remove it to make a new one`);
      return new ControlIdentity(options, present);
    }
    const credential = generate();
    await writePrivateFile(file, `${credential}\n`);
    return new ControlIdentity(options, credential);
  }

  /**
   * The credential for a connection, after the control plane has accepted it; joins first where it does not know it.
   * @throws with the reason when the control plane cannot be reached or refuses
   */
  async credential(): Promise<string> {
    await this.fetchKey();
    return this.#credential;
  }

  /** The key of this name that verifies data tokens, if it is the present one. */
  knownKey(keyId: string): Uint8Array | undefined {
    return this.#dataKey?.id === keyId ? this.#dataKey.key : undefined;
  }

  /** Asks the control plane for the present key; those who ask at the same time share the answer. */
  fetchKey(): Promise<DataKey> {
    return (this.#fetching ??= this.#fetchKey().finally(() => (this.#fetching = undefined)));
  }

  /**
   * Has the control plane issue a certificate that names this runner.
   * @param request PKCS #10, DER as base64
   */
  async issueCertificate(request: string): Promise<HostCertificateResponse> {
    const answer = await this.#post(RUNNER_HOST_CERTIFICATE_PATH, await this.credential(), { request });
    if (answer.status !== 200) throw refusal(answer);
    return validate(HostCertificateResponse, 'body', answer.body);
  }

  async #fetchKey(): Promise<DataKey> {
    let answer = await this.#askForKey();
    if (answer === undefined) {
      await this.#join();
      answer = await this.#askForKey();
    }
    if (answer?.renew === true && (await this.#renew())) answer = await this.#askForKey();
    if (answer === undefined)
      throw new Error('the control plane does not accept the credential of this runner');
    this.#dataKey = { id: answer.key_id, key: Buffer.from(answer.key, 'base64url') };
    return this.#dataKey;
  }

  /** Undefined: the control plane does not accept the credential. */
  async #askForKey(): Promise<RunnerDataKey | undefined> {
    const answer = await this.#post(RUNNER_DATA_KEY_PATH, this.#credential, {});
    this.#aheadMs = answer.aheadMs;
    if (answer.status === 401) return undefined;
    if (answer.status !== 200) throw refusal(answer);
    return validate(RunnerDataKey, 'body', answer.body);
  }

  async #join(): Promise<void> {
    const { joinToken, log } = this.#options;
    if (Math.abs(this.#aheadMs) > CLOCK_MS)
      throw new Error(
        `the clock of this machine is ${Math.round(Math.abs(this.#aheadMs) / 1000)} s ${this.#aheadMs > 0 ? 'ahead of' : 'behind'} that of ` +
          'the control plane: synchronise both before it joins (data tokens and certificates have times)',
      );
    const token = await joinToken();
    if (token === undefined) {
      throw new Error(
        'the control plane does not accept the credential of this runner, and there is no join token (RELEAP_JOIN_TOKEN)',
      );
    }
    const answer = await this.#post(RUNNER_JOIN_PATH, token, {
      runner_id: this.runnerId,
      credential_sha256: sha256(this.#credential),
    } satisfies RunnerJoinRequest);
    if (answer.status !== 200) throw refusal(answer);
    log.info({ runner: this.runnerId }, 'joined the installation');
  }

  /** Registers another credential with the present one. The file changes only once the control plane has it. */
  async #renew(): Promise<boolean> {
    const { folder, log } = this.#options;
    const file = join(folder, 'credential');
    const kept = await readIfThere(`${file}.next`);
    // A renewal that was cut off may have been registered.
    const next = kept !== undefined && CREDENTIAL.test(kept) ? kept : generate();
    if (next !== kept) await writePrivateFile(`${file}.next`, `${next}\n`);
    const answer = await this.#post(RUNNER_JOIN_PATH, this.#credential, {
      runner_id: this.runnerId,
      credential_sha256: sha256(next),
    } satisfies RunnerJoinRequest);
    if (answer.status !== 200) {
      log.warn({ err: refusal(answer) }, 'the credential of this runner could not be renewed');
      return false;
    }
    await rename(`${file}.next`, file);
    this.#credential = next;
    log.info({ runner: this.runnerId }, 'renewed the credential');
    return true;
  }

  async #post(path: string, token: string, body: unknown): Promise<Answer> {
    const { controlUrl, fetch: send = fetch } = this.#options;
    const response = await send(new URL(path, controlUrl), {
      method: 'POST',
      headers: { authorization: `Bearer ${token}`, 'content-type': 'application/json' },
      body: JSON.stringify(body),
      signal: AbortSignal.timeout(ANSWER_MS),
    });
    const text = await response.text();
    let parsed: unknown;
    try {
      parsed = JSON.parse(text);
    } catch {
      parsed = undefined;
    }
    const sentAt = Date.parse(response.headers.get('date') ?? '');
    const aheadMs = Number.isNaN(sentAt) ? 0 : Date.now() - sentAt;
    return { status: response.status, body: parsed, path, aheadMs };
  }
}

interface Answer {
  status: number;
  body: unknown;
  path: string;
  /** Of this machine's clock, compared with the time of the answer, which has whole seconds. */
  aheadMs: number;
}

function refusal({ status, body, path }: Answer): Error {
  const error = (body as { error?: unknown } | undefined)?.error;
  const hint = status === 404 ? ' (RELEAP_CONTROL_URL must name the internal listener)' : '';
  return new Error(
    `${path} answered ${status}${typeof error === 'string' ? `: ${error.slice(0, 300)}` : ''}${hint}`,
  );
}

const generate = (): string => `rlpr_${randomBytes(32).toString('base64url')}`;
const sha256 = (text: string): string => createHash('sha256').update(text).digest('hex');

async function readIfThere(file: string): Promise<string | undefined> {
  return readFile(file, 'utf8').then(
    (text) => text.trim(),
    (error: NodeJS.ErrnoException) => {
      if (error.code === 'ENOENT') return undefined;
      throw error;
    },
  );
}
