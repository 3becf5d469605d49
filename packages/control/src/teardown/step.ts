import { queryAll, statement, type Database } from '@releap/database';

/**
 * Phases of a teardown, in this order. `revoke`: nothing new can be made. `stop`: what runs is ended. `erase`: what tenants
 * have written is removed. The order saves repeated work; a step must be right whatever earlier ones have left.
 */
export const TEARDOWN_PHASES = ['revoke', 'stop', 'erase'] as const;
export type TeardownPhase = (typeof TEARDOWN_PHASES)[number];

/** What a module does about one kind of resource of a deleted project. */
export interface TeardownStep {
  /** Lower case with hyphens; unique. */
  name: string;
  phase: TeardownPhase;
  /**
   * Removes what it can now. May be repeated, and may be interrupted anywhere.
   * @returns how many are still there (at least 1 if any)
   */
  run(projectId: string): Promise<number>;
}

/** A step of one statement with the project as $1; each row that it returns is one that is still there. */
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

/** By phase; within one, as they were given. */
export function inOrder(steps: readonly TeardownStep[]): TeardownStep[] {
  return TEARDOWN_PHASES.flatMap((phase) => steps.filter((step) => step.phase === phase));
}
