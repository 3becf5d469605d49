/** When the named statements of this process began, in the order in which they ended, and how long placements held the rows of hosts. */
import { Client } from 'pg';

interface Statement {
  name: string;
  /** Milliseconds. */
  began: number;
}

export interface Recorded {
  statements: Statement[];
  /** See `PLACES`. Milliseconds, by the clock of PostgreSQL. */
  held: number[];
}

type Query = (this: Client, ...args: unknown[]) => unknown;

/** From its end to the end of its transaction others wait that need the same hosts: it has written the rows of these. */
const PLACES = 'sandbox-place-free';
/** Sent with the statement before it, so that PostgreSQL answers it as soon as that one has ended. */
const CLOCK = {
  name: 'bench-clock',
  text: 'select extract(epoch from clock_timestamp())::double precision * 1000 as at',
};

/** @returns a function that returns what has ended since the last call */
export function recordStatements(): () => Recorded {
  let recorded: Recorded = { statements: [], held: [] };
  const placed = new WeakMap<Client, Promise<number>>();
  const prototype = Client.prototype as unknown as { query: Query };
  const { query } = prototype;
  const clock = async (client: Client): Promise<number> =>
    ((await query.call(client, CLOCK)) as { rows: [{ at: number }] }).rows[0].at;
  prototype.query = function (this: Client, ...args: unknown[]) {
    const [config] = args as [string | { name?: string } | undefined];
    const name = typeof config === 'string' ? config : config?.name;
    if (name === undefined) return query.apply(this, args);
    const began = performance.now();
    const end = (): void => void recorded.statements.push({ name, began });
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
    if (name === PLACES) placed.set(this, clock(this));
    const since = placed.get(this);
    if (since !== undefined && (name === 'commit' || name === 'rollback')) {
      placed.delete(this);
      // The statement has failed: it has locked nothing.
      Promise.all([since, clock(this)]).then(
        ([from, to]) => recorded.held.push(to - from),
        () => undefined,
      );
    }
    return result;
  };
  return () => {
    const taken = recorded;
    recorded = { statements: [], held: [] };
    return taken;
  };
}

export interface Placements {
  /** Of the rounds that placed something, from the first statement to the last commit. Milliseconds. */
  rounds: number[];
  held: number[];
}

const FIRST = 'schedule-hosts';
/** After the last commit of a round. */
const AFTER = 'schedule-pending-ids';

export function placements({ statements, held }: Recorded): Placements {
  const rounds: number[] = [];
  let began: number | undefined;
  let places = false;
  for (const { name, began: at } of statements) {
    if (name === FIRST && began === undefined) [began, places] = [at, false];
    if (name === PLACES) places = true;
    if (name === AFTER && began !== undefined) {
      if (places) rounds.push(at - began);
      began = undefined;
    }
  }
  return { rounds, held };
}
