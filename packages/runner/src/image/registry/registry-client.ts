/**
 * The pull half of the distribution protocol (OCI distribution specification v1.1) for one repository of one registry.
 *
 * Our own client and not a tool, for what tools leave to the network around them: every connection goes to an address that
 * was checked (`AddressPolicy`), after each redirect and for token servers too, and a peer that sends nothing, or without
 * end, is given up on. Nothing here is believed: callers compare digests.
 */
import { readFileSync } from 'node:fs';
import { rootCertificates } from 'node:tls';
import { readBounded } from '@releap/contract/read-bounded';
import { Agent, EnvHttpProxyAgent, type Dispatcher } from 'undici';
import { ImageError, show } from '../image-error.ts';
import type { AddressPolicy } from './address-policy.ts';
import { isLoopbackHost } from './address-policy.ts';
import { answerError, connectionError, type Refused } from './registry-error.ts';
import { parseChallenge } from './challenge.ts';

export interface RegistryCredential {
  username: string;
  password: string;
}

export interface RegistryTarget {
  /** `host[:port]` as references have it. */
  host: string;
  repository: string;
  /** The reference in full, for messages. */
  name: string;
}

export interface RegistryClientOptions {
  target: RegistryTarget;
  credential?: RegistryCredential | undefined;
  policy: AddressPolicy;
  signal: AbortSignal;
  /** No byte for so long: the registry is given up on, milliseconds. */
  stallMs: number;
}

type Answer = Dispatcher.ResponseData;

const DOCKER_HUB = { reference: 'index.docker.io', api: 'registry-1.docker.io' };
const MANIFEST_TYPES = [
  'application/vnd.oci.image.index.v1+json',
  'application/vnd.oci.image.manifest.v1+json',
  'application/vnd.docker.distribution.manifest.list.v2+json',
  'application/vnd.docker.distribution.manifest.v2+json',
].join(', ');
const REDIRECTS_MAX = 5;
const CONNECT_MS = 10_000;
/** Of an answer that only says why not, or holds a token. */
const SMALL_BODY_MAX = 64 * 1024;
/** What a server says that was sent TLS and does not speak it. */
const NO_TLS =
  /wrong version number|packet length too long|ERR_SSL|EPROTO|ECONNRESET|socket hang up|other side closed/i;
const SYSTEM_CERTIFICATES = '/etc/ssl/certs/ca-certificates.crt';

export class RegistryClient implements AsyncDisposable {
  readonly #options: RegistryClientOptions;
  /** By whether any address may be connected to, and whether certificates are verified. */
  readonly #dispatchers = new Map<string, Dispatcher>();
  #base: URL | undefined;
  #authorization: string | undefined;

  constructor(options: RegistryClientOptions) {
    this.#options = options;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await Promise.all([...this.#dispatchers.values()].map((one) => one.destroy()));
  }

  /** @param reference a tag or a digest @throws ImageError */
  async manifest(reference: string, maxBytes: number): Promise<Buffer> {
    const answer = await this.#get(`manifests/${reference}`, { accept: MANIFEST_TYPES });
    return await this.#read(answer, maxBytes, 'manifest');
  }

  /** A small blob, whole. @throws ImageError */
  async smallBlob(digest: string, maxBytes: number): Promise<Buffer> {
    return await this.#read(await this.#get(`blobs/${digest}`, {}), maxBytes, 'blob');
  }

  /** The bytes of a blob from `offset` on; `offset` is 0 where the registry cannot continue. @throws ImageError */
  async blob(digest: string, from: number): Promise<{ offset: number; body: AsyncIterable<Buffer> }> {
    const answer = await this.#get(`blobs/${digest}`, from === 0 ? {} : { range: `bytes=${from}-` });
    const body = this.#guard(answer.body as AsyncIterable<Buffer>);
    return { offset: answer.statusCode === 206 ? from : 0, body };
  }

