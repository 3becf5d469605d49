/** Paged lists over `(created_at, id)`, newest first. */
import type { CursorPosition } from '@releap/contract';
import { queryAll, statement, type Queryable } from '@releap/database';

export interface NewestFirst<Row> {
  /** @param values of the parameters in `where` */
  page(
    on: Queryable,
    values: readonly unknown[],
    limit: number,
    after: CursorPosition | null,
  ): Promise<{ rows: Row[]; last: CursorPosition | null }>;
}

/**
 * Two statements: the generic plan of one with `$n is null or …` could not start at the cursor's position in the index.
 * @param name of the statements, with `-first` and `-next`
 * @param query `from` with the table (columns are not qualified), and `where` with parameters from $1 on
 */
export function newestFirst<Row extends { id: string }>(
  name: string,
  query: { columns: string; from: string; where: string; parameters: number },
): NewestFirst<Row> {
  const { columns, from, where, parameters: count } = query;
  const text = (position: string): string =>
    `select ${columns}, to_char(created_at at time zone 'utc', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"') as position
       from ${from} where (${where}) ${position} order by created_at desc, id desc limit $${count + 1}`;
  const FIRST = statement<Row & { position: string }>(`${name}-first`, text(''));
  const NEXT = statement<Row & { position: string }>(
    `${name}-next`,
    text(`and (created_at, id) < ($${count + 2}::timestamptz, $${count + 3}::uuid)`),
  );
  return {
    async page(on, values, limit, after) {
      // One more than asked for, to know whether there is a next page.
      const bound = [...values, limit + 1];
      const rows =
        after === null
          ? await queryAll(on, FIRST, bound)
          : await queryAll(on, NEXT, [...bound, after.created_at, after.id]);
      const page = rows.slice(0, limit);
      const last = rows.length > limit ? page.at(-1) : undefined;
      return { rows: page, last: last === undefined ? null : { created_at: last.position, id: last.id } };
    },
  };
}
