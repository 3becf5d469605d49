import type { Resolved } from './target-resolver.ts';

/** A grant that a gateway holds or requests, and how to revoke it. */
export interface HeldGrant {
  /** The id whose changes invalidate it. */
  readonly subject: string;
  /** Absent during the lookup. */
  resolved?: Resolved;
  /** @param disconnect the credential itself was revoked */
  revoke(disconnect: boolean): void;
}

/**
 * The grants of the gateways that are connected to this server, indexed by their dependencies. An entry stays until its
 * gateway releases it, its connection ends or its credential is revoked.
 */
export class GrantIndex {
  readonly #bySubject = new Map<string, Set<HeldGrant>>();

  get size(): number {
    let size = 0;
    for (const held of this.#bySubject.values()) size += held.size;
    return size;
  }

  add(grant: HeldGrant): void {
    const held = this.#bySubject.get(grant.subject) ?? new Set();
    this.#bySubject.set(grant.subject, held.add(grant));
  }

  delete(grant: HeldGrant): void {
    const held = this.#bySubject.get(grant.subject);
    if (held?.delete(grant) && held.size === 0) this.#bySubject.delete(grant.subject);
  }

  /** These have changed: invalidates their grants. */
  changed(subjects: Iterable<string>): void {
    for (const id of subjects) for (const grant of this.#bySubject.get(id) ?? []) grant.revoke(false);
  }

  /** Changes may have been missed. */
  changedAll(): void {
    this.changed([...this.#bySubject.keys()]);
  }

  *[Symbol.iterator](): Iterator<HeldGrant> {
    for (const held of this.#bySubject.values()) yield* held;
  }
}
