/** Asks the control plane for what the interceptor and the store proxy need, with the credential of this runner. */
import {
  RUNNER_CERTIFICATE_PATH,
  RUNNER_SECRETS_PATH,
  RUNNER_STORES_PATH,
  RunnerCertificate,
  RunnerSecrets,
  RunnerStores,
  validate,
} from '@releap/contract';
import type { Static, TSchema } from 'typebox';

export interface SecretsSource {
  /** The secrets of those of these sandboxes that have other ones than the revision says. */
  changed(sandboxes: readonly { id: string; revision?: string }[]): Promise<RunnerSecrets>;
  /** An intermediate certificate for the key of this request. */
  certificate(request: string): Promise<string>;
}

export interface SecretsClientOptions {
  /** Internal listener of the control plane. */
  controlUrl: string;
  /** Default: without TLS, or as authorities of this machine say. */
  fetch?: typeof fetch;
  credential: () => Promise<string>;
}

const ANSWER_MS = 10_000;

export class SecretsClient implements SecretsSource {
  readonly #options: SecretsClientOptions;

  constructor(options: SecretsClientOptions) {
    this.#options = options;
  }

  async changed(sandboxes: readonly { id: string; revision?: string }[]): Promise<RunnerSecrets> {
    return await this.#post(RUNNER_SECRETS_PATH, { sandboxes }, RunnerSecrets);
  }

  async certificate(request: string): Promise<string> {
    return (await this.#post(RUNNER_CERTIFICATE_PATH, { request }, RunnerCertificate)).certificate;
  }

  /** The mounted object stores of those of these sandboxes that have other ones than the revision says. */
  async changedStores(sandboxes: readonly { id: string; revision?: string }[]): Promise<RunnerStores> {
    return await this.#post(RUNNER_STORES_PATH, { sandboxes }, RunnerStores);
  }

  async #post<S extends TSchema>(path: string, body: unknown, schema: S): Promise<Static<S>> {
    const { controlUrl, credential, fetch: send = fetch } = this.#options;
    const response = await send(new URL(path, controlUrl), {
      method: 'POST',
      headers: { authorization: `Bearer ${await credential()}`, 'content-type': 'application/json' },
      body: JSON.stringify(body),
      signal: AbortSignal.timeout(ANSWER_MS),
    });
    // The text of an answer is in no error: it contains values.
    if (response.status !== 200) {
      await response.body?.cancel();
      throw new Error(`${path} answered ${response.status}`);
    }
    return validate(schema, 'body', await response.json());
  }
}
