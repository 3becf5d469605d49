import { NoWritableHostError } from './connection.ts';

/** Classifies PostgreSQL's errors by SQLSTATE (PostgreSQL documentation, appendix A). */

function code(error: unknown): string | undefined {
  if (typeof error !== 'object' || error === null || !('code' in error)) return undefined;
  return typeof error.code === 'string' ? error.code : undefined;
}

/** A row with this key exists already. `constraint` restricts the check to one constraint or index. */
export function isUniqueViolation(error: unknown, constraint?: string): boolean {
  if (code(error) !== '23505') return false;
  return constraint === undefined || (error as { constraint?: string }).constraint === constraint;
}

/** A referenced row does not exist. */
export function isForeignKeyViolation(error: unknown): boolean {
  return code(error) === '23503';
}

/** SQLSTATE `read_only_sql_transaction`: the host does not accept writes (any more). */
const READ_ONLY = '25006';

/** The connection leads to a host that does not accept writes: another one may. */
export function isReadOnly(error: unknown): boolean {
  return code(error) === READ_ONLY;
}

/**
 * The database was unreachable, or did not respond in time: the outcome of the statement is unknown, and a later attempt
 * may succeed.
 */
export function isDatabaseUnavailable(error: unknown): boolean {
  if (error instanceof NoWritableHostError) return true;
  const sqlstate = code(error);
  if (sqlstate !== undefined) {
    // 08 connection (08P01, a protocol violation, is a bug), 53 resources, 57P0x shutdown, 57014 statement timeout, 40 serialization or deadlock, 55P03 lock timeout
    if (sqlstate === '08P01') return false;
    if (/^(08|53|40)/.test(sqlstate) || sqlstate.startsWith('57P0')) return true;
    if (sqlstate === '57014' || sqlstate === '55P03' || sqlstate === READ_ONLY) return true;
    // A migration has changed the columns of a prepared statement.
    if (sqlstate === '0A000')
      return /cached plan must not change result type/.test(error instanceof Error ? error.message : '');
    if (
      [
        'ECONNREFUSED',
        'ECONNRESET',
        'EHOSTUNREACH',
        'ENETUNREACH',
        'ENOENT',
        'EPIPE',
        'ETIMEDOUT',
        'EACCES',
        'ENOTFOUND',
        'EAI_AGAIN',
      ].includes(sqlstate)
    ) {
      return true;
    }
  }
  const message = error instanceof Error ? error.message : '';
  return /timeout exceeded when trying to connect|timeout expired|Query read timeout|Connection terminated|Client was closed|Cannot use a pool after calling end|not queryable/.test(
    message,
  );
}
