import type { ClientBase, Pool, QueryResultRow } from 'pg';

export type { QueryResultRow };

/** A pool, or one connection inside a transaction. */
export type Queryable = Pick<Pool, 'query'> | Pick<ClientBase, 'query'>;

/**
 * A prepared statement: prepared once per connection under its name, so the text of a name must not change while the
 * process runs.
 */
export interface Statement<Row extends QueryResultRow> {
  readonly name: string;
  readonly text: string;
  /** Only to carry the type of a row; never present. */
  readonly row?: Row;
}

const names = new Map<string, string>();

/**
 * Declares a named statement.
 * @throws when another text already has this name: the driver would silently run the first one.
 */
export function statement<Row extends QueryResultRow>(name: string, text: string): Statement<Row> {
  if (name.length > 63)
    throw new Error(`statement name "${name}" has ${name.length} characters, at most 63 are allowed`);
  const known = names.get(name);
  if (known !== undefined && known !== text) throw new Error(`two different statements are named "${name}"`);
  names.set(name, text);
  return { name, text };
}

/** All that have been declared so far, by name. */
export const declaredStatements: ReadonlyMap<string, string> = names;

/** Runs a statement and returns all of its rows. */
export async function queryAll<Row extends QueryResultRow>(
  on: Queryable,
  { name, text }: Statement<Row>,
  values: unknown[] = [],
): Promise<Row[]> {
  const result = await on.query<Row>({ name, text, values });
  return result.rows;
}

/** Runs a statement that returns one row or none. */
export async function queryOne<Row extends QueryResultRow>(
  on: Queryable,
  { name, text }: Statement<Row>,
  values: unknown[] = [],
): Promise<Row | undefined> {
  const result = await on.query<Row>({ name, text, values });
  return result.rows[0];
}
