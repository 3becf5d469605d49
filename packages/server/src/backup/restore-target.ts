/** Where a restore goes: it must be empty, so that nothing is overwritten. */
import { lstat, mkdir, rename } from 'node:fs/promises';
import path from 'node:path';
import { stopLeftoverPostgres } from '@releap/database';
import { contentOf } from '@releap/database/backup';
import type { Logger } from 'pino';
import type { Config } from '../config/config.ts';
import { pathOf } from './home-files.ts';
import { postgresFolder } from './home-database.ts';

/** Files and folders that are there and that a restore would write. */
export async function occupiedPaths(config: Config, names: readonly string[]): Promise<string[]> {
  const paths = names.map((name) => pathOf(name, config));
  if (config.databaseUrl === undefined) paths.push(postgresFolder(config.home));
  const found = [];
  for (const one of paths) if (await exists(one)) found.push(one);
  return found;
}

/** @throws when the external database has tables: those are the operator's to remove */
export async function assertEmptyDatabase(url: string, log: Logger): Promise<void> {
  const names = await contentOf(url, log);
  if (names.length === 0) return;
  throw new Error(
    `the database of DATABASE_URL is not empty (${names.length} tables, views and sequences: ${names.slice(0, 5).join(', ')}…): ` +
      'create an empty one and name it in DATABASE_URL. A restore removes nothing, also not with --force',
  );
}

export interface Move {
  from: string;
  to: string;
}

/** Into a new folder of the home; what is outside of the home gets another name. */
export function movesAside({ home }: Pick<Config, 'home'>, paths: readonly string[], now: Date): Move[] {
  const stamp = now.toISOString().replaceAll(/[-:]|\.\d+/g, '');
  return paths.map((from) => {
    const below = path.relative(home, from);
    const isOutside = below.startsWith('..');
    return {
      from,
      to: isOutside ? `${from}.before-restore-${stamp}` : path.join(home, `before-restore-${stamp}`, below),
    };
  });
}

/** Those that an earlier attempt has made are made: what is in their place is its own. */
export async function setAside({ home }: Config, moves: readonly Move[], log: Logger): Promise<void> {
  for (const { from, to } of moves) {
    if (await exists(to)) continue;
    // One of a service that was killed may still run.
    if (from === postgresFolder(home)) await stopLeftoverPostgres(from, log);
    await mkdir(path.dirname(to), { recursive: true, mode: 0o700 });
    await rename(from, to);
    process.stderr.write(`moved ${from} to ${to}\n`);
  }
}

const exists = async (file: string): Promise<boolean> =>
  (await lstat(file).catch(() => undefined)) !== undefined;
