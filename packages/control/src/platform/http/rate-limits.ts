/**
 * Rate limits of clients. Counted in the memory of each server: with several behind one address each counts its own
 * requests. Bounded: beyond `CALLERS` clients, the least recently seen ones start over.
 */
import { overloaded } from '@releap/contract';
import rateLimit, { normalizeIP, type FastifyRateLimitStore } from '@fastify/rate-limit';
import type { FastifyInstance, FastifyPluginCallback, FastifyReply, FastifyRequest } from 'fastify';

/** Requests a minute; 0 for no limit. */
export interface RateLimits {
  /** Of one API key, or of one signed-in user. */
  perKey: number;
  /** Of all API keys of one organization together. */
  perOrg: number;
  /** Of one address without valid credentials: public operations, and requests that are refused with 401. */
  perAddress: number;
}

export const NO_RATE_LIMITS: RateLimits = { perKey: 0, perOrg: 0, perAddress: 0 };

const WINDOW_MS = 60_000;
const CALLERS = 20_000;

/** One counter's state; undefined without a limit. */
interface Count {
  max: number;
  remaining: number;
  resetSecs: number;
  exceeded: boolean;
  subject: string;
}

export interface RateLimiter {
  /** Registers the counters on one server. */
  readonly plugin: FastifyPluginCallback;
  /** Whether anything is limited; if not, the counting functions need not be called. */
  readonly active: boolean;
  /** Counts a request of an authenticated client and sets the response's headers. @throws 429 */
  known(request: FastifyRequest, reply: FastifyReply, caller: { key: string; org?: string }): Promise<void>;
  /** Counts a request without valid credentials. @throws 429 */
  unknown(request: FastifyRequest, reply: FastifyReply): Promise<void>;
}

type Counter = ReturnType<FastifyInstance['createRateLimit']>;

/**
 * Requests of each client in its window. Each answer is the state at its own request: that of the plugin's store is read later,
 * with the requests that came at the same moment counted in.
 */
class WindowStore implements FastifyRateLimitStore {
  /** By client; the least recently seen one first. */
  readonly #windows = new Map<string, { current: number; endsAt: number }>();

  incr(
    key: string,
    callback: (error: Error | null, result?: { current: number; ttl: number }) => void,
    timeWindow: number,
  ): void {
    const now = Date.now();
    let window = this.#windows.get(key);
    if (window === undefined || window.endsAt <= now) window = { current: 0, endsAt: now + timeWindow };
    window.current++;
    this.#windows.delete(key);
    this.#windows.set(key, window);
    if (this.#windows.size > CALLERS) {
      const [oldest] = this.#windows.keys();
      if (oldest !== undefined) this.#windows.delete(oldest);
    }
    callback(null, { current: window.current, ttl: window.endsAt - now });
  }

  /** One of each counter. */
  child(): WindowStore {
    return new WindowStore();
  }
}

export function createRateLimiter(limits: RateLimits): RateLimiter {
  const active = limits.perKey > 0 || limits.perOrg > 0 || limits.perAddress > 0;
  let app: FastifyInstance | undefined;
  const counters = new Map<string, Counter>();

  async function count(
    request: FastifyRequest,
    max: number,
    subject: string,
    key: string,
  ): Promise<Count | undefined> {
    if (max === 0) return undefined;
    let counter = counters.get(subject);
    if (counter === undefined) {
      if (app === undefined) throw new Error('the rate limiter is not registered on a server');
      // The plugin is available once the server is ready, which it is before the first request.
      const settings = { max, keyGenerator: (one: FastifyRequest) => one.rateLimitKey };
      counter = app.createRateLimit(settings);
      counters.set(subject, counter);
    }
    request.rateLimitKey = key;
    const state = await counter(request);
    if (state.isAllowed) return undefined;
    return {
      max,
      remaining: state.remaining,
      resetSecs: state.ttlInSeconds,
      exceeded: state.isExceeded,
      subject,
    };
  }

  function setHeaders(reply: FastifyReply, counts: (Count | undefined)[]): void {
    const known = counts.filter((one) => one !== undefined);
    // The limit that refuses, else the one with the least remaining.
    const [nearest] = known.sort(
      (a, b) => Number(b.exceeded) - Number(a.exceeded) || a.remaining - b.remaining,
    );
    if (nearest === undefined) return;
    const { max, remaining, resetSecs, exceeded, subject } = nearest;
    void reply.headers({
      'ratelimit-limit': String(max),
      'ratelimit-remaining': String(remaining),
      'ratelimit-reset': String(resetSecs),
    });
    if (exceeded) {
      throw overloaded(
        `too many requests: ${subject} may make ${max} in ${WINDOW_MS / 1000} s; try again in ${resetSecs} s`,
        resetSecs,
        'rate_limited',
      );
    }
  }

  const plugin: FastifyPluginCallback = (scope, _options, done) => {
    app = scope;
    // Nothing is counted automatically: the client is known only after authentication.
    if (active) void scope.register(rateLimit, { global: false, timeWindow: WINDOW_MS, store: WindowStore });
    done();
  };
  return {
    active,
    // Fastify's mark of a plugin without its own scope.
    plugin: Object.assign(plugin, { [Symbol.for('skip-override')]: true }),
    async known(request, reply, { key, org }) {
      const ofKey = await count(request, limits.perKey, 'one API key or user', key);
      // A request that its key's limit refuses does not count for its organization.
      const ofOrg =
        org === undefined || ofKey?.exceeded === true
          ? undefined
          : await count(request, limits.perOrg, 'one organization', org);
      setHeaders(reply, [ofKey, ofOrg]);
    },
    async unknown(request, reply) {
      setHeaders(reply, [await count(request, limits.perAddress, ADDRESS, addressOf(request))]);
    },
  };
}

const ADDRESS = 'one address without valid credentials';

/** IPv6 by its /64: another address of the same network shares the limit. */
const addressOf = (request: FastifyRequest): string => normalizeIP(request.ip);
