/** Rows as parameters of a statement: an array a column. */

type Column<Row> = readonly [name: string, type: string, value: (row: Row) => unknown];

export interface GivenRows<Row> {
  /** For `from`, as `t`. */
  sql: string;
  values: (rows: readonly Row[]) => unknown[][];
}

/** @param first number of the parameter with the first column */
export function givenRows<Row extends { id: string }>(
  first: number,
  columns: readonly Column<Row>[],
): GivenRows<Row> {
  const parameters = columns.map(([, type], at) => `$${at + first}::${type}[]`);
  return {
    sql: `unnest(${parameters.join(', ')}) as t(${columns.map(([name]) => name).join(', ')})`,
    values(rows) {
      // In one order, so that two servers with the same rows do not wait for each other in a circle.
      const ordered = rows.toSorted((a, b) => (a.id < b.id ? -1 : 1));
      return columns.map(([, , value]) => ordered.map(value));
    },
  };
}
