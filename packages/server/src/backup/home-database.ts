import { stat } from 'node:fs/promises';
import path from 'node:path';
import { instanceUrl, lockFile, startPostgres } from '@releap/database';
import type { Logger } from 'pino';
import type { Config } from '../config/config.ts';
import { BUILD_DIR } from '../paths.ts';

export interface HomeDatabase extends AsyncDisposable {
  url: string;
}

export const postgresFolder = (home: string): string => path.join(home, 'postgres');

/** The database of a home, also while its service runs: the external one, or the private one, which is started if it does not run. */
export async function openHomeDatabase(config: Config, log: Logger): Promise<HomeDatabase> {
  if (config.databaseUrl !== undefined)
    return { url: config.databaseUrl, [Symbol.asyncDispose]: () => Promise.resolve() };
  const folder = postgresFolder(config.home);
  // Starting PostgreSQL would create one.
  if ((await stat(path.join(folder, 'data')).catch(() => undefined)) === undefined)
    throw new Error(
      `RELEAP_HOME=${config.home} has no database, and DATABASE_URL names none: there is nothing to back up`,
    );
  // Taken by a service that runs. The start of one that comes while this one has it waits for no one: it says who has it.
  const lock = await lockFile(path.join(config.home, 'lock'), `a backup, process ${process.pid}`);
  if ('heldBy' in lock)
    return {
      url: await instanceUrl(folder),
      [Symbol.asyncDispose]: () => Promise.resolve(),
    };
  try {
    const postgres = await startHomePostgres(config, log);
    return {
      url: postgres.url,
      async [Symbol.asyncDispose]() {
        await postgres[Symbol.asyncDispose]();
        await lock.release();
      },
    };
  } catch (error) {
    await lock.release();
    throw error;
  }
}

/** The caller holds the lock of the home. */
export async function startHomePostgres({ home }: Config, log: Logger): Promise<HomeDatabase> {
  const dir = postgresFolder(home);
  const postgres = await startPostgres({ dir, binariesDir: path.join(BUILD_DIR, 'postgresql'), log });
  return { url: postgres.url(), [Symbol.asyncDispose]: () => postgres.stop() };
}
