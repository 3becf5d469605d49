import type { Logger } from 'pino';
import { fetchKeySet, type KeySet } from './http.ts';

export interface KeyCacheOptions {
  issuer: string;
  log: Logger;
  /** Shortest time between two requests to the issuer, in milliseconds. */
  coolDownMs: number;
  /** Maximum age of the keys, in milliseconds: how long a withdrawn key is still accepted. */
  maxAgeMs: number;
}

/** Retry interval after a failure: until it succeeds, users may not be able to sign in. */
const FAILED_COOL_DOWN_MS = 5_000;

/** The issuer's keys, and whether they are current. */
export interface KnownKeys {
  set: KeySet | null;
  /** A new object for every fetched key set. */
  version: number;
  /** The last request to the issuer failed. */
  failed: boolean;
}

/**
 * The issuer's keys, fetched when they are first needed, when they are old, and when a token names an unknown key, but
 * never more often than the cool-down allows. While the issuer is unavailable, the known keys stay valid.
 *
 * `createRemoteJWKSet` of jose does neither: it refuses all tokens when keys that are old cannot be fetched, and its
 * cool-down does not count failed requests. Its ages follow the wall clock.
 */
export class KeyCache {
  readonly #options: KeyCacheOptions;
  #set: KeySet | null = null;
  #version = 0;
  #failed = false;
  #askedAt = Number.NEGATIVE_INFINITY;
  #fetchedAt = Number.NEGATIVE_INFINITY;
  #asking: Promise<void> | undefined;

  constructor(options: KeyCacheOptions) {
    this.#options = options;
  }

  /** The known keys; waits for the issuer only if there are none yet. */
  async known(): Promise<KnownKeys> {
    if (this.#set === null) await this.renew();
    else if (performance.now() - this.#fetchedAt > this.#options.maxAgeMs) void this.renew();
    return this.#state();
  }

  /** Fetches the keys again, unless the cool-down forbids it. */
  async renew(): Promise<KnownKeys> {
    const { coolDownMs } = this.#options;
    const wait = this.#failed ? Math.min(coolDownMs, FAILED_COOL_DOWN_MS) : coolDownMs;
    if (this.#asking === undefined && performance.now() - this.#askedAt >= wait) {
      this.#askedAt = performance.now();
      this.#asking = this.#ask().finally(() => (this.#asking = undefined));
    }
    await this.#asking;
    return this.#state();
  }

  #state(): KnownKeys {
    return { set: this.#set, version: this.#version, failed: this.#failed };
  }

  async #ask(): Promise<void> {
    const { issuer, log } = this.#options;
    try {
      this.#set = await fetchKeySet(issuer);
      this.#version++;
      this.#fetchedAt = performance.now();
      this.#failed = false;
    } catch (error) {
      this.#failed = true;
      log.warn(
        { err: error, issuer },
        this.#set === null
          ? 'the keys of the issuer cannot be fetched: users cannot sign in'
          : 'the keys of the issuer cannot be fetched: the known keys stay valid',
      );
    }
  }
}
