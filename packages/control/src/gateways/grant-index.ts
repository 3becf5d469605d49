import type { ResolvedTarget } from './target-resolver.ts';

/** A decision that a gateway holds or asks for, and how it is taken back. */
export interface HeldGrant {
  /** The id whose changes make it untrue. */
  readonly subject: string;
  /** Absent while the decision is being made. */
  resolved?: ResolvedTarget;
  /** @param disconnect the credential itself was revoked */
  revoke(disconnect: boolean): void;
}

/**
 * The grants that the gateways connected to this server hold, found by what they depend on. An entry stays until its
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

  /** These have changed: what was decided about them has to be asked again. */
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
