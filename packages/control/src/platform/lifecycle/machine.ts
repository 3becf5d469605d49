/**
 * State machines as data. A resource whose table has a status (sandboxes, snapshots, images, jobs, versions of functions, their
 * invocations, hosts, copies of artifacts) changes it only through a row of its transition table:
 *
 * - `machine.ts` (this file) evaluates the rows in TypeScript: which one applies, or why none does. Pure; for messages, models
 *   and documents.
 * - `sql.ts` compiles them. `transitionSql`: the rows of each event become ONE conditional UPDATE, so that of concurrent events one
 *   wins. `eventSql`: the condition and the assignment of an event, for statements that do other things, too.
 * - `apply.ts` runs the statements of `transitionSql`, retries them after a deadlock, and announces the changes after the commit.
 *
 * `transitionSql` needs `id uuid` and a status; `updated_at timestamptz` unless told otherwise; `desired text` and `generation
 * integer` where a row has `wants`; `error text` where one has `error`; `deadline_at timestamptz` where there are `transient`
 * statuses. The smallest example of it is functions/versions/version-states.ts, of `eventSql` storage/images/transitions.ts;
 * compute/sandboxes has all there is. `test/status-writers.test.ts` asks PostgreSQL whether another statement writes a status.
 * `docs/lifecycle.md` is made from the tables.
 */

/** One row of a transition table: from these statuses, on this event, if all conditions hold, to that status. */
export interface Transition<
  Status extends string = string,
  Event extends string = string,
  Name extends string = string,
  Wants extends string = string,
  Effect extends string = string,
> {
  from: readonly Status[];
  on: Event;
  /** All conditions must hold. At most one transition may apply to a row of the database. */
  when?: readonly Name[];
  /** `same`: the status stays; without `effects` and `wants` nothing is written. */
  to: Status | 'same';
  /**
   * The new desired state. If present, the generation grows, which invalidates earlier reports of the runner. `same`: only
   * the generation grows.
   */
  wants?: Wants | 'same';
  effects?: readonly Effect[];
  /** Default reason, if the event has none. */
  error?: string;
  /** For readers and for the generated document. */
  note?: string;
}

/** A condition of a transition on the row beside its status, in SQL and in TypeScript. */
export interface Condition<Facts> {
  /** Over the table's alias `s`. It must depend on the row alone. */
  sql: string;
  holds(facts: Facts): boolean;
  /** End of the sentence `X cannot be …: ` when it does not hold. */
  otherwise: string | ((facts: Facts) => string);
}

export interface MachineDefinition<T extends Transition, Facts extends { status: string }> {
  /** Prefix of the statements' names. */
  name: string;
  table: string;
  /** The column of the status, by default `status`. */
  column?: string;
  transitions: readonly T[];
  conditions?: Readonly<Record<ConditionOf<T>, Condition<Facts>>>;
  /** Transient statuses: each has a deadline, and rows for the event `deadline` that leave it. By default none. */
  transient?: readonly string[];
  /** Conditions that no status change could satisfy: they come first in a refusal. */
  permanent?: readonly ConditionOf<T>[];
  /** The present status in a refusal of this event, where its bare name would mislead. */
  describe?: (event: T['on'], facts: Facts) => string | undefined;
}

export type ConditionOf<T extends Transition> = NonNullable<T['when']>[number];

export interface Machine<T extends Transition, Facts extends { status: string } = { status: string }> {
  readonly name: string;
  readonly table: string;
  readonly column: string;
  readonly transitions: readonly T[];
  readonly conditions: Readonly<Record<string, Condition<Facts>>>;
  readonly transient: readonly string[];
  /** Every event of the table. */
  readonly events: readonly T['on'][];
  /** The row that applies, if any. */
  decide: (event: T['on'], facts: Facts) => T | undefined;
  /** Why no row applies, as the end of a sentence. */
  refusal: (event: T['on'], facts: Facts) => string;
  /** The rows of this event that write something. */
  writing: (event: T['on']) => T[];
}

export function defineMachine<T extends Transition, Facts extends { status: string } = { status: string }>(
  definition: MachineDefinition<T, Facts>,
): Machine<T, Facts> {
  const { name, table, column = 'status', transitions, transient = [], permanent = [] } = definition;
  const conditions: Readonly<Record<string, Condition<Facts>>> = definition.conditions ?? {};
  const rowsOf = (event: T['on']): T[] => transitions.filter((row) => row.on === event);
  const failing = (row: T, facts: Facts): string | undefined =>
    (row.when ?? []).find((condition) => conditions[condition]?.holds(facts) !== true);

  const lack = (condition: string, facts: Facts): string => {
    const otherwise = conditions[condition]?.otherwise ?? condition;
    return typeof otherwise === 'string' ? otherwise : otherwise(facts);
  };

  return {
    name,
    table,
    column,
    transitions,
    conditions,
    transient,
    events: [...new Set(transitions.map((row) => row.on))],
    decide: (event, facts) =>
      rowsOf(event).find((row) => row.from.includes(facts.status) && failing(row, facts) === undefined),
    refusal(event, facts) {
      const rows = rowsOf(event);
      const hopeless = permanent.find(
        (condition) => rows.length > 0 && rows.every((row) => failing(row, facts) === condition),
      );
      if (hopeless !== undefined) return lack(hopeless, facts);
      const here = rows.find((row) => row.from.includes(facts.status));
      const lacking = here && failing(here, facts);
      if (lacking !== undefined) return lack(lacking, facts);
      const moving = rows.filter((row) => row.to !== 'same');
      const allowed = [...new Set((moving.length > 0 ? moving : rows).flatMap((row) => row.from))];
      const is = definition.describe?.(event, facts) ?? facts.status;
      return `it is ${is}, and must be ${allowed.join(', ').replace(/, ([^,]*)$/, ' or $1')}`;
    },
    writing: (event) =>
      rowsOf(event).filter(
        (row) => row.to !== 'same' || row.wants !== undefined || (row.effects ?? []).length > 0,
      ),
  };
}

export function hasEffect(row: Transition, ...effects: readonly string[]): boolean {
  return (row.effects ?? []).some((effect) => effects.includes(effect));
}
