export { openDatabase, type Database, type DatabaseOptions } from './database.ts';
export { isDatabaseUnavailable, isForeignKeyViolation, isUniqueViolation } from './failures.ts';
export {
  instanceUrl,
  lockFile,
  SpaceReserve,
  startPostgres,
  stopLeftoverPostgres,
  type FileLock,
  type PostgresInstance,
  type PostgresOptions,
} from './instance/index.ts';
export {
  FUNCTION_COLUMNS,
  FUNCTION_VERSION_COLUMNS,
  type FunctionRow,
  type FunctionVersionRow,
} from './function-rows.ts';
export { listen, type Listener, type ListenerOptions } from './listener.ts';
export { LOCKS, RELEAP_LOCK_SPACE } from './locks.ts';
export { migrate, type MigrateOptions } from './migrate.ts';
export { prepareDatabase, type PrepareOptions } from './prepare.ts';
export { assertOwnSession, PoolerError } from './session-check.ts';
export { parseMigration, readMigrations, type Migration } from './migrations.ts';
export { createRowReader, type RowReader } from './row-reader.ts';
export * from './schema.ts';
export {
  queryAll,
  queryOne,
  declaredStatements,
  statement,
  type Queryable,
  type QueryResultRow,
  type Statement,
} from './statement.ts';
