export type { DumpedSequence, DumpedTable } from './catalog.ts';
export { type AppliedMigration, type DatabaseDump, dumpDatabase } from './dump.ts';
export {
  assertKnownSchema,
  contentOf,
  DatabaseLoad,
  migrateTo,
  restoredFrom,
} from './load.ts';
