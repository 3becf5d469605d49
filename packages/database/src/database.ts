import { Pool, type PoolClient } from 'pg';
import type { Logger } from 'pino';
import { connectionTo } from './connection.ts';
import { isReadOnly } from './failures.ts';

export interface DatabaseOptions {
  /** `postgres://user:password@host:port,host:port/name`, or `postgres:///name?host=/socket/folder` (database-url.ts). */
  url: string;
  log: Logger;
  /** Most connections of this process. */
  connections?: number;
  /** Longest a statement may run, in milliseconds. */
  statementTimeoutMs?: number;
  /** Longest to wait for a free or new connection, in milliseconds. */
  connectTimeoutMs?: number;
  /** Shown in pg_stat_activity. */
  applicationName?: string;
}

/** A connection pool of one process. Close it, or use `await using`. */
export interface Database extends AsyncDisposable {
  readonly url: string;
  readonly pool: Pool;
  /**
   * Runs `work` in a transaction: commits what it returns, rolls back when it throws.
   * @param begin statements without parameters that begin it, in one round trip
   */
  transaction<T>(work: (client: PoolClient) => Promise<T>, begin?: string): Promise<T>;
  close(): Promise<void>;
}

/** Opens a pool with deadlines for all waits. Connects lazily: an unreachable server fails the first use. */
export function openDatabase(options: DatabaseOptions): Database {
  const statementTimeout = options.statementTimeoutMs ?? 10_000;
  const pool = new Pool({
    ...connectionTo(options.url),
    max: options.connections ?? 16,
    connectionTimeoutMillis: options.connectTimeoutMs ?? 5_000,
    statement_timeout: statementTimeout,
    // Longer than the server's own limit: for a server that does not respond at all.
    query_timeout: statementTimeout + 2_000,
    idle_in_transaction_session_timeout: statementTimeout + 5_000,
    lock_timeout: statementTimeout,
    idleTimeoutMillis: 60_000,
    keepAlive: true,
    application_name: options.applicationName ?? 'releap',
  });
  // For as long as the connection lives: the pool listens to idle ones alone, and the server may end a connection in the same packet
  // with which it was given to its next user, who does not listen yet. That would end the process; the next statement fails anyway.
  pool.on('connect', (client) => {
    client.on('error', (error) => options.log.warn({ err: error }, 'a database connection broke'));
  });
  // The same error again, of an idle connection.
  pool.on('error', () => undefined);
  let closing: Promise<void> | undefined;
  const close = (): Promise<void> => (closing ??= pool.end());

  return {
    url: options.url,
    pool,
    close,
    [Symbol.asyncDispose]: close,
    async transaction(work, begin = 'begin') {
      const client = await pool.connect();
      try {
        await client.query(begin);
        const result = await work(client);
        await client.query('commit');
        client.release();
        return result;
      } catch (error) {
        try {
          await client.query('rollback');
          client.release(isReadOnly(error));
        } catch (broken) {
          // A connection that cannot even roll back must not go back into the pool.
          client.release(broken instanceof Error ? broken : true);
        }
        throw error;
      }
    },
  };
}
