import type { Assignment, AssignmentOf, KindName, Report, ReportOf } from '@releap/contract/runner';

/**
 * One kind of resource that this machine reconciles. It acts only on what was assigned since the link was last made, and
 * everything may be assigned again.
 */
export interface KindHandler<K extends KindName> {
  readonly kind: K;
  /** A new link begins with a whole new sync. */
  linked?(): void;
  /**
   * Whether it is assigned before the others of its message, because it depends on what they are now: a fork is of its
   * source as that was before it is stopped.
   */
  comesFirst?(assignment: AssignmentOf<K>): boolean;
  /** Something must be of this resource. An older generation than the last one is ignored. */
  assign(assignment: AssignmentOf<K>): void;
  /** Control names this resource in a sync, but what it wants of it cannot be read here. */
  named?(id: string): void;
  /** The sync is complete: these are all that control assigns to this machine. */
  synced?(named: ReadonlySet<string>): void;
  /** Control has stored this report. */
  stored?(report: ReportOf<K>): void;
}

/** A handler of whichever kind: it is only given what is of its own. */
export interface AnyKindHandler {
  readonly kind: KindName;
  linked?(): void;
  comesFirst?(assignment: Assignment): boolean;
  assign(assignment: Assignment): void;
  named?(id: string): void;
  synced?(named: ReadonlySet<string>): void;
  stored?(report: Report): void;
}
