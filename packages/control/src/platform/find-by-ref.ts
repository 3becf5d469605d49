/** Lookups by a text that is an id or a name. */
import { badRequest, isUuid, quote } from '@releap/contract';
import { queryAll, type Queryable, type QueryResultRow, type Statement } from '@releap/database';

export interface Reference<Row extends QueryResultRow> {
  /** $1 project, $2 id (null: none), $3 name */
  find: Statement<Row>;
  /** In messages. */
  noun: string;
  /** The same for all that the project does not have. */
  notFound: (ref: string) => Error;
}

/** @throws 400 for a text that is the id of one and the name of another, 404 */
export async function findByRef<Row extends QueryResultRow>(
  on: Queryable,
  { find, noun, notFound }: Reference<Row>,
  projectId: string,
  ref: string,
): Promise<Row> {
  // No name is a text that PostgreSQL could not take.
  if (!/^[A-Za-z0-9._-]{1,128}$/.test(ref)) throw notFound(ref);
  const found = await queryAll(on, find, [projectId, isUuid(ref) ? ref : null, ref]);
  if (found.length > 1)
    throw badRequest(`${quote(ref)} is the id of one ${noun} and the name of another`, 'ambiguous_reference');
  const [row] = found;
  if (row === undefined) throw notFound(ref);
  return row;
}
