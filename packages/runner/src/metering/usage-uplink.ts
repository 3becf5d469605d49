/** Sends the recorded use to control, one message at a time, each until control has stored it. */
import type { UsageHistoryMessage } from '@releap/contract/runner';
import type { UsageSpool } from './usage-spool.ts';

/** Control could not store it, or its answer was lost: the message is sent again after this time. */
const AGAIN_MS = 30_000;

export interface UsageUplinkOptions {
  spool: Pick<UsageSpool<unknown, unknown>, 'next' | 'stored' | 'discard'>;
  /** What cannot be sent now is dropped. */
  send: (message: UsageHistoryMessage) => void;
  /** Milliseconds, monotonic; for tests. */
  now?: () => number;
}

export class UsageUplink {
  readonly #options: UsageUplinkOptions;
  readonly #now: () => number;
  /** Undefined before the first welcome. */
  #isWanted: boolean | undefined;
  #sent: { seq: number; at: number } | undefined;

  constructor(options: UsageUplinkOptions) {
    this.#options = options;
    this.#now = options.now ?? (() => performance.now());
  }

  /** A new link. @param isWanted whether control stores use */
  linked(isWanted: boolean): void {
    this.#isWanted = isWanted;
    this.#sent = undefined;
    this.pump();
  }

  /** Sends the oldest message, unless an answer is awaited. */
  pump(): void {
    const { spool, send } = this.#options;
    if (this.#isWanted === false) spool.discard();
    if (this.#isWanted !== true) return;
    if (this.#sent !== undefined && this.#now() - this.#sent.at < AGAIN_MS) return;
    const next = spool.next();
    if (next === undefined) return;
    this.#sent = { seq: next.seq, at: this.#now() };
    send({ type: 'usage_history', ...next });
  }

  stored(seq: number): void {
    if (seq !== this.#sent?.seq) return;
    this.#options.spool.stored(seq);
    this.#sent = undefined;
    this.pump();
  }
}
