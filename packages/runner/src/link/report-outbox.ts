import { LINK_ITEMS_MAX, type Report, type UnsupportedItem } from '@releap/contract/runner';

/** A report of any kind; of a kind that is not known here only that it is unsupported. */
export type OutgoingReport =
  | Report
  | (Omit<UnsupportedItem, 'error'> & { status: 'unsupported'; detail: { error: string } });

export interface OutgoingReports {
  type: 'report';
  seq: number;
  items: OutgoingReport[];
}

/** Reports that carry no environments: their size is bounded by their fields. */
const ITEMS_PER_MESSAGE = Math.min(200, LINK_ITEMS_MAX);

/**
 * What the runner has reported and control has not yet acknowledged. At most one report a resource is kept: a newer one
 * replaces the older, because control only needs to know what is now. That bounds the outbox by what the runner has,
 * however long the link is down.
 */
export class ReportOutbox {
  #seq = 0;
  readonly #pending = new Map<string, { seq: number; report: OutgoingReport }>();

  put(report: OutgoingReport): OutgoingReports {
    const seq = ++this.#seq;
    const key = `${report.kind} ${report.id}`;
    // The newest last: the order of the map is that of the sequence.
    this.#pending.delete(key);
    this.#pending.set(key, { seq, report });
    return { type: 'report', seq, items: [report] };
  }

  /** Drops all that control has stored. Returns the reports that were dropped. */
  acknowledge(seq: number): OutgoingReport[] {
    const stored: OutgoingReport[] = [];
    for (const [key, one] of this.#pending) {
      if (one.seq > seq) break;
      this.#pending.delete(key);
      stored.push(one.report);
    }
    return stored;
  }

  get isEmpty(): boolean {
    return this.#pending.size === 0;
  }

  /** Everything to send again after a reconnect, oldest first, many reports a message. */
  unacknowledged(): OutgoingReports[] {
    const pending = [...this.#pending.values()];
    const messages: OutgoingReports[] = [];
    for (let at = 0; at < pending.length; at += ITEMS_PER_MESSAGE) {
      const some = pending.slice(at, at + ITEMS_PER_MESSAGE);
      messages.push({
        type: 'report',
        seq: some.at(-1)?.seq ?? 0,
        items: some.map(({ report }) => report),
      });
    }
    return messages;
  }
}
