/**
 * How this runner proves who it is to the control plane: with a credential that it generated itself, whose digest the
 * control plane has registered under the runner's id. It also has the key that verifies data tokens.
 */
import { readFile, rename } from 'node:fs/promises';
import { join } from 'node:path';
import { writePrivateFile } from '@releap/certificates/private-file';
import {
  HostCertificateResponse,
  RUNNER_HOST_CERTIFICATE_PATH,
  RunnerDataKey,
  validate,
} from '@releap/contract';
import type { Logger } from 'pino';
import {
  assertClock,
  type Answer,
  type ControlPlace,
  CREDENTIAL,
  newCredential,
  postToControl,
  refusal,
  requestDataKey,
  requestJoin,
} from './control-requests.ts';

export interface ControlIdentityOptions extends ControlPlace {
  /** Holds `credential`, mode 0600. */
  folder: string;
  runnerId: string;
  /** Lets a machine join that the control plane does not know; undefined when there is none. Read only when needed. */
  joinToken: () => Promise<string | undefined>;
  log: Logger;
}

export interface DataKey {
  id: string;
  key: Uint8Array;
}

export class ControlIdentity {
  readonly runnerId: string;
  readonly #options: ControlIdentityOptions;
  #credential: string;
  #dataKey: DataKey | undefined;
  #fetching: Promise<DataKey> | undefined;
  /** To the last question for the key. */
  #answer: Answer | undefined;

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
    const credential = newCredential();
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
    const path = RUNNER_HOST_CERTIFICATE_PATH;
    const answer = await postToControl(this.#options, path, await this.credential(), { request });
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
    const answer = await requestDataKey(this.#options, this.#credential);
    this.#answer = answer;
    if (answer.status === 401) return undefined;
    if (answer.status !== 200) throw refusal(answer);
    return validate(RunnerDataKey, 'body', answer.body);
  }

  async #join(): Promise<void> {
    const { joinToken, log } = this.#options;
    if (this.#answer !== undefined) assertClock(this.#answer);
    const token = await joinToken();
    if (token === undefined) {
      throw new Error(
        'the control plane does not accept the credential of this runner, and there is no join token (RELEAP_JOIN_TOKEN)',
      );
    }
    const { runnerId } = this;
    const answer = await requestJoin(this.#options, token, { runnerId, credential: this.#credential });
    if (answer.status !== 200) throw refusal(answer);
    log.info({ runner: runnerId }, 'joined the installation');
  }

  /** Registers another credential with the present one. The file changes only once the control plane has it. */
  async #renew(): Promise<boolean> {
    const { folder, log } = this.#options;
    const file = join(folder, 'credential');
    const kept = await readIfThere(`${file}.next`);
    // A renewal that was cut off may have been registered.
    const next = kept !== undefined && CREDENTIAL.test(kept) ? kept : newCredential();
    if (next !== kept) await writePrivateFile(`${file}.next`, `${next}\n`);
    const answer = await requestJoin(this.#options, this.#credential, {
      runnerId: this.runnerId,
      credential: next,
    });
    if (answer.status !== 200) {
      log.warn({ err: refusal(answer) }, 'the credential of this runner could not be renewed');
      return false;
    }
    await rename(`${file}.next`, file);
    this.#credential = next;
    log.info({ runner: this.runnerId }, 'renewed the credential');
    return true;
  }
}

async function readIfThere(file: string): Promise<string | undefined> {
  return readFile(file, 'utf8').then(
    (text) => text.trim(),
    (error: NodeJS.ErrnoException) => {
      if (error.code === 'ENOENT') return undefined;
      throw error;
    },
  );
}
