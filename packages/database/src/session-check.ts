/**
 * Refuses a connection pooler that lends one session of PostgreSQL to several clients (docs/decisions/0065). Control servers prepare
 * named statements, listen, hold advisory locks and rely on the time limits of their session.
 */
import { randomInt } from 'node:crypto';
import type { Client } from 'pg';
import { newClient } from './connection.ts';

const DEADLINE_MS = 10_000;
/** A time limit that no other client has, to recognize the session by, in milliseconds: 17 minutes and more. */
const MARK_MIN_MS = 1_000_000;
const MARK_MAX_MS = 2_000_000_000;
/** How often another client takes a session meanwhile: a pooler may return the same one by chance. */
const ROUNDS = 3;

/** `DATABASE_URL` leads to a pooler that control servers cannot use. */
export class PoolerError extends Error {
  constructor(found: string, options?: ErrorOptions) {
    super(
      `DATABASE_URL leads to a connection pooler (${found}). Control servers need sessions of their own, for prepared statements, ` +
        'LISTEN, advisory locks and time limits: name PostgreSQL itself in DATABASE_URL. Each server has a pool of its own, ' +
        'which RELEAP_DATABASE_CONNECTIONS bounds',
      options,
    );
  }
}

interface Session {
  pid: number;
  limit: string;
}

/**
 * @param mark only for tests
 * @throws PoolerError, or the error of an unreachable server
 */
export async function assertOwnSession(
  url: string,
  mark = randomInt(MARK_MIN_MS, MARK_MAX_MS),
): Promise<void> {
  await using first = await open(url, mark);
  const found = await sessionOf(first.client);
  if (found.limit !== String(mark)) throw new PoolerError('it ignores start-up parameters');
  // A proxy that hands sessions through as they are has the same process id as PostgreSQL.
  if ((first.client as Client & { processID: number }).processID === found.pid) return;
  await using second = await open(url, mark + 1);
  for (let round = 0; round < ROUNDS; round++) {
    try {
      await second.client.query('begin');
      await sessionOf(second.client);
      const { pid, limit } = await sessionOf(first.client);
      if (pid !== found.pid || limit !== found.limit) throw new PoolerError('in transaction mode');
      await second.client.query('rollback');
    } catch (error) {
      if ((error as Error).message !== 'Query read timeout') throw error;
      // A pool of a single session, which the second client holds.
      throw new PoolerError('in transaction mode, with too few sessions', { cause: error });
    }
  }
}

async function sessionOf(client: Client): Promise<Session> {
  const { rows } = await client.query<Session>(
    `select pg_backend_pid() as pid, (select setting from pg_settings where name = 'statement_timeout') as limit`,
  );
  const [session] = rows;
  if (session === undefined) throw new Error('PostgreSQL returned no row');
  return session;
}

async function open(url: string, statementTimeoutMs: number): Promise<AsyncDisposable & { client: Client }> {
  const client = newClient(url, {
    connectionTimeoutMillis: DEADLINE_MS,
    query_timeout: DEADLINE_MS,
    statement_timeout: statementTimeoutMs,
    application_name: 'releap-check',
  });
  // Without a listener an error between queries would end the process; the next query reports it.
  client.on('error', () => undefined);
  try {
    await client.connect();
  } catch (error) {
    // PgBouncer, which takes only those that its `ignore_startup_parameters` lists.
    if (!/unsupported startup parameter/.test((error as Error).message)) throw error;
    throw new PoolerError(`it says: ${(error as Error).message}`, { cause: error });
  }
  return {
    client,
    async [Symbol.asyncDispose]() {
      await client.end().catch(() => undefined);
    },
  };
}
