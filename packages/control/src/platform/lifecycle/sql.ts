/** Compiles a transition table to SQL: one conditional UPDATE per event, or the parts of one. Pure. */
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
  /** Guard: only in this generation. Of a table with desired states. */
  generation?: number;
  /** Guard: only if its deadline has passed. Of a table with transient statuses. */
  overdue?: true;
  /** The reason of a failure. */
  error?: string;
}

/** An expression for rows of the database that this transition applies to; undefined: the column keeps its value. */
export type Expression<T extends Transition> = (row: T) => string | undefined;

export interface TableSql<T extends Transition> {
  /** The RETURNING columns, as keys of a row (`columns` of @releap/database). */
  columns: readonly string[];
  /** Fields of an input beside those of `TransitionInput`, with their SQL types. */
  input?: Readonly<Record<string, string>>;
  /** Fields of an input that, where given, must equal the column of the same name. */
  guards?: readonly string[];
  /** Columns that the transitions set, over `s` (the row) and `t` (the input). */
  set?: Readonly<Record<string, Expression<T>>>;
  /** Columns that every transition sets, beside `updated_at`. */
  always?: Readonly<Record<string, string>>;
  /** The table has no `updated_at`. */
  updatedAt?: false;
  /** Selects the ids of those that may change, over `t`, and locks rows of another table before them. */
  lock?: string;
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

/** What compiles SQL for a machine, whatever its facts are. */
// oxlint-disable-next-line typescript/no-explicit-any -- facts are read by SQL here
type Compiled<T extends Transition> = Machine<T, any>;

/** Left side of an assignment of the status. The comment is how a test recognizes it. */
export const assigned = ({ table, column }: Pick<Machine<Transition>, 'table' | 'column'>): string =>
  `${column} /* ${table} */`;

/**
 * The parts of events for statements that do other things, too: that lease a build, or end a job together with its image. Each event
 * has one row, without conditions, that changes the status.
 */
export interface EventSql<Event extends string> {
  /** Condition: one of the events may leave the row's status. */
  allows: (alias: string, ...events: Event[]) => string;
  /**
   * Assigns the status, in a statement that changes only rows that the event may leave. In one that changes others, too, or applies one
   * of several events, each has a condition: the first that holds is applied, if the event is allowed; otherwise the status stays.
   */
  sets: (alias: string, event: Event | Partial<Readonly<Record<Event, string>>>) => string;
}

export function eventSql<T extends Transition>(machine: Compiled<T>): EventSql<T['on']> {
  const { column } = machine;
  const rowOf = (event: string): T => {
    const [row, ...more] = machine.transitions.filter((one) => one.on === event);
    if (row === undefined || row.when !== undefined || row.to === 'same' || more.length > 0)
      throw new Error(`${machine.name}: ${event} is not one change of the status without conditions`);
    return row;
  };
  const allows = (alias: string, ...events: string[]): string =>
    `${alias}.${column} in ${list([...new Set(events.flatMap((event) => rowOf(event).from))])}`;
  return {
    allows,
    sets(alias, event) {
      if (typeof event === 'string') return `${assigned(machine)} = ${literal(rowOf(event).to)}`;
      const arms = Object.entries<string | undefined>(event).map(([one, condition]) => {
        const also = condition === 'true' ? '' : ` and (${condition})`;
        return `when ${allows(alias, one)}${also} then ${literal(rowOf(one).to)}`;
      });
      return `${assigned(machine)} = case ${arms.join('\n      ')} else ${alias}.${column} end`;
    },
  };
}

export function transitionSql<T extends Transition, Row extends QueryResultRow>(
  machine: Compiled<T>,
  table: TableSql<T>,
): TransitionSql<T, Row> {
  const { column } = machine;
  const hasDesired = machine.transitions.some((row) => row.wants !== undefined);
  const hasDeadlines = machine.transient.length > 0;
  const hasErrors = machine.transitions.some((row) => row.error !== undefined);
  const texts = new Map<string, Statement<Row>>();
  for (const event of machine.events) {
    const rows = machine.writing(event);
    if (rows.length === 0) continue;
    texts.set(event, statement<Row>(`${machine.name}-${event}`, text(rows, '')));
    // Locked and updated by one command, without waiting for locks.
    const free = `, free as (
  select l.id from ${machine.table} l where l.id in (select id from t) for no key update skip locked
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
    return [`s.${column} in ${list(row.from)}`, ...conditions].join(' and ');
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
    const locked = table.lock === undefined ? '' : `, locked as (\n  ${table.lock}\n)`;
    const input = {
      id: 'uuid',
      ...(hasDesired && { generation: 'integer' }),
      ...(hasDeadlines && { overdue: 'boolean' }),
      error: 'text',
      ...table.input,
    };
    const set: Record<string, Expression<T>> = {
      ...(hasDesired && {
        desired: ({ wants }) =>
          wants === undefined || wants === 'same' ? undefined : (table.wanted?.[wants] ?? literal(wants)),
        generation: (row) => (row.wants === undefined ? undefined : 's.generation + 1'),
      }),
      ...(hasDeadlines && { deadline_at: deadline }),
      ...(hasErrors && {
        error: (row) =>
          row.to === 'failed'
            ? `coalesce(t.error, ${literal(row.error ?? 'no reason was given')})`
            : undefined,
      }),
      ...table.set,
    };
    const moved = choose(rows, (row) => (row.to === 'same' ? undefined : literal(row.to)), `s.${column}`);
    const assignments = [
      `${assigned(machine)} = ${moved}`,
      ...Object.entries(set).map(([name, value]) => `${name} = ${choose(rows, value, `s.${name}`)}`),
      ...Object.entries(table.always ?? {}).map(([name, value]) => `${name} = ${value}`),
      ...(table.updatedAt === false ? [] : ['updated_at = now()']),
    ];
    const guards = [
      ...[...(hasDesired ? ['generation'] : []), ...(table.guards ?? [])].map(
        (name) => `(t.${name} is null or s.${name} = t.${name})`,
      ),
      ...(hasDeadlines ? ['(t.overdue is null or s.deadline_at <= now())'] : []),
      `(${rows.map((row) => `(${applies(row)})`).join('\n      or ')})`,
    ];
    const alongside = Object.entries(table.alongside?.(rows) ?? {}).map(
      ([name, sql]) => `, ${name} as (\n  ${sql}\n)`,
    );
    return `with t as (
  select * from jsonb_to_recordset($1::jsonb) as t(${Object.entries(input)
    .map((field) => field.join(' '))
    .join(', ')})
)${locked}${free}, moved as (
  update ${machine.table} s set
    ${assignments.join(',\n    ')}
  from t${locked && ' join locked on locked.id = t.id'}${free && ' join free on free.id = t.id'}
  where s.id = t.id and $2::jsonb is not null and ${guards.join('\n    and ')}
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