  /** GET below `/v2/<repository>/`, with authorization and redirects. */
  async #get(path: string, headers: Record<string, string>): Promise<Answer> {
    const { repository } = this.#options.target;
    const base = (this.#base ??= await this.#findBase());
    const url = new URL(`/v2/${repository}/${path}`, base);
    const sent = this.#authorization;
    let answer = await this.#follow(url, headers);
    if (answer.statusCode === 401 && (await this.#authorize(answer, sent))) {
      answer = await this.#follow(url, headers);
    }
    if (answer.statusCode === 200 || answer.statusCode === 206) return answer;
    throw await this.#refusal(answer);
  }

  async #follow(start: URL, headers: Record<string, string>): Promise<Answer> {
    let url = start;
    for (let left = REDIRECTS_MAX; ; left -= 1) {
      const own = url.origin === start.origin && this.#authorization !== undefined;
      const sent = own ? { ...headers, authorization: this.#authorization ?? '' } : headers;
      const answer = await this.#request(url, sent);
      const { location } = answer.headers;
      if (![301, 302, 303, 307, 308].includes(answer.statusCode) || typeof location !== 'string')
        return answer;
      await answer.body.dump({ limit: SMALL_BODY_MAX }).catch(() => undefined);
      if (left === 0) throw this.#failed(`it redirects more than ${REDIRECTS_MAX} times`);
      url = this.#redirected(url, location);
    }
  }

  #redirected(from: URL, location: string): URL {
    const to = URL.canParse(location, from.href) ? new URL(location, from) : undefined;
    const isWeb = to?.protocol === 'https:' || to?.protocol === 'http:';
    if (to === undefined || !isWeb) throw this.#failed(`it redirects to ${show(location)}`);
    if (to.protocol === 'http:' && from.protocol === 'https:' && !isLoopbackHost(to.host)) {
      throw this.#failed(`it redirects from TLS to plain HTTP: ${show(to.origin)}`);
    }
    to.username = '';
    to.password = '';
    return to;
  }

