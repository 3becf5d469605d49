import { all, type Database, type Queryable } from '@releap/database';
import type { SandboxRow } from '@releap/database';
import { transitionStatement, type Change } from './transition-sql.ts';
import type { StateDeadlines, Trigger } from './transitions.ts';

/** The only way to change a sandbox's status. */
export interface Lifecycle {
  /**
   * Pulls a trigger for some sandboxes (each id at most once) and gives those that it moved. The others were
   * in a status that the trigger does not leave, or a guard did not match: somebody else was first.
   */
  apply(trigger: Trigger, changes: readonly Change[]): Promise<SandboxRow[]>;
  /** The same inside a transaction of the caller, who calls `announce` after the commit. */
  applyWithin(on: Queryable, trigger: Trigger, changes: readonly Change[]): Promise<SandboxRow[]>;
  /** Tells everybody who waits that these have changed. Only after the commit. */
  announce(rows: readonly SandboxRow[]): void;
}

export interface LifecycleOptions {
  database: Database;
  deadlines: StateDeadlines;
  onMoved: (rows: readonly SandboxRow[]) => void;
}

const DEADLOCK = '40P01';
const ATTEMPTS = 4;

export function createLifecycle({ database, deadlines, onMoved }: LifecycleOptions): Lifecycle {
  const applyWithin: Lifecycle['applyWithin'] = async (on, trigger, changes) => {
    if (changes.length === 0) return [];
    const found = transitionStatement(trigger, changes, deadlines);
    return found === undefined ? [] : all(on, found.statement, found.values);
  };
  return {
    applyWithin,
    announce: onMoved,
    async apply(trigger, changes) {
      for (let attempt = 1; ; attempt++) {
        try {
          const rows = await applyWithin(database.pool, trigger, changes);
          if (rows.length > 0) onMoved(rows);
          return rows;
        } catch (error) {
          // Two batches may lock the same rows in another order; PostgreSQL ends one of them, untouched.
          if ((error as { code?: string }).code !== DEADLOCK || attempt === ATTEMPTS) throw error;
        }
      }
    },
  };
}
