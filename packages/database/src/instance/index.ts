export { lockFile, type FileLock } from './file-lock.ts';
export { SpaceReserve } from './space-reserve.ts';
export {
  instanceUrl,
  startPostgres,
  stopLeftoverPostgres,
  type PostgresInstance,
  type PostgresOptions,
} from './start-postgres.ts';
