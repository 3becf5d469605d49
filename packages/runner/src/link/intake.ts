import type { Assignment, ControlMessage, Reading, Report, UnsupportedItem } from '@releap/contract/runner';
import type { AnyKindHandler } from './kind-handler.ts';

export interface IntakeOptions {
  handlers: readonly AnyKindHandler[];
  /** This machine does not know the kind, or cannot read what is wanted. */
  onUnsupported: (item: UnsupportedItem) => void;
  /** A sync is complete, and names everything of all kinds that this machine reconciles. */
  onSynced: () => void;
}

/** Hands assignments to the handler of their kind, and says when a sync is complete. */
export class Intake {
  readonly #options: IntakeOptions;
  readonly #handlers: ReadonlyMap<string, AnyKindHandler>;
  /** Kinds that control reconciles: only of these does a sync name everything. */
  #controlKinds: readonly string[] = [];
  /** Ids that the parts of the sync have named so far, by kind. */
  #named = new Map<string, Set<string>>();
  /** A part of the sync could not be read: what it named is not known. */
  #hasGap = false;

  constructor(options: IntakeOptions) {
    this.#options = options;
    this.#handlers = new Map(options.handlers.map((handler) => [handler.kind, handler]));
  }

  get kinds(): string[] {
    return [...this.#handlers.keys()];
  }

  /** A new link begins with a whole new sync; parts of the last one are void. @param kinds those of control */
  linked(kinds: readonly string[]): void {
    this.#controlKinds = kinds;
    this.#named = new Map();
    this.#hasGap = false;
    for (const handler of this.#handlers.values()) handler.linked?.();
  }

  /** A part of the sync could not be read: what is absent from the rest is not known to be absent. */
  gap(): void {
    this.#hasGap = true;
  }

  take({ message, unsupported, dropped }: Extract<Reading<ControlMessage>, { outcome: 'message' }>): void {
    if (message.type !== 'sync' && message.type !== 'desired') return;
    if (dropped > 0) this.gap();
    for (const item of unsupported) {
      this.#name(item);
      this.#handlers.get(item.kind)?.named?.(item.id);
      this.#options.onUnsupported(item);
    }
    for (const assignment of message.items) this.#name(assignment);
    for (const assignment of this.#inOrder(message.items)) this.#assign(assignment);
    if (message.type === 'sync' && message.more !== true) this.#synced();
  }

  stored(reports: readonly { kind: string }[]): void {
    for (const report of reports) this.#handlers.get(report.kind)?.stored?.(report as Report);
  }

  #inOrder(items: readonly Assignment[]): Assignment[] {
    const comesFirst = (item: Assignment): boolean =>
      this.#handlers.get(item.kind)?.comesFirst?.(item) === true;
    return [...items.filter(comesFirst), ...items.filter((item) => !comesFirst(item))];
  }

  #assign(assignment: Assignment): void {
    this.#handlers.get(assignment.kind)?.assign(assignment);
  }

  #name({ kind, id }: { kind: string; id: string }): void {
    const named = this.#named.get(kind) ?? new Set();
    this.#named.set(kind, named.add(id));
  }

  #synced(): void {
    const named = this.#named;
    this.#named = new Map();
    if (this.#hasGap) return;
    const whole = [...this.#handlers].filter(([kind]) => this.#controlKinds.includes(kind));
    for (const [kind, handler] of whole) handler.synced?.(named.get(kind) ?? new Set());
    if (whole.length === this.#handlers.size) this.#options.onSynced();
  }
}
