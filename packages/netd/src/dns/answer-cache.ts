import type { UpstreamAnswer } from './upstream.ts';

const MAX_ENTRIES = 2_000;
const MAX_AGE_S = 300;
/** For 'no such name' and empty answers, which carry no time of their own once we have cut the packet down. */
const NEGATIVE_AGE_S = 10;

interface Entry {
  answer: UpstreamAnswer;
  storedAt: number;
  ageS: number;
}

/** Upstream answers, a few and for minutes: it takes the sting out of loops that ask for one name all the time. */
export class AnswerCache {
  readonly #entries = new Map<string, Entry>();

  get(key: string, now = performance.now()): UpstreamAnswer | undefined {
    const entry = this.#entries.get(key);
    if (entry === undefined) return undefined;
    const passed = Math.floor((now - entry.storedAt) / 1000);
    if (passed >= entry.ageS) {
      this.#entries.delete(key);
      return undefined;
    }
    const answers = entry.answer.answers.map((record) => ({
      ...record,
      ttl: Math.max(0, (record.ttl ?? 0) - passed),
    }));
    return { rcode: entry.answer.rcode, answers };
  }

  set(key: string, answer: UpstreamAnswer, now = performance.now()): void {
    const ttls = answer.answers.map((record) => record.ttl ?? 0);
    const ageS = ttls.length === 0 ? NEGATIVE_AGE_S : Math.min(MAX_AGE_S, ...ttls);
    if (ageS <= 0) return;
    this.#entries.delete(key);
    if (this.#entries.size >= MAX_ENTRIES) {
      const [oldest] = this.#entries.keys();
      if (oldest !== undefined) this.#entries.delete(oldest);
    }
    this.#entries.set(key, { answer, storedAt: now, ageS });
  }
}
