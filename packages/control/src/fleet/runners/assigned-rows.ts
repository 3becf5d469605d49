/** Assignments of kinds that are one row each, and need nothing that a runner may see only when it is sent. */
import type { AnyAssignment, Assignment } from '@releap/contract/runner';
import { queryAll, type Queryable, type QueryResultRow, type Statement } from '@releap/database';
import { assignmentPages } from './assignment-pages.ts';
import type { Generation, ReconciledKind } from '../../platform/reconciled-kind.ts';

export interface AssignedRows<Row extends QueryResultRow & { id: string }> {
  /** Ordered by id; $1 runner, $2 id that all are above, $3 rows */
  page: Statement<Row>;
  /** $1 ids, $2 runner */
  byId: Statement<Row>;
  /** Ordered by id; $1 runners, $2 id that all are above, $3 rows */
  generations: Statement<Generation>;
  toAssignment: (row: Row) => Assignment | AnyAssignment;
}

/** The part of a `ReconciledKind` that reads. */
export function assignedRows<Row extends QueryResultRow & { id: string }>(
  on: Queryable,
  { page, byId, generations, toAssignment }: AssignedRows<Row>,
): Pick<ReconciledKind, 'assignments' | 'assignmentsById' | 'generations'> {
  return {
    async *assignments(runnerId) {
      for await (const rows of assignmentPages(on, page, runnerId)) yield rows.map(toAssignment);
    },
    async assignmentsById(runnerId, ids) {
      return (await queryAll(on, byId, [ids, runnerId])).map(toAssignment);
    },
    generations: (runnerIds, afterId, limit) => queryAll(on, generations, [runnerIds, afterId, limit]),
  };
}
