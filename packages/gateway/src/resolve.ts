import {
  ApiError,
  badGateway,
  bearerToken,
  conflict,
  type ErrorStatus,
  quote,
  RESOLVE_CACHE_MS,
  RESOLVE_PATH,
  ResolveResponse,
  STATUS_MEANINGS,
  tokenDigest,
  tokenKind,
  unauthorized,
  unavailable,
  validate,
} from '@releap/contract';
import type { Logger } from 'pino';
import type { EndpointPools } from './endpoints.ts';

export interface ResolverOptions {
  controlUrl: string;
  gatewayToken: () => Promise<string>;
  pools: EndpointPools;
  log: Logger;
}

const MAX_CACHED = 10_000;
const ANSWER_MAX_BYTES = 64 * 1024;
const DEADLINE_MS = 10_000;
/** What the control plane may say for the caller to hear; anything else is between the two of us. */
const RELAYED: ReadonlySet<number> = new Set<ErrorStatus>([400, 401, 402, 403, 404, 409, 429, 503]);

/** Asks the control plane where a sandbox is and whether the caller may enter. */
export class Resolver {
  readonly #options: ResolverOptions;
  /** Answers and questions under way; a refusal is forgotten as soon as it is there. */
  readonly #known = new Map<string, { answer: Promise<ResolveResponse>; until: number }>();

  constructor(options: ResolverOptions) {
    this.#options = options;
  }

  /**
   * The running sandbox that a request is for. Throws the refusal: 401 for the credential, 404 for the sandbox,
   * 409 when it does not run.
   */
  async resolve(vmId: string, authorization: string | undefined): Promise<ResolveResponse> {
    const token = bearerToken(authorization);
    const kind = token === null ? null : tokenKind(token);
    if (token === null || (kind !== 'apiKey' && kind !== 'sandbox')) {
      throw unauthorized(
        "missing or invalid credentials: send Authorization: Bearer <API key or the sandbox's access token>",
      );
    }
    const found = await this.#ask(vmId, token);
    if (found.status !== 'running') throw conflict(`sandbox ${quote(vmId)} is ${found.status}, not running`);
    return found;
  }

  async #ask(vmId: string, token: string): Promise<ResolveResponse> {
    // The digest and not the token: a key in memory longer than its request is a key that can leak.
    const key = `${tokenDigest(token).toString('base64')} ${vmId}`;
    const now = performance.now();
    const known = this.#known.get(key);
    if (known !== undefined && known.until > now) return await known.answer;
    // Callers that come while we ask share the question; the time begins with it, so no answer is older than stated.
    const entry = { answer: this.#fetch(vmId, token), until: now + RESOLVE_CACHE_MS };
    this.#known.delete(key);
    this.#known.set(key, entry);
    this.#forgetOld(now);
    try {
      return await entry.answer;
    } catch (error) {
      if (this.#known.get(key) === entry) this.#known.delete(key);
      throw error;
    }
  }

  /** Entries stand in the order of their end, so the old ones are the first ones. */
  #forgetOld(now: number): void {
    for (const [key, { until }] of this.#known) {
      if (until > now && this.#known.size <= MAX_CACHED) break;
      this.#known.delete(key);
    }
  }

  async #fetch(vmId: string, token: string): Promise<ResolveResponse> {
    const { controlUrl, gatewayToken, pools, log } = this.#options;
    let status: number;
    let text: string;
    try {
      const response = await pools.get(controlUrl).request({
        method: 'POST',
        path: RESOLVE_PATH,
        headers: { authorization: `Bearer ${await gatewayToken()}`, 'content-type': 'application/json' },
        body: JSON.stringify({ vm_id: vmId, token }),
        signal: AbortSignal.timeout(DEADLINE_MS),
      });
      status = response.statusCode;
      text = await readText(response.body);
    } catch (error) {
      log.warn({ err: error }, 'the control plane did not answer');
      throw unavailable('the control plane does not answer; try again');
    }
    const body = parseJson(text);
    if (status === 200) {
      try {
        return validate(ResolveResponse, 'body', body);
      } catch (error) {
        log.error({ err: error }, 'the control plane answered something else than where the sandbox is');
        throw badGateway('the control plane gave an answer that cannot be read');
      }
    }
    const message = (body as { error?: unknown } | undefined)?.error;
    if (isRelayed(status) && typeof message === 'string') {
      const headers: Record<string, string> = status === 401 ? { 'www-authenticate': 'Bearer' } : {};
      throw new ApiError(status, message, { headers });
    }
    log.error({ status }, 'the control plane refused to say where a sandbox is');
    throw badGateway('the control plane could not say where the sandbox is');
  }
}

function isRelayed(status: number): status is ErrorStatus {
  return RELAYED.has(status) && status in STATUS_MEANINGS;
}

async function readText(body: AsyncIterable<Buffer>): Promise<string> {
  const chunks: Buffer[] = [];
  let size = 0;
  for await (const chunk of body) {
    size += chunk.length;
    if (size > ANSWER_MAX_BYTES) throw new Error(`answer longer than ${ANSWER_MAX_BYTES} bytes`);
    chunks.push(chunk);
  }
  return Buffer.concat(chunks).toString('utf8');
}

function parseJson(text: string): unknown {
  try {
    return JSON.parse(text);
  } catch {
    return undefined;
  }
}
