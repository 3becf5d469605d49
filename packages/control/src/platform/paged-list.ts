/**
 * Lists in any order, paged by the keys of their last row. Without `limit` and `cursor` a list answers as a whole, up to its bound:
 * so did all of them before they had pages.
 */
import {
  clampLimit,
  decodeKeyCursor,
  encodeKeyCursor,
  invalidCursor,
  type CursorKind,
} from '@releap/contract';
import { queryAll, statement, type Queryable, type QueryResultRow } from '@releap/database';

export interface PageRequest {
  limit?: number;
  cursor?: string;
}

/** `next_cursor` of a response: absent when no page was asked for, null on the last one. */
export interface NextPage {
  next_cursor?: string | null;
}

export interface PageBounds {
  /** Rows of a request without `limit` and `cursor`; default: all. */
  most?: number;
  /** Rows of a page for its `limit`. Default: `clampLimit`. */
  size?: (limit: number | undefined) => number;
}

export interface PagedList<Row> {
  /**
   * @param values of the parameters in `where`
   * @throws 400
   */
  page(
    on: Queryable,
    values: readonly unknown[],
    request: PageRequest,
    bounds?: PageBounds,
  ): Promise<{ rows: Row[]; next: NextPage }>;
}

interface Query {
  columns: string;
  from: string;
  /** With parameters from $1 on. */
  where: string;
  parameters: number;
  /** What the list is sorted by, all in one direction. The last ones make it unique. None is ever null. */
  keys: readonly { sql: string; type: 'text' | 'uuid' | 'timestamptz' | 'integer' | 'bigint' | 'boolean' }[];
  direction?: 'asc' | 'desc';
}

/** Of tables whose rows have a time and an id. */
export const BY_TIME: Query['keys'] = [
  { sql: 'created_at', type: 'timestamptz' },
  { sql: 'id', type: 'uuid' },
];

/**
 * Two statements: the generic plan of one with `$n is null or …` could not start at the cursor's position in the index.
 * @param name of the statements, with `-first` and `-next`
 */
export function pagedList<Row extends QueryResultRow>(
  name: string,
  kind: CursorKind,
  { columns, from, where, parameters: count, keys, direction = 'asc' }: Query,
): PagedList<Row> {
  const position = keys.map(({ sql }) => `(${sql})::text`).join(', ');
  const order = keys.map(({ sql }) => `${sql} ${direction}`).join(', ');
  const text = (after: string): string =>
    `select ${columns}, array[${position}] as position from ${from} where (${where}) ${after} order by ${order} limit $${count + 1}`;
  const FIRST = statement<Row & { position: string[] }>(`${name}-first`, text(''));
  const left = keys.map(({ sql }) => sql).join(', ');
  const right = keys.map(({ type }, index) => `$${count + 2 + index}::${type}`).join(', ');
  const NEXT = statement<Row & { position: string[] }>(
    `${name}-next`,
    text(`and (${left}) ${direction === 'asc' ? '>' : '<'} (${right})`),
  );
  const toRow = (found: Row & { position: string[] }): Row => {
    const { position: _, ...row } = found;
    return row as unknown as Row;
  };

  return {
    async page(on, values, { limit, cursor }, { most, size = clampLimit } = {}) {
      if (limit === undefined && cursor === undefined)
        return { rows: (await queryAll(on, FIRST, [...values, most ?? null])).map(toRow), next: {} };
      const wanted = size(limit);
      // One more than asked for, to know whether there is a next page.
      const bound = [...values, wanted + 1];
      const after = cursor === undefined ? undefined : decodeKeyCursor(kind, cursor, keys.length);
      const found =
        after === undefined
          ? await queryAll(on, FIRST, bound)
          : await queryAll(on, NEXT, [...bound, ...after]).catch((error: unknown) => {
              throw isInvalidValue(error) ? invalidCursor(cursor ?? '') : error;
            });
      const rows = found.slice(0, wanted);
      const last = found.length > wanted ? rows.at(-1) : undefined;
      const next = last === undefined ? null : encodeKeyCursor(kind, last.position);
      return { rows: rows.map(toRow), next: { next_cursor: next } };
    },
  };
}

/** SQLSTATE class 22, data exception: a forged cursor has keys of another type. */
const isInvalidValue = (error: unknown): boolean =>
  (error as { code?: string }).code?.startsWith('22') === true;
