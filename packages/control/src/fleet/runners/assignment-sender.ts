import { endsResource, type AnyAssignment, type Assignment } from '@releap/contract/runner';
import { AssignmentWriter } from './message-writer.ts';
import { ASSIGNMENTS_BY_ID_MAX, type ReconciledKind } from '../../platform/reconciled-kind.ts';
import { retryOnDatabaseError } from './retry.ts';

export interface AssignmentSenderOptions {
  runnerId: string;
  /** In the order in which they are synced. */
  kinds: readonly ReconciledKind[];
  /** Resolves when the socket has taken the message, or is closed. */
  send: (text: string) => Promise<void>;
  isClosed: () => boolean;
  onError: (error: unknown) => void;
}

/**
 * Sends one runner its assignments: all of them once, page by page, then those that change. It remembers what changed by
 * id alone and reads the assignment when the socket has taken the last message: whatever a runner is behind with costs no
 * more memory than its ids, and the newest generation is what is sent.
 */
export class AssignmentSender {
  readonly #options: AssignmentSenderOptions;
  /** Newest generation that was sent of each resource. */
  readonly #sent = new Map<string, number>();
  /** What has changed since it was sent, oldest change first. */
  readonly #changed = new Map<string, ReconciledKind>();
  #synced = false;
  #sending = false;

  constructor(options: AssignmentSenderOptions) {
    this.#options = options;
  }

  /** Newest generation that was sent; -1 for none. */
  sent(id: string): number {
    return this.#sent.get(id) ?? -1;
  }

  /** Something else is wanted of this resource. @param generation the newest one, if it is known */
  changed(kind: ReconciledKind, id: string, generation = Infinity): void {
    if (this.#options.isClosed() || this.sent(id) >= generation) return;
    this.#changed.set(id, kind);
    if (this.#synced && !this.#sending) void this.#sendChanged();
  }

  /** The resource is no longer assigned to this runner. */
  released(id: string): void {
    this.#changed.delete(id);
    this.#sent.delete(id);
  }

  /** Everything that is assigned. What changes meanwhile follows. */
  async sync(): Promise<void> {
    const { runnerId, kinds, send, isClosed } = this.#options;
    const writer = new AssignmentWriter('sync', send);
    for (const kind of kinds) {
      for await (const batch of kind.assignments(runnerId)) {
        if (isClosed()) return;
        for (const assignment of batch) await this.#add(writer, assignment);
      }
    }
    if (isClosed()) return;
    await writer.end();
    this.#synced = true;
    await this.#sendChanged();
  }

  async #sendChanged(): Promise<void> {
    this.#sending = true;
    try {
      while (this.#changed.size > 0 && !this.#options.isClosed()) await this.#sendSome();
    } catch (error) {
      this.#options.onError(error);
    } finally {
      this.#sending = false;
    }
  }

  async #sendSome(): Promise<void> {
    const { runnerId, send, isClosed } = this.#options;
    const some = [...this.#changed].slice(0, ASSIGNMENTS_BY_ID_MAX);
    for (const [id] of some) this.#changed.delete(id);
    const assignments: (Assignment | AnyAssignment)[] = [];
    for (const [kind, entries] of Map.groupBy(some, ([, one]) => one)) {
      const ids = entries.map(([id]) => id);
      const found = await retryOnDatabaseError(() => kind.assignmentsById(runnerId, ids));
      const byId = new Map(found.map((one) => [one.id, one]));
      for (const id of ids) {
        const assignment = byId.get(id);
        if (assignment === undefined) this.#sent.delete(id);
        else if (assignment.generation > this.sent(id)) assignments.push(assignment);
      }
    }
    const writer = new AssignmentWriter('desired', send);
    // What ends comes last: a fork or a restored snapshot may still be taken from it.
    for (const ends of [false, true]) {
      for (const assignment of assignments) {
        if (isClosed()) return;
        if (endsResource(assignment) === ends) await this.#add(writer, assignment);
      }
    }
    await writer.end();
  }

  async #add(writer: AssignmentWriter, assignment: Assignment | AnyAssignment): Promise<void> {
    this.#sent.set(assignment.id, Math.max(assignment.generation, this.sent(assignment.id)));
    await writer.add(assignment);
  }
}
