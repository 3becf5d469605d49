import type { AnyAssignment, Assignment, Report } from '@releap/contract/runner';

/** Most rows that one statement reads for a page of assignments. */
export const ASSIGNMENT_PAGE_ROWS = 200;
/** Most ids that `assignmentsById` is called with: each may carry an environment of the largest size. */
export const ASSIGNMENTS_BY_ID_MAX = 16;

/** The newest generation of one resource, and the runner that it is assigned to. */
export interface Generation {
  id: string;
  runner_id: string;
  generation: number;
}

/**
 * A kind of resource that runners reconcile. The registry of runners knows resources only through this interface: a
 * module that has a table of such resources exports one. Assignments are read from the database whenever one is sent, so
 * that what is sent is always the newest generation.
 */
export interface ReconciledKind {
  /** As on the link; see `packages/contract/src/runner/`. */
  readonly kind: string;
  /**
   * Everything that this runner is assigned, ordered by id (keyset, at most `ASSIGNMENT_PAGE_ROWS` rows a statement), in
   * batches of bounded bytes. The next batch is read when the last one has been sent: an implementation reads nothing
   * ahead. Credentials are added here.
   */
  assignments(runnerId: string): AsyncIterable<(Assignment | AnyAssignment)[]>;
  /**
   * Those of these resources that are assigned to this runner, at most `ASSIGNMENTS_BY_ID_MAX`, in any order. One that is
   * missing in the answer is no longer assigned to it.
   */
  assignmentsById(runnerId: string, ids: readonly string[]): Promise<(Assignment | AnyAssignment)[]>;
  /** A page of everything that these runners are assigned: with an id above `afterId`, ordered by id, at most `limit`. */
  generations(runnerIds: readonly string[], afterId: string, limit: number): Promise<Generation[]>;
  /**
   * Stores what a runner reports; the generation of each report fences it. Resolves when it is committed. Every kind is
   * given reports of status `unsupported` too: the runner does not know the kind, or cannot read the assignment.
   */
  observe(runnerId: string, reports: readonly Report[]): Promise<void>;
  /** These runners are lost (silent for longer than `RUNNER_LOST_AFTER_MS`). Called until it has nothing left to do. */
  runnersLost?(afterMs: number): Promise<void>;
}
