import DataLoader from 'dataloader';
import { queryAll, type Queryable, type QueryResultRow, type Statement } from './statement.ts';

/** Keys of one statement. What is more goes into the next one, on another connection. */
const MAX_KEYS = 100;

/** Reads one row by its key, or none. */
export type RowReader<Key extends object, Row> = (key: Key) => Promise<Row | undefined>;

/**
 * Joins the reads of single rows that are asked for in one round of the event loop into one statement. Under load most
 * of what a read costs is the round trip and not the row; a read that is alone waits for nothing.
 *
 * Nothing is cached: each read sees what was committed before it was asked for.
 * @param read its one parameter is the list of keys, each with its position `n`, which the row found for it repeats:
 *   `select key.n, … from jsonb_to_recordset($1::jsonb) as key(n integer, id uuid) cross join lateral (…)`. (Over
 *   `unnest` PostgreSQL would plan the statement again for each list, which doubles what a read costs.)
 */
export function createRowReader<Key extends object, Row extends QueryResultRow>(
  on: Queryable,
  read: Statement<Row & { n: number }>,
): RowReader<Key, Row> {
  const loader = new DataLoader<Key, Row | undefined>(
    async (keys) => {
      const found: (Row | undefined)[] = keys.map(() => undefined);
      const list = JSON.stringify(keys.map((key, n) => ({ ...key, n })));
      for (const row of await queryAll(on, read, [list])) found[row.n] = row;
      return found;
    },
    { cache: false, maxBatchSize: MAX_KEYS, batchScheduleFn: (send) => setImmediate(send) },
  );
  return (key) => loader.load(key);
}
