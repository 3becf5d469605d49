import { type GatewayFunction, RUNNING_INVOCATIONS_MS, type RunningInvocation } from '@releap/contract';

/** What has run for less ends soon, most likely: its end tells everything. */
const REPORTED_FROM_MS = RUNNING_INVOCATIONS_MS / 3;

export interface RunningCallFacts {
  id: string;
  queuedAt: Date;
  called: GatewayFunction;
  source: 'invoke' | 'public';
  /** Of a call that the control plane has sent; null for a client's. */
  attempt: number | null;
  isCold: boolean;
}

export interface RunningCall extends Disposable {
  /** Call it when the first byte is sent to the handler. */
  sent(): void;
}

/** The calls that handlers have now, for the charges of those that take long. */
export class RunningCalls {
  readonly #calls = new Set<{ facts: RunningCallFacts; startedAt: Date; sentAt: number }>();

  add(facts: RunningCallFacts): RunningCall {
    const calls = this.#calls;
    let call: { facts: RunningCallFacts; startedAt: Date; sentAt: number } | undefined;
    return {
      sent() {
        call = { facts, startedAt: new Date(), sentAt: performance.now() };
        calls.add(call);
      },
      [Symbol.dispose]() {
        if (call !== undefined) calls.delete(call);
      },
    };
  }

  /** Those that have run for some time. @param fromMs so long, in milliseconds */
  list(fromMs = REPORTED_FROM_MS): RunningInvocation[] {
    const now = performance.now();
    return [...this.#calls]
      .filter(({ sentAt }) => now - sentAt >= fromMs)
      .map(({ facts: { id, queuedAt, called, source, attempt, isCold }, startedAt, sentAt }) => ({
        id,
        queued_at: queuedAt.toISOString(),
        function_id: called.id,
        version_id: called.version_id,
        version: called.version,
        source,
        attempt,
        started_at: startedAt.toISOString(),
        elapsed_ms: now - sentAt,
        cold: isCold,
      }));
  }
}
