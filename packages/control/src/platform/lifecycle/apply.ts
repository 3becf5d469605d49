import { queryAll, type Database, type Queryable, type QueryResultRow } from '@releap/database';
import type { Transition } from './machine.ts';
import type { TransitionInput, TransitionSql } from './sql.ts';

/** The only code that changes the status of rows of one table. */
export interface RowLifecycle<Event extends string, Row, Input> {
  /**
   * Applies an event to some rows (each id at most once) and returns those that it moved. The others were in a status that
   * the event does not leave, or a guard did not match: another event was first.
   */
  apply: (event: Event, changes: readonly Input[]) => Promise<Row[]>;
  /**
   * The same inside a transaction of the caller's, who calls `announce` after the commit.
   * @param options.skipLocked rows that another transaction has locked are left alone instead of waited for
   */
  applyWithin: (
    on: Queryable,
    event: Event,
    changes: readonly Input[],
    options?: { skipLocked?: boolean },
  ) => Promise<Row[]>;
  /** Notifies waiting requests of these changes. Call it only after the commit. */
  announce: (rows: readonly Row[]) => void;
}

export interface LifecycleOptions<T extends Transition, Row extends QueryResultRow> {
  database: Pick<Database, 'pool'>;
  sql: TransitionSql<T, Row>;
  /** Longest stay in each transient status, in milliseconds. */
  deadlines: Readonly<Record<string, number>>;
  onMoved: (rows: readonly Row[]) => void;
  /** Called after the commit, for each row that an event has moved; for metrics. */
  onTransition?: ((event: T['on'], row: Row) => void) | undefined;
}

export function createLifecycle<
  T extends Transition,
  Row extends QueryResultRow,
  Input extends TransitionInput,
>({
  database,
  sql,
  deadlines,
  onMoved,
  onTransition,
}: LifecycleOptions<T, Row>): RowLifecycle<T['on'], Row, Input> {
  /** Moved rows that are not announced yet. Those of a transaction that is rolled back never are. */
  const eventOf = new WeakMap<Row, T['on']>();
  const announce = (rows: readonly Row[]): void => {
    for (const row of rows) {
      const event = eventOf.get(row);
      if (event === undefined) continue;
      eventOf.delete(row);
      onTransition?.(event, row);
    }
    onMoved(rows);
  };
  const applyWithin: RowLifecycle<T['on'], Row, Input>['applyWithin'] = async (
    on,
    event,
    changes,
    options,
  ) => {
    if (changes.length === 0) return [];
    const found = sql.statement(event, changes, deadlines, options);
    if (found === undefined) return [];
    const rows = await queryAll(on, found.statement, found.values);
    if (onTransition !== undefined) for (const row of rows) eventOf.set(row, event);
    return rows;
  };
  return {
    applyWithin,
    announce,
    async apply(event, changes) {
      const rows = await retryingDeadlocks(() => applyWithin(database.pool, event, changes));
      if (rows.length > 0) announce(rows);
      return rows;
    },
  };
}

const DEADLOCK = '40P01';
const ATTEMPTS = 4;

/** Two batches may lock the same rows in different orders; PostgreSQL rolls one of them back. */
export async function retryingDeadlocks<T>(work: () => Promise<T>): Promise<T> {
  for (let attempt = 1; ; attempt++) {
    try {
      return await work();
    } catch (error) {
      if ((error as { code?: string }).code !== DEADLOCK || attempt === ATTEMPTS) throw error;
    }
  }
}
