/** When the named statements of this process, and the transactions around them, began and ended. */
import { Client } from 'pg';

interface Statement {
  name: string;
  /** Of the connection, which runs one statement at a time. */
  connection: number;
  /** Milliseconds. */
  began: number;
  ended: number;
}

type Query = (this: Client, ...args: unknown[]) => unknown;

/** @returns a function that returns what has ended since the last call */
export function recordStatements(): () => Statement[] {
  let recorded: Statement[] = [];
  const connections = new WeakMap<Client, number>();
  let last = 0;
  const prototype = Client.prototype as unknown as { query: Query };
  const { query } = prototype;
  prototype.query = function (this: Client, ...args: unknown[]) {
    const [config] = args as [string | { name?: string } | undefined];
    const name = typeof config === 'string' ? config : config?.name;
    if (name === undefined) return query.apply(this, args);
    const connection = connections.get(this) ?? ++last;
    connections.set(this, connection);
    const began = performance.now();
    const end = (): void => void recorded.push({ name, connection, began, ended: performance.now() });
    // A pool passes a callback, a transaction awaits the result.
    const callback = args.at(-1);
    if (typeof callback === 'function') {
      args[args.length - 1] = (...results: unknown[]) => {
        end();
        callback(...results);
      };
      return query.apply(this, args);
    }
    const result = query.apply(this, args);
    if (result instanceof Promise) result.then(end, end);
    return result;
  };
  return () => {
    const taken = recorded;
    recorded = [];
    return taken;
  };
}

export interface Placement {
  /** Of a round, from its first statement to its last commit. Milliseconds. */
  rounds: number[];
  /** For how long a placement made others wait: see `EXCLUDES`. Milliseconds. */
  locked: number[];
}

/**
 * The statement after which a placement excludes others until its commit: other placements, starts, resumes and forks of the whole
 * installation up to version 1.2 (the scheduler lock), and those of the same hosts since (the rows of the hosts that it has written).
 */
const EXCLUDES = ['schedule-lock', 'sandbox-place-free'];
/** The first statement of a round, up to version 1.2 and since. */
const FIRST = ['schedule-any-ready', 'schedule-hosts'];
/** After the last commit of a round. */
const AFTER = 'schedule-pending-ids';

/** What the rounds that placed something took. */
export function placements(statements: readonly Statement[]): Placement {
  const rounds: number[] = [];
  const locked: number[] = [];
  let began: number | undefined;
  let places = false;
  const since = new Map<number, number>();
  const placing = new Set<number>();
  for (const { name, connection, began: at, ended } of statements) {
    if (FIRST.includes(name) && began === undefined) [began, places] = [at, false];
    if (EXCLUDES.includes(name) && !since.has(connection)) since.set(connection, ended);
    if (name === 'sandbox-place-free') {
      places = true;
      placing.add(connection);
    }
    if (name === 'commit' || name === 'rollback') {
      const from = since.get(connection);
      if (from !== undefined && placing.has(connection)) locked.push(ended - from);
      since.delete(connection);
      placing.delete(connection);
    }
    if (name === AFTER && began !== undefined) {
      if (places) rounds.push(at - began);
      began = undefined;
    }
  }
  return { rounds, locked };
}
