/** Requests of clients while a deployment is upgraded, and what has become of each. */
import { once } from 'node:events';
import { type IncomingMessage, request as httpRequest } from 'node:http';
import { text as textOf } from 'node:stream/consumers';
import { setTimeout as sleep } from 'node:timers/promises';
import { newUuid } from '@releap/contract';
import { PATIENCE } from '@releap/testing/eventually';

export interface Sent {
  /** What it is, in the table. */
  kind: string;
  port: number;
  method?: string;
  path: string;
  headers?: Record<string, string>;
  body?: unknown;
}

export interface Answer {
  status: number;
  text: string;
}

interface Count {
  sent: number;
  refused: number;
  failed: number;
}

/** Longest that a client repeats a request that is refused with 503: no upgrade may take longer. */
const PERSISTENCE_MS = 300_000 * PATIENCE;
const SHOWN = 300;

/**
 * Sends requests as clients do, each on a connection of its own. Success is an answer; a 503 with Retry-After is counted and the request
 * repeated, with the same Idempotency-Key. Anything else, also a connection that ends without an answer, is a failure.
 */
export class SteadyLoad {
  readonly counts = new Map<string, Count>();
  readonly failures: string[] = [];
  /** Whether a runner of a version that answers 502 then is being replaced: such requests are counted, and repeated. */
  isCutting = false;
  /** Those requests. */
  cut = 0;
  /** What is replaced at the moment, for messages. */
  phase = 'start';
  readonly #over = new AbortController();
  readonly #loops: Promise<void>[] = [];

  get totals(): Count {
    const sum: Count = { sent: 0, refused: 0, failed: 0 };
    for (const one of this.counts.values())
      for (const key of ['sent', 'refused', 'failed'] as const) sum[key] += one[key];
    return sum;
  }

  /** @returns undefined when it has failed, which is recorded */
  async send(
    one: Sent,
    isExpected = (answer: Answer): boolean => answer.status === 200,
  ): Promise<Answer | undefined> {
    const count = this.counts.get(one.kind) ?? { sent: 0, refused: 0, failed: 0 };
    this.counts.set(one.kind, count);
    const [key, end] = [newUuid(), performance.now() + PERSISTENCE_MS];
    for (;;) {
      count.sent += 1;
      const [began, wasCutting] = [this.phase, this.isCutting];
      const answer = await exchange(one, key).catch((error: unknown) => String(error));
      if (typeof answer !== 'string') {
        if (isExpected(answer)) return answer;
        if (answer.status === 503 && answer.retryAfter !== undefined && performance.now() < end) {
          count.refused += 1;
          await sleep(Math.min(Number(answer.retryAfter) * 1000, 2_000) || 500);
          continue;
        }
      }
      if (typeof answer !== 'string' && answer.status === 502 && (wasCutting || this.isCutting)) {
        this.cut += 1;
        await sleep(500);
        continue;
      }
      count.failed += 1;
      const what = typeof answer === 'string' ? answer : `${answer.status} ${answer.text.slice(0, SHOWN)}`;
      this.failures.push(`${began} to ${this.phase}: ${one.kind}: ${what}`);
      return undefined;
    }
  }

  /** Repeats `step`, with a pause after each, until `stop`. */
  repeat(pauseMs: number, step: () => Promise<void>): void {
    const loop = async (): Promise<void> => {
      while (!this.#over.signal.aborted) {
        await step();
        await sleep(pauseMs, undefined, { signal: this.#over.signal }).catch(() => undefined);
      }
    };
    this.#loops.push(loop());
  }

  async stop(): Promise<void> {
    this.#over.abort();
    await Promise.all(this.#loops);
  }
}

async function exchange(one: Sent, key: string): Promise<Answer & { retryAfter: string | undefined }> {
  const request = httpRequest({
    host: '127.0.0.1',
    port: one.port,
    path: one.path,
    method: one.method ?? 'GET',
    headers: {
      ...(one.body === undefined ? {} : { 'content-type': 'application/json', 'idempotency-key': key }),
      ...one.headers,
    },
    agent: false,
  });
  request.end(one.body === undefined ? undefined : JSON.stringify(one.body));
  const [answer] = (await once(request, 'response')) as [IncomingMessage];
  return {
    status: answer.statusCode ?? 0,
    text: await textOf(answer),
    retryAfter: answer.headers['retry-after'],
  };
}
