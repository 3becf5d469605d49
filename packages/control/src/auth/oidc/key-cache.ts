import type { Logger } from 'pino';
import { fetchKeySet, type KeySet } from './http.ts';

export interface KeyCacheOptions {
  issuer: string;
  log: Logger;
  /** Least time between two questions to the issuer, in milliseconds. */
  coolDownMs: number;
  /** Keys older than this are asked for again, in milliseconds: how long a withdrawn key still counts. */
  maxAgeMs: number;
}

/** An issuer that did not answer is asked again sooner: until it does, somebody may not be able to sign in. */
const FAILED_COOL_DOWN_MS = 5_000;

/** What is known of the issuer's keys, and whether it can be relied on. */
export interface KnownKeys {
  set: KeySet | null;
  /** Another object for every other answer of the issuer. */
  version: number;
  /** The newest question to the issuer failed. */
  failed: boolean;
}

/**
 * The issuer's keys, asked for when they are first needed, when they are old, and when a token names one that is
 * not among them; never more often than the cool-down allows, however many such tokens come. While the issuer is
 * away the keys that are known go on.
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

  /** The keys as they are known; waits for the issuer only when there are none yet. */
  async known(): Promise<KnownKeys> {
    if (this.#set === null) await this.renew();
    else if (performance.now() - this.#fetchedAt > this.#options.maxAgeMs) void this.renew();
    return this.#state();
  }

  /** Asks the issuer again, unless that was done just now. */
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
          ? 'the issuer cannot be asked for its keys: nobody can sign in'
          : 'the issuer cannot be asked for its keys: those that are known go on',
      );
    }
  }
}