  async #request(url: URL, headers: Record<string, string>): Promise<Answer> {
    const { policy, target, signal, stallMs } = this.#options;
    const trusted = policy.isTrusted(url, target.host);
    try {
      if (!trusted) policy.checkLiteral(url);
      return await this.#dispatcher(trusted, isLoopbackHost(url.host)).request({
        origin: url.origin,
        path: `${url.pathname}${url.search}`,
        method: 'GET',
        headers: { 'user-agent': 'releap', ...headers },
        signal,
        headersTimeout: stallMs,
        bodyTimeout: stallMs,
      });
    } catch (error) {
      throw connectionError(error, this.#refused, stallMs);
    }
  }

  #dispatcher(trusted: boolean, loopback: boolean): Dispatcher {
    const key = `${trusted} ${loopback}`;
    const known = this.#dispatchers.get(key);
    if (known) return known;
    const connect = {
      timeout: CONNECT_MS,
      ...(trusted ? {} : { lookup: this.#options.policy.lookup }),
      // Certificates of loopback registries are not verified, as other container tools do.
      ...(loopback ? { rejectUnauthorized: false } : { ca: certificates() }),
    };
    // A proxy of the operator's resolves names by itself, and is then the one that decides.
    const made = loopback ? new Agent({ connect }) : new EnvHttpProxyAgent({ connect });
    this.#dispatchers.set(key, made);
    return made;
  }

  /** TLS, except for registries on this machine that do not speak it. */
  async #findBase(): Promise<URL> {
    const { host } = this.#options.target;
    const secure = new URL(`https://${host === DOCKER_HUB.reference ? DOCKER_HUB.api : host}/`);
    if (!isLoopbackHost(host)) return secure;
    try {
      const answer = await this.#request(new URL('/v2/', secure), {});
      await answer.body.dump({ limit: SMALL_BODY_MAX }).catch(() => undefined);
      return secure;
    } catch (error) {
      const cause =
        error instanceof ImageError ? (error.cause as NodeJS.ErrnoException | undefined) : undefined;
      if (!NO_TLS.test(`${cause?.code} ${cause?.message}`)) throw error;
      return new URL(`http://${host}/`);
    }
  }

  /**
   * Answers a challenge.
   * @param sent what the refused request was sent with: one beside it may have answered the challenge meanwhile
   * @returns whether there is something new to try. @throws ImageError
   */
  async #authorize(answer: Answer, sent: string | undefined): Promise<boolean> {
    const { credential } = this.#options;
    if (this.#authorization !== sent) {
      await answer.body.dump({ limit: SMALL_BODY_MAX }).catch(() => undefined);
      return true;
    }
    const challenge = parseChallenge(answer.headers['www-authenticate']);
    if (challenge === undefined) return false;
    if (challenge.scheme === 'basic') {
      if (credential === undefined || this.#authorization !== undefined) return false;
      await answer.body.dump({ limit: SMALL_BODY_MAX }).catch(() => undefined);
      this.#authorization = basic(credential);
      return true;
    }
    await answer.body.dump({ limit: SMALL_BODY_MAX }).catch(() => undefined);
    this.#authorization = `Bearer ${await this.#token(challenge.parameters)}`;
    return true;
  }

  async #token(parameters: ReadonlyMap<string, string>): Promise<string> {
    const { target, credential } = this.#options;
    const realm = parameters.get('realm') ?? '';
    const url = URL.canParse(realm) ? new URL(realm) : undefined;
    const isSafe = url?.protocol === 'https:' || (url?.protocol === 'http:' && isLoopbackHost(url.host));
    if (url === undefined || !isSafe) throw this.#failed(`its token server is ${show(realm)}`);
    const service = parameters.get('service');
    if (service !== undefined) url.searchParams.set('service', service);
    url.searchParams.set('scope', parameters.get('scope') ?? `repository:${target.repository}:pull`);
    const answer = await this.#request(url, credential ? { authorization: basic(credential) } : {});
    if (answer.statusCode !== 200) throw await this.#refusal(answer);
    const body = await this.#read(answer, SMALL_BODY_MAX, 'token');
    const { token, access_token: accessToken } = parseObject(body);
    const found = token ?? accessToken;
    if (typeof found !== 'string' || found === '' || /[^\x21-\x7e]/.test(found))
      throw this.#failed('its token server sent no token');
    return found;
  }

  async #read(answer: Answer, maxBytes: number, what: string): Promise<Buffer> {
    const { host, name } = this.#options.target;
    const tooLarge = (): ImageError =>
      new ImageError(
        'too-large',
        `registry ${host} sent a ${what} for ${name} of more than ${maxBytes} bytes`,
      );
    return await readBounded(this.#guard(answer.body as AsyncIterable<Buffer>), maxBytes, tooLarge);
  }

  /** A body whose failures are readable. Leaving it early ends the connection. */
  async *#guard(body: AsyncIterable<Buffer>): AsyncGenerator<Buffer, void, void> {
    try {
      yield* body;
    } catch (error) {
      throw connectionError(error, this.#refused, this.#options.stallMs);
    }
  }

  async #refusal(answer: Answer): Promise<ImageError> {
    const said = await this.#read(answer, SMALL_BODY_MAX, 'refusal').catch(() => Buffer.alloc(0));
    return answerError(answer.statusCode, said.toString('utf8'), this.#refused);
  }

  get #refused(): Refused {
    const { target, credential } = this.#options;
    return { name: target.name, host: target.host, secrets: credential ? secretsOf(credential) : undefined };
  }

  #failed(why: string): ImageError {
    const { name, host } = this.#options.target;
    return new ImageError('failed', `registry ${host} cannot be used for ${name}: ${why}`);
  }
}

function basic({ username, password }: RegistryCredential): string {
  return `Basic ${Buffer.from(`${username}:${password}`).toString('base64')}`;
}

/** A registry may say back what it was sent, and a reason is shown and kept: in all these forms it is taken out. */
function secretsOf(credential: RegistryCredential): string[] {
  const { password } = credential;
  const quoted = JSON.stringify(password).slice(1, -1);
  return [basic(credential).slice('Basic '.length), quoted, password, encodeURIComponent(password)];
}

function parseObject(body: Buffer): Record<string, unknown> {
  try {
    const json: unknown = JSON.parse(body.toString('utf8'));
    return typeof json === 'object' && json !== null ? (json as Record<string, unknown>) : {};
  } catch {
    return {};
  }
}

let known: string[] | undefined;
/** Node's own roots and those of the machine, where operators add theirs. */
function certificates(): string[] {
  if (known) return known;
  let system = '';
  try {
    system = readFileSync(process.env['SSL_CERT_FILE'] ?? SYSTEM_CERTIFICATES, 'utf8');
  } catch {
    // A machine without the package has Node's.
  }
  known = system === '' ? [...rootCertificates] : [system, ...rootCertificates];
  return known;
}
