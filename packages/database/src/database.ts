import { Pool, type PoolClient, type PoolConfig } from 'pg';
import type { Logger } from 'pino';
import { connectionTo } from './connection.ts';
import { isReadOnly } from './failures.ts';
import type { Queryable } from './statement.ts';

export interface DatabaseOptions {
  /** `postgres://user:password@host:port,host:port/name`, or `postgres:///name?host=/socket/folder` (database-url.ts). */
  url: string;
  log: Logger;
  /** Most connections of this process. */
  connections?: number;
  /** Longest a statement may run, in milliseconds. */
  statementTimeoutMs?: number;
  /** Shown in pg_stat_activity. */
  applicationName?: string;
}

export interface BatchOptions {
  /** As for a transaction. */
  begin?: string;
  /**
   * What the batch has locked is released before its commit is durable, so that others do not wait for the disk. They see what it has
   * written then, but cannot commit durably before it: the write-ahead log is written in order. So only what they tell without a commit
   * may be undone by a crash of PostgreSQL.
   */
  unlocksBeforeFlush?: boolean;
}

const WITHOUT_FLUSH = 'set local synchronous_commit = off';
/** The smallest transaction that is durable in its turn: an empty record of the log, which others are told to ignore. */
const FLUSH = "select pg_logical_emit_message(true, 'releap', '')";

/** A connection pool of one process. Close it, or use `await using`. */
export interface Database extends AsyncDisposable {
  readonly url: string;
  readonly pool: Pool;
  /**
   * Runs `work` in a transaction: commits what it returns, rolls back when it throws.
   * @param begin statements without parameters that begin it, in one round trip
   */
  transaction<T>(work: (client: PoolClient) => Promise<T>, begin?: string): Promise<T>;
  /**
   * Runs statements as one transaction, all of which are sent at once: PostgreSQL does not wait for this process between them, so that
   * what they lock is locked only while it works on them. A statement that must keep the others from being committed raises an error.
   * @param work sends all statements before it returns
   * @returns what they have returned, once the commit is durable
   * @throws the first error, after the rollback
   */
  batch<T extends readonly Promise<unknown>[]>(
    work: (on: Queryable) => readonly [...T],
    options?: BatchOptions,
  ): Promise<{ -readonly [K in keyof T]: Awaited<T[K]> }>;
  close(): Promise<void>;
}

/** Opens a pool with deadlines for all waits. Connects lazily: an unreachable server fails the first use. */
export function openDatabase(options: DatabaseOptions): Database {
  const statementTimeout = options.statementTimeoutMs ?? 10_000;
  // A statement is sent although the one before is not answered yet: see `batch`.
  const config: PoolConfig & { pipeline: true } = {
    pipeline: true,
    ...connectionTo(options.url),
    max: options.connections ?? 16,
    // For a free or a new one.
    connectionTimeoutMillis: 5_000,
    statement_timeout: statementTimeout,
    // Longer than the server's own limit: for a server that does not respond at all.
    query_timeout: statementTimeout + 2_000,
    idle_in_transaction_session_timeout: statementTimeout + 5_000,
    lock_timeout: statementTimeout,
    idleTimeoutMillis: 60_000,
    keepAlive: true,
    application_name: options.applicationName ?? 'releap',
  };
  const pool = new Pool(config);
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
    async batch<T extends readonly Promise<unknown>[]>(
      work: (on: Queryable) => readonly [...T],
      { begin = 'begin', unlocksBeforeFlush = false }: BatchOptions = {},
    ) {
      const client = await pool.connect();
      let isSent = false;
      const query = (...statement: Parameters<PoolClient['query']>): unknown => {
        if (isSent) throw new Error('a statement of a batch was not sent together with the others');
        return client.query(...statement);
      };
      const begun = client.query(unlocksBeforeFlush ? `${begin}; ${WITHOUT_FLUSH}` : begin);
      const statements = work({ query } as Queryable);
      isSent = true;
      const [committed, ...others] = await Promise.allSettled([
        client.query('commit'),
        begun,
        ...statements,
        unlocksBeforeFlush ? client.query(FLUSH) : undefined,
      ]);
      const failed = [...others, committed].find((one) => one.status === 'rejected') as
        | PromiseRejectedResult
        | undefined;
      // After an error PostgreSQL answers `commit` with the rollback. A connection that fails to do that is not used again.
      client.release(committed.status === 'rejected' || isReadOnly(failed?.reason));
      if (failed !== undefined) throw failed.reason;
      return await Promise.all(statements);
    },
  };
}
