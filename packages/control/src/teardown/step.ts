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
   * Removes what it can now. May be repeated, and may be interrupted anywhere.
   * @returns the number of remaining resources (at least 1 if any)
   */
  run(projectId: string): Promise<number>;
}

/** A step of one statement with the project as $1; each returned row is a remaining resource. */
export function statementStep(
  database: Database,
  step: { name: string; phase: TeardownPhase; text: string },
): TeardownStep {
  const run = statement(`teardown-${step.name}`, step.text);
  return {
    name: step.name,
    phase: step.phase,
    run: async (projectId) => (await queryAll(database.pool, run, [projectId])).length,
  };
}

/** By phase; in the given order within one. */
export function inOrder(steps: readonly TeardownStep[]): TeardownStep[] {
  return TEARDOWN_PHASES.flatMap((phase) => steps.filter((step) => step.phase === phase));
}
