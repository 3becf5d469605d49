import { queryAll, type Queryable, type QueryResultRow, type Statement } from '@releap/database';
import { ASSIGNMENT_PAGE_ROWS } from '../../platform/reconciled-kind.ts';

const LOWEST_ID = '00000000-0000-0000-0000-000000000000';

/**
 * The rows that a runner is assigned, page by page. The next page is read when the caller has handled the last one.
 * @param page ordered by id; $1 runner, $2 id that all are above, $3 rows
 */
export async function* assignmentPages<Row extends QueryResultRow & { id: string }>(
  on: Queryable,
  page: Statement<Row>,
  runnerId: string,
): AsyncIterable<Row[]> {
  for (let after = LOWEST_ID; ; ) {
    const rows = await queryAll(on, page, [runnerId, after, ASSIGNMENT_PAGE_ROWS]);
    yield rows;
    const last = rows.at(-1);
    if (last === undefined || rows.length < ASSIGNMENT_PAGE_ROWS) return;
    after = last.id;
  }
}
