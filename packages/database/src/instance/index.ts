export { lockFile, type FileLock } from './file-lock.ts';
export { startPostgres, type PostgresInstance, type PostgresOptions } from './start-postgres.ts';
