import type { Database, SandboxRow } from '@releap/database';
import { createLifecycle as create, type RowLifecycle } from '../../platform/lifecycle/apply.ts';
import { mayEndFork, releaseForkSources } from './pending-forks.ts';
import { SANDBOX_SQL, type Change } from './transition-sql.ts';
import type { SandboxEvent, StateDeadlines } from './transitions.ts';

/** The only code that changes a sandbox's status. */
export type Lifecycle = RowLifecycle<SandboxEvent, SandboxRow, Change>;

export interface LifecycleOptions {
  database: Database;
  deadlines: StateDeadlines;
  onMoved: (rows: readonly SandboxRow[]) => void;
  onTransition?: (event: SandboxEvent, row: SandboxRow) => void;
}

export function createLifecycle({ database, deadlines, onMoved, onTransition }: LifecycleOptions): Lifecycle {
  const lifecycle: Lifecycle = create({
    database,
    sql: SANDBOX_SQL,
    deadlines: { ...deadlines },
    onMoved,
    onTransition,
  });
  return {
    ...lifecycle,
    async apply(event, changes) {
      const rows = await lifecycle.apply(event, changes);
      // The periodic task finds what is missed here (after a crash, or in another module's transaction).
      if (mayEndFork(event, rows)) await releaseForkSources(database, lifecycle.apply);
      return rows;
    },
  };
}
