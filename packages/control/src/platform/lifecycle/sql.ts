/** Compiles a transition table to SQL: one conditional UPDATE per event. Pure. */
import {
  columns as stored,
  rowColumns,
  statement,
  type QueryResultRow,
  type Statement,
} from '@releap/database';
import type { Machine, Transition } from './machine.ts';

/** A row to which an event is applied. Given guards must match, or nothing happens. */
export interface TransitionInput {
  id: string;
  /** Guard: only in this generation. */
  generation?: number;
  /** Guard: only if its deadline has passed. */
  overdue?: true;
  /** The reason of a failure. */
  error?: string;
}

/** An expression for rows of the database that this transition applies to; undefined: the column keeps its value. */
export type Expression<T extends Transition> = (row: T) => string | undefined;

export interface TableSql<T extends Transition> {
  table: string;
  /** The RETURNING columns, as keys of a row (`columns` of @releap/database). */
  columns: readonly string[];
  /** Fields of an input beside those of `TransitionInput`, with their SQL types. */
  input?: Readonly<Record<string, string>>;
  /** Fields of an input that, where given, must equal the column of the same name. */
  guards?: readonly string[];
  /** Columns that the transitions set, over `s` (the row) and `t` (the input). */
  set?: Readonly<Record<string, Expression<T>>>;
  /** Columns that every transition sets. */
  always?: Readonly<Record<string, string>>;
  /** SQL for values of `wants` that are not values of `desired`. */
  wanted?: Readonly<Record<string, string>>;
  /** Further statements in the same command, by name, over `moved m`: rows of other tables that change with it. */
  alongside?: (rows: readonly T[]) => Readonly<Record<string, string>>;
}

export interface TransitionStatement<Row extends QueryResultRow> {
  statement: Statement<Row>;
  values: [changes: string, deadlines: string];
}

export interface TransitionSql<T extends Transition, Row extends QueryResultRow> {
  /**
   * The statement of an event and its parameters. Undefined for an event that never writes.
   * @param deadlines longest stay in each transient status, in milliseconds
   * @param options.skipLocked leaves rows alone that another transaction has locked, and never waits for one
   */
  statement: (
    event: T['on'],
    changes: readonly TransitionInput[],
    deadlines: Readonly<Record<string, number>>,
    options?: { skipLocked?: boolean },
  ) => TransitionStatement<Row> | undefined;
}

export const literal = (value: string): string => `'${value.replaceAll("'", "''")}'`;
const list = (values: readonly string[]): string => `(${values.map(literal).join(', ')})`;

export function transitionSql<T extends Transition, Row extends QueryResultRow>(
  // oxlint-disable-next-line typescript/no-explicit-any -- facts are read by SQL here
  machine: Pick<Machine<T, any>, 'name' | 'conditions' | 'transient' | 'events' | 'writing'>,
  table: TableSql<T>,
): TransitionSql<T, Row> {
  const texts = new Map<string, Statement<Row>>();
  for (const event of machine.events) {
    const rows = machine.writing(event);
    if (rows.length === 0) continue;
    texts.set(event, statement<Row>(`${machine.name}-${event}`, text(rows, '')));
    // Locked and updated by one command, without waiting for locks.
    const free = `, free as (
  select l.id from ${table.table} l where l.id in (select id from t) for no key update skip locked
)`;
    texts.set(`${event} free`, statement<Row>(`${machine.name}-${event}-free`, text(rows, free)));
  }

  /** True for exactly the rows of the database that this transition applies to. */
  function applies(row: T): string {
    const conditions = (row.when ?? []).map((name) => {
      const condition = machine.conditions[name];
      if (condition === undefined) throw new Error(`${machine.name}: no condition is named "${name}"`);
      return condition.sql;
    });
    return [`s.status in ${list(row.from)}`, ...conditions].join(' and ');
  }

  function choose(rows: readonly T[], value: Expression<T>, otherwise: string): string {
    const arms = rows.flatMap((row) => {
      const result = value(row);
      return result === undefined || result === otherwise ? [] : [`when ${applies(row)} then ${result}`];
    });
    return arms.length === 0 ? otherwise : `case ${arms.join('\n      ')} else ${otherwise} end`;
  }

  function deadline(row: T): string | undefined {
    if (row.to === 'same') return undefined;
    if (!machine.transient.includes(row.to)) return 'null';
    return `now() + ($2::jsonb ->> ${literal(row.to)})::integer * interval '1 millisecond'`;
  }

  function text(rows: readonly T[], free: string): string {
    const input = { id: 'uuid', generation: 'integer', overdue: 'boolean', error: 'text', ...table.input };
    const set: Record<string, Expression<T>> = {
      status: (row) => (row.to === 'same' ? undefined : literal(row.to)),
      desired: ({ wants }) =>
        wants === undefined || wants === 'same' ? undefined : (table.wanted?.[wants] ?? literal(wants)),
      generation: (row) => (row.wants === undefined ? undefined : 's.generation + 1'),
      deadline_at: deadline,
      error: (row) =>
        row.to === 'failed' ? `coalesce(t.error, ${literal(row.error ?? 'no reason was given')})` : undefined,
      ...table.set,
    };
    const assignments = [
      ...Object.entries(set).map(([column, value]) => `${column} = ${choose(rows, value, `s.${column}`)}`),
      ...Object.entries(table.always ?? {}).map(([column, value]) => `${column} = ${value}`),
      'updated_at = now()',
    ];
    const guards = [
      ...['generation', ...(table.guards ?? [])].map(
        (name) => `(t.${name} is null or s.${name} = t.${name})`,
      ),
      '(t.overdue is null or s.deadline_at <= now())',
    ];
    const alongside = Object.entries(table.alongside?.(rows) ?? {}).map(
      ([name, sql]) => `, ${name} as (\n  ${sql}\n)`,
    );
    return `with t as (
  select * from jsonb_to_recordset($1::jsonb) as t(${Object.entries(input)
    .map((field) => field.join(' '))
    .join(', ')})
)${free}, moved as (
  update ${table.table} s set
    ${assignments.join(',\n    ')}
  from t${free === '' ? '' : ' join free on free.id = t.id'}
  where s.id = t.id and $2::jsonb is not null and ${guards.join('\n    and ')}
    and (${rows.map((row) => `(${applies(row)})`).join('\n      or ')})
  returning ${stored('s', table.columns)}
)${alongside.join('')}
select ${rowColumns('m', table.columns)} from moved m`;
  }

  return {
    statement(event, changes, deadlines, { skipLocked = false } = {}) {
      const found = texts.get(skipLocked ? `${event} free` : event);
      if (found === undefined) return undefined;
      return { statement: found, values: [JSON.stringify(changes), JSON.stringify(deadlines)] };
    },
  };
}
