/** Reports invocations to the control plane, in batches and without delaying anyone: their ends, and what runs for long. */
import { setTimeout as sleep } from 'node:timers/promises';
import {
  INVOCATION_ERROR_MAX_CHARS,
  INVOCATIONS_BATCH_MAX,
  INVOCATIONS_PATH,
  type RecordInvocationsRequest,
  type ReportRunningInvocationsRequest,
  RUNNING_INVOCATIONS_MS,
  RUNNING_INVOCATIONS_PATH,
  type ServedInvocation,
} from '@releap/contract';
import type { Logger } from 'pino';
import type { Peer } from '@releap/certificates/hosts';
import { EndpointPools } from '../http/endpoints.ts';
import type { FinishedCall } from './function-server.ts';
import type { RunningCalls } from './running-calls.ts';

/** How long an invocation waits for others. */
const GATHER_MS = 500;
const RETRY_MIN_MS = 500;
const RETRY_MAX_MS = 5_000;
const ANSWER_MS = 15_000;
/** Most that wait. The newest are dropped when control has not taken any for long. */
const WAITING_MAX = 100_000;

export interface InvocationRecordsOptions {
  /** Internal listener of the control plane. */
  control: Peer;
  credential: () => Promise<string>;
  running: Pick<RunningCalls, 'list'>;
  log: Logger;
  /** How often what runs is reported, in milliseconds; for tests. */
  reportMs?: number;
}

export class InvocationRecords {
  readonly #options: InvocationRecordsOptions;
  readonly #pools = new EndpointPools({ headersMs: ANSWER_MS, bodyMs: ANSWER_MS });
  #waiting: ServedInvocation[] = [];
  #dropped = 0;
  #sending: Promise<void> | undefined;
  #isReportDue = false;
  readonly #reporter: NodeJS.Timeout;
  readonly #closing = new AbortController();
  /** Ends retries. */
  readonly #givenUp = new AbortController();

  constructor(options: InvocationRecordsOptions) {
    this.#options = options;
    this.#reporter = setInterval(() => {
      this.#isReportDue = true;
      this.#sending ??= this.#run();
    }, options.reportMs ?? RUNNING_INVOCATIONS_MS).unref();
  }

  add({ id, queuedAt, called, source, status, startedAt, durationMs, cold, error }: FinishedCall): void {
    if (this.#waiting.length >= WAITING_MAX) {
      this.#dropped++;
      return;
    }
    this.#waiting.push({
      id,
      queued_at: queuedAt.toISOString(),
      function_id: called.id,
      version_id: called.version_id,
      version: called.version,
      source,
      status,
      started_at: startedAt?.toISOString() ?? null,
      finished_at: new Date().toISOString(),
      duration_ms: durationMs,
      cold,
      error: error?.slice(0, INVOCATION_ERROR_MAX_CHARS).toWellFormed() ?? null,
    });
    this.#sending ??= this.#run();
  }

  /** Sends what waits. @param graceMs until it gives up */
  async close(graceMs: number): Promise<void> {
    clearInterval(this.#reporter);
    this.#closing.abort();
    const timer = setTimeout(() => this.#givenUp.abort(), graceMs);
    await this.#sending;
    clearTimeout(timer);
    await this.#pools.destroy();
  }

  async #run(): Promise<void> {
    await sleep(GATHER_MS, undefined, { signal: this.#closing.signal, ref: false }).catch(() => undefined);
    while (this.#waiting.length > 0 && !this.#givenUp.signal.aborted)
      await this.#deliver(this.#waiting.splice(0, INVOCATIONS_BATCH_MAX));
    // Never at the same time as an end: a call that ends from here on is sent after its report.
    if (this.#isReportDue) await this.#report();
    if (this.#waiting.length > 0 && !this.#givenUp.signal.aborted) return await this.#run();
    this.#sending = undefined;
    if (this.#waiting.length > 0) this.#dropped += this.#waiting.length;
    if (this.#dropped === 0) return;
    this.#options.log.error(
      { count: this.#dropped },
      'invocations were not recorded: control did not take them',
    );
    this.#dropped = 0;
  }

  /** What is not taken is in the next report, and in the end. */
  async #report(): Promise<void> {
    this.#isReportDue = false;
    const invocations = this.#options.running.list();
    for (let from = 0; from < invocations.length; from += INVOCATIONS_BATCH_MAX) {
      const batch = invocations.slice(from, from + INVOCATIONS_BATCH_MAX);
      const failure = await this.#post(RUNNING_INVOCATIONS_PATH, { invocations: batch }).catch(
        (error: unknown) => error,
      );
      if (failure === undefined) continue;
      this.#options.log.warn(
        { err: failure, count: invocations.length },
        'running invocations are not charged now',
      );
      return;
    }
  }

  async #deliver(invocations: ServedInvocation[]): Promise<void> {
    const { log } = this.#options;
    for (let pauseMs = RETRY_MIN_MS; ; pauseMs = Math.min(pauseMs * 2, RETRY_MAX_MS)) {
      const failure = await this.#post(INVOCATIONS_PATH, { invocations }).catch((error: unknown) => error);
      if (failure === undefined) return;
      if (failure === 400) {
        if (invocations.length === 1) {
          this.#dropped++;
          return;
        }
        // One of them is at fault.
        for (const one of invocations) await this.#deliver([one]);
        return;
      }
      log.warn({ err: failure, count: invocations.length }, 'invocations cannot be recorded now');
      await sleep(pauseMs, undefined, { signal: this.#givenUp.signal }).catch(() => undefined);
      if (!this.#givenUp.signal.aborted) continue;
      this.#dropped += invocations.length;
      return;
    }
  }

  /** @returns undefined on success, or the status */
  async #post(
    path: string,
    body: RecordInvocationsRequest | ReportRunningInvocationsRequest,
  ): Promise<number | undefined> {
    const { control, credential } = this.#options;
    const answer = await this.#pools.get(control).request({
      method: 'POST',
      path,
      headers: { authorization: `Bearer ${await credential()}`, 'content-type': 'application/json' },
      body: JSON.stringify(body),
      signal: AbortSignal.any([this.#givenUp.signal, AbortSignal.timeout(2 * ANSWER_MS)]),
    });
    await answer.body.dump();
    return answer.statusCode < 300 ? undefined : answer.statusCode;
  }
}
