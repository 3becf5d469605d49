/** `releap migrate`. */
import { assertOwnSession, migrate, readMigrations } from '@releap/database';
import { pino } from 'pino';
import { type Config, ConfigError } from './config/config.ts';
import { loggerOptions } from './log/logger-options.ts';

/**
 * Brings the schema to this version, and prints what was applied.
 * @returns the exit code
 * @throws ConfigError without a database; what `migrate` throws
 */
export async function migrateDatabase({
  databaseUrl: url,
  log: { level },
}: Pick<Config, 'databaseUrl' | 'log'>): Promise<number> {
  if (url === undefined) throw new ConfigError(['DATABASE_URL is missing: releap migrate needs it']);
  const migrations = await readMigrations();
  // Standard output says what was done; what it waits for goes to standard error.
  const log = pino(loggerOptions(level), pino.destination({ fd: 2, sync: true }));
  await assertOwnSession(url);
  const applied = await migrate({ url, log, migrations });
  for (const { id, name } of migrations)
    if (applied.includes(id)) process.stdout.write(`applied migration ${id} (${name})\n`);
  process.stdout.write(`the database is up to date: this version knows ${migrations.length} migrations\n`);
  return 0;
}
