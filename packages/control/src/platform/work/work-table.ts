/**
 * The protocol of leased work. A piece of work is a row of its feature's table; `WorkTable` describes the table and makes the SQL.
 *
 * A claim counts the attempt up and sets a deadline by the clock of the database. It is in force as long as the row has the values of
 * its fence: the holder of an older claim can neither renew, return nor end the piece. The holder moves the deadline on while it works;
 * once it has passed, another may claim the piece. A retry with back-off is a deadline, too: the time until the next attempt.
 *
 * Locks: a claim skips rows that another statement has locked. What changes several claimed rows locks them first, in the order of
 * their keys (`owned`): two statements that waited for each other's rows would be a deadlock.
 */
import { queryAll, statement, type Queryable, type QueryResultRow, type Statement } from '@releap/database';

/** Names and PostgreSQL types of columns. */
type Columns<Claim> = Partial<Readonly<Record<keyof Claim & string, string>>>;

/** @typeParam Claim identifies one attempt: the columns of the key and of the fence, as rows have them */
export interface WorkTableOptions<Claim> {
  /** First part of the names of its statements, lower case with hyphens. */
  name: string;
  table: string;
  /** Rows are locked in the order of these. */
  key: Columns<Claim>;
  /** What a claim sets and its holder must repeat: the attempt, the holder, or both. */
  fence: Columns<Claim>;
  /** Grows with each claim. By convention `attempt`. */
  attempt?: string;
  /** By convention `lease_until`. */
  deadline?: string;
  /** Condition over `w`: the piece is claimed, in time or not. */
  claimed: string;
  /** Assignments that return a claimed piece to those that wait. Without them an expired piece is claimed as it is. */
  waiting?: string;
  /** A renewal leaves rows alone that have more than this share of the time left: it would change little. Of tables with many. */
  freshShare?: number;
  /** What may be claimed, the first first, and the organization for turns: a condition and expressions over `w`. */
  queue?: { due: string; order: string; organization: string };
  /** How much may wait: quotas of the organization (tenancy/quotas), counted again at most each `recount`, a PostgreSQL interval. */
  backlog?: { quotas: readonly string[]; recount: string };
}

/** A statement that changes rows. */
interface Change {
  /** Assignments over `w`, and over the choice `p` where there is one. */
  set: string;
  /** Columns of `w`, by default the key. */
  returning?: string;
  /** What follows on the CTE `changed`, of `returning`. */
  rest?: string;
}

/** Ends the text of a choice of rows. */
export const SKIP_LOCKED = 'for update of w skip locked';

export class WorkTable<Claim extends object> {
  /** The first parameter after the claims, as `$4`. */
  readonly next: string;
  readonly #options: WorkTableOptions<Claim>;
  readonly #keys: string[];
  /** Of the key and the fence, with their types. */
  readonly #columns: [name: string, type: string | undefined][];
  readonly #deadline: string;
  readonly #renew: Statement<QueryResultRow>;
  readonly #return: Statement<QueryResultRow> | undefined;
  readonly #requeue: Statement<QueryResultRow> | undefined;

