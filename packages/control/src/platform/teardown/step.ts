import { queryAll, statement, type Database } from '@releap/database';

/**
 * Phases of a teardown, in this order. `revoke`: nothing new can be created. `stop`: running resources end. `erase`:
 * tenants' data is removed. The order saves repeated work; a step must be correct whatever earlier ones have left.
 */
const TEARDOWN_PHASES = ['revoke', 'stop', 'erase'] as const;
export type TeardownPhase = (typeof TEARDOWN_PHASES)[number];

/** Removes one kind of resource of a deleted project. */
export interface TeardownStep {
  /** Lower case with hyphens; unique. */
  name: string;
  phase: TeardownPhase;
  /**
   * Removes a bounded part of what it can remove now. May be repeated, and may be interrupted anywhere. When it throws, the
   * other steps run all the same.
   * @returns `more`: it removed a part, and the next pass follows at once; otherwise the number of remaining resources (at
   *     least 1 if any), which others must release first
   */
  run(projectId: string): Promise<number | 'more'>;
}

/** So many rows one statement removes: it must end long before its time limit. */
const BATCH = 1000;

/** A step of one statement that removes at most $2 rows of the project $1, and returns a row for each. */
export function batchStep(
  database: Database,
  step: { name: string; phase: TeardownPhase; text: string },
): TeardownStep {
  const run = statement(`teardown-${step.name}`, step.text);
  return {
    name: step.name,
    phase: step.phase,
    run: async (projectId) =>
      (await queryAll(database.pool, run, [projectId, BATCH])).length > 0 ? 'more' : 0,
  };
}

/** By phase; in the given order within one. */
export function inOrder(steps: readonly TeardownStep[]): TeardownStep[] {
  return TEARDOWN_PHASES.flatMap((phase) => steps.filter((step) => step.phase === phase));
}
