/** What a project's credential is at the registry itself: Amazon's registries take tokens that it is exchanged for. */
import { createHash } from 'node:crypto';
import type { RegistryKind } from '@releap/contract';
import { readBounded } from '@releap/contract/read-bounded';
import { AwsV4Signer } from 'aws4fetch';
import { ImageError, show } from '../image-error.ts';
import { SingleFlight } from '../single-flight.ts';
import type { RegistryCredential } from './registry-client.ts';

export interface StoredCredential extends RegistryCredential {
  /** The registry. */
  host: string;
  /** `basic`, `ghcr` and `gcr` are used as they are. */
  kind?: RegistryKind | undefined;
}

const ECR_HOST = /^[a-z0-9-]+\.dkr\.ecr\.([a-z0-9-]+)\.amazonaws\.com$/;
/** The user name that belongs to a token of ECR itself: nothing is to be exchanged. */
const ECR_USER = 'AWS';
const ECR_TARGET = 'AmazonEC2ContainerRegistry_V20150921.GetAuthorizationToken';
const DEADLINE_MS = 15_000;
/** A token is not used in the last minutes of its life: a pull takes a while. */
const MARGIN_MS = 20 * 60_000;
const REMEMBERED_MAX = 1000;
const ANSWER_MAX = 64 * 1024;

export class RegistryLogin {
  readonly #ecrEndpoint: string | undefined;
  readonly #known = new Map<string, { login: RegistryCredential; until: number }>();
  readonly #flights = new SingleFlight<RegistryCredential>();

  /** @param ecrEndpoint instead of Amazon's for the registry's region */
  constructor(ecrEndpoint?: string) {
    this.#ecrEndpoint = ecrEndpoint;
  }

  /** The user name and password that the registry takes. @throws ImageError */
  async of(credential: StoredCredential, signal?: AbortSignal): Promise<RegistryCredential> {
    const { username, password } = credential;
    const region = credential.kind === 'ecr' ? ECR_HOST.exec(credential.host)?.[1] : undefined;
    if (region === undefined || username === ECR_USER) return { username, password };
    const key = createHash('sha256')
      .update(JSON.stringify([credential.host, username, password]))
      .digest('hex');
    const known = this.#known.get(key);
    if (known && known.until > Date.now()) return known.login;
    return await this.#flights.run(
      key,
      async (flightSignal) => {
        const { login, expiresMs } = await this.#exchange(credential, region, flightSignal);
        this.#known.delete(key);
        this.#known.set(key, { login, until: expiresMs - MARGIN_MS });
        const oldest = this.#known.size > REMEMBERED_MAX ? this.#known.keys().next().value : undefined;
        if (oldest !== undefined) this.#known.delete(oldest);
        return login;
      },
      { signal },
    );
  }

  async close(): Promise<void> {
    await this.#flights.close();
  }

  async #exchange(
    { host, username, password }: StoredCredential,
    region: string,
    signal: AbortSignal,
  ): Promise<{ login: RegistryCredential; expiresMs: number }> {
    const signed = await new AwsV4Signer({
      method: 'POST',
      url: `${this.#ecrEndpoint ?? `https://api.ecr.${region}.amazonaws.com`}/`,
      headers: { 'content-type': 'application/x-amz-json-1.1', 'x-amz-target': ECR_TARGET },
      body: '{}',
      accessKeyId: username,
      secretAccessKey: password,
      service: 'ecr',
      region,
    }).sign();
    let answer: Response;
    let body: string;
    try {
      answer = await fetch(signed.url, {
        method: signed.method,
        headers: signed.headers,
        body: '{}',
        redirect: 'error',
        signal: AbortSignal.any([signal, AbortSignal.timeout(DEADLINE_MS)]),
      });
      const read = answer.body && (await readBounded(answer.body, ANSWER_MAX, tooLong));
      body = read?.toString('utf8') ?? '';
    } catch (error) {
      if (signal.aborted) throw new ImageError('aborted', `signing in to ${host} was cancelled`);
      const { cause, message } = error as Error;
      const why = cause instanceof Error ? cause.message : message;
      throw new ImageError(
        'unreachable',
        `the token service of Amazon ECR in ${region} cannot be reached for ${host}: ${show(why)}`,
      );
    }
    if (!answer.ok) throw refusal(host, answer.status, body.replaceAll(password, '***'));
    return parseToken(host, body);
  }
}

const tooLong = (): Error => new Error(`its answer has more than ${ANSWER_MAX} bytes`);

function refusal(host: string, status: number, body: string): ImageError {
  const said = `HTTP ${status}: ${show(body, 300)}`;
  if (status >= 500 || /Throttl|ServerException/.test(body)) {
    return new ImageError('unreachable', `Amazon ECR gives no token for ${host} at present: ${said}`);
  }
  return new ImageError(
    'unauthorized',
    `Amazon ECR does not accept the project's credential for ${host}; the user name must be an access key id and the password its secret access key: ${said}`,
  );
}

function parseToken(host: string, body: string): { login: RegistryCredential; expiresMs: number } {
  try {
    const { authorizationData: [data] = [] } = JSON.parse(body) as {
      authorizationData?: { authorizationToken?: unknown; expiresAt?: unknown }[];
    };
    const [username, ...rest] = Buffer.from(String(data?.authorizationToken), 'base64')
      .toString('utf8')
      .split(':');
    const password = rest.join(':');
    const expiresMs = Number(data?.expiresAt) * 1000;
    if (username === undefined || username === '' || password === '' || !Number.isFinite(expiresMs))
      throw new TypeError('no token');
    return { login: { username, password }, expiresMs };
  } catch (error) {
    throw new ImageError('failed', `Amazon ECR answered without a token for ${host}`, { cause: error });
  }
}