  constructor(options: WorkTableOptions<Claim>) {
    this.#options = options;
    this.#keys = Object.keys(options.key);
    this.#columns = Object.entries<string | undefined>({ ...options.key, ...options.fence });
    this.#deadline = options.deadline ?? 'lease_until';
    this.next = `$${this.#columns.length + 1}`;
    this.#renew = this.#renewal(options.freshShare);
    const { table, waiting, attempt } = options;
    if (waiting === undefined || attempt === undefined) return;
    this.#return = this.changing('return', { set: `${waiting}, ${attempt} = w.${attempt} - 1` });
    this.#requeue = this.sweeping('requeue', {
      pick: `select ${this.#key('w')} from ${table} w where ${this.expired('w')} and w.${attempt} < $1 ${SKIP_LOCKED}`,
      set: waiting,
    });
  }

  /** Condition: both aliases have the same key. */
  match(a: string, b: string): string {
    return this.#keys.map((key) => `${a}.${key} = ${b}.${key}`).join(' and ');
  }

  /** Condition: the row has the fence of this claim, and has not ended. */
  owns(row: string, claim: string): string {
    const same = Object.keys(this.#options.fence).map((column) => `${row}.${column} = ${claim}.${column}`);
    return `(${of(this.#options.claimed, row)} and ${same.join(' and ')})`;
  }

  /** Condition: claimed, and the deadline has not passed. */
  leased(row: string): string {
    return `(${of(this.#options.claimed, row)} and ${row}.${this.#deadline} > now())`;
  }

  /** Condition: claimed, and the deadline has passed. */
  expired(row: string): string {
    return `(${of(this.#options.claimed, row)} and ${row}.${this.#deadline} <= now())`;
  }

  /** Assignment: the deadline is so many milliseconds from now. @param parameter as `$4` */
  until(parameter: string): string {
    return `${this.#deadline} = ${after(parameter)}`;
  }

  /** Parameters of a statement on these claims. */
  values(claims: readonly Claim[]): unknown[] {
    return this.#columns.map(([column]) =>
      claims.map((claim) => (claim as QueryResultRow)[column] as unknown),
    );
  }

  /** The key of a claim or a row, as `renew` returns it. */
  readonly keyOf = (row: QueryResultRow): string =>
    JSON.stringify(this.#keys.map((key) => row[key] as unknown));

  /**
   * A statement that claims rows. $1 milliseconds until the deadline, $2... the parameters of the choice.
   * @param change.pick selects the key from `w`, and what `set` takes from `p`; ends with `SKIP_LOCKED`
   */
  claiming<Row extends QueryResultRow>(
    name: string,
    change: Partial<Change> & { pick: string },
  ): Statement<Row> {
    const { attempt } = this.#options;
    const set = [this.until('$1'), attempt && `${attempt} = w.${attempt} + 1`, change.set];
    const returning = this.#columns.map(([column]) => `w.${column}`).join(', ');
    return this.sweeping(name, { returning, ...change, set: set.filter(Boolean).join(', ') });
  }

  /** A statement that changes rows for which no claim is needed, such as expired ones. $1... the parameters of the choice. */
  sweeping<Row extends QueryResultRow>(name: string, change: Change & { pick: string }): Statement<Row> {
    return this.#statement(name, `picked as materialized (\n     ${change.pick}\n   )`, 'picked', change);
  }

  /**
   * A statement that changes those of the claims that are in force: the fence of everything that is written with it. $1... claims.
   * Without `set` the rows are deleted.
   */
  changing<Row extends QueryResultRow>(
    name: string,
    change: Partial<Change> & { and?: string },
  ): Statement<Row> {
    return this.#statement(name, this.#owned(change.and), 'owned', change);
  }

  /**
   * A choice of at most so many pieces that are due. Organizations take turns: the first piece of each comes before the second of any,
   * and pieces that are claimed count as turns that were taken.
   */
  turns(limit: string): string {
    const { table, queue } = this.#options;
    const { due, order, organization } = this.#needs(queue, 'queue');
    return `select ${this.#key('w')} from ${table} w join (
       select ${this.#key('w')}, row_number() over (partition by ${organization} order by ${order})
              + (select count(*) from ${table} b where ${of(organization, 'b')} = ${organization} and ${this.leased('b')}) as turn
         from ${table} w where ${due}) t on ${this.match('w', 't')}
      where ${due} order by t.turn, ${order} limit ${limit} ${SKIP_LOCKED}`;
  }

  /** SQL: takes the quotas of what is about to be added; null, or the refusal. @param amounts SQL, in the order of `backlog.quotas` */
  refusal(organization: string, ...amounts: string[]): string {
    const { quotas, recount } = this.#needs(this.#options.backlog, 'backlog');
    const taken = quotas.map((quota, at) => {
      const amount = this.#needs(amounts[at], `amount of ${quota}`);
      return `try_quota(${organization}, '${quota}', ${amount}, '${recount}')`;
    });
    return `coalesce(${taken.join(', ')})`;
  }

  /** Moves the deadlines of those that are in force. @returns their keys (`keyOf`) */
  async renew(on: Queryable, claims: readonly Claim[], ms: number): Promise<Set<string>> {
    if (claims.length === 0) return new Set();
    return new Set((await queryAll(on, this.#renew, [...this.values(claims), ms])).map(this.keyOf));
  }

  /** Returns pieces on which no work was done: the attempt does not count. */
  async giveBack(on: Queryable, claims: readonly Claim[]): Promise<void> {
    if (claims.length > 0) await queryAll(on, this.#needs(this.#return, 'waiting'), this.values(claims));
  }

  /** Returns expired pieces that have had fewer attempts than this to those that wait. @returns how many */
  async requeue(on: Queryable, attempts: number): Promise<number> {
    return (await queryAll(on, this.#needs(this.#requeue, 'waiting'), [attempts])).length;
  }

  #renewal(freshShare: number | undefined): Statement<QueryResultRow> {
    if (freshShare === undefined) return this.changing('renew', { set: this.until(this.next) });
    const isOld = `w.${this.#deadline} < ${after(this.next, freshShare)}`;
    return this.changing('renew', {
      set: this.until(this.next),
      and: isOld,
      rest: `
   select * from changed
   union all
   select ${this.#key('w')} from ${this.#claimed()} and not ${isOld}`,
    });
  }

  #key(alias: string): string {
    return this.#keys.map((key) => `${alias}.${key}`).join(', ');
  }

  /** From rows of the claims that are in force. */
  #claimed(): string {
    const arrays = this.#columns.map(([, type], at) => `$${at + 1}::${type}[]`).join(', ');
    const names = this.#columns.map(([column]) => column).join(', ');
    return `${this.#options.table} w join unnest(${arrays}) as c(${names}) on ${this.match('w', 'c')} where ${this.owns('w', 'c')}`;
  }

  #owned(and?: string): string {
    return `owned as materialized (
     select ${this.#key('w')} from ${this.#claimed()}${and === undefined ? '' : ` and ${and}`}
      order by ${this.#key('w')} for update of w
   )`;
  }

  #statement<Row extends QueryResultRow>(
    name: string,
    choice: string,
    cte: string,
    change: Partial<Change>,
  ): Statement<Row> {
    const { set, rest, returning = this.#key('w') } = change;
    const { table } = this.#options;
    const verb =
      set === undefined
        ? `delete from ${table} w using ${cte} p`
        : `update ${table} w set ${set} from ${cte} p`;
    const text = `${verb} where ${this.match('w', 'p')} returning ${returning}`;
    return statement(
      `${this.#options.name}-${name}`,
      `with ${choice}${rest === undefined ? `\n   ${text}` : `, changed as (\n     ${text}\n   )${rest}`}`,
    );
  }

  #needs<T>(given: T | undefined, what: string): T {
    if (given === undefined) throw new Error(`the work table ${this.#options.name} has no ${what}`);
    return given;
  }
}

/** A condition over `w`, over another alias. */
const of = (condition: string, alias: string): string => condition.replaceAll(/\bw\./g, `${alias}.`);

const after = (parameter: string, share = 1): string =>
  `now() + ${share === 1 ? '' : `${share} * `}${parameter}::double precision * interval '1 millisecond'`;
