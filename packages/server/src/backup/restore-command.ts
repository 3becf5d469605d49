/** `releap restore`. */
import { mkdir } from 'node:fs/promises';
import path from 'node:path';
import { buffer } from 'node:stream/consumers';
import { disconnectHosts, openStore, type BlobStore } from '@releap/control/backup';
import { lockFile, migrate, openDatabase } from '@releap/database';
import { assertKnownSchema, DatabaseLoad, migrateTo, restoredFrom } from '@releap/database/backup';
import type { Logger } from 'pino';
import { type Config, ConfigError } from '../config/config.ts';
import { commandLog } from './command-log.ts';
import { parsed } from './arguments.ts';
import type { Header, Manifest } from './format.ts';
import { pathOf, writeHomeFile } from './home-files.ts';
import { type HomeDatabase, startHomePostgres } from './home-database.ts';
import { keyOf, passphraseOf } from './passphrase.ts';
import { type ArchiveReader, openArchive, readHeader } from './read-archive.ts';
import { readMarker, removeMarker, writeMarker } from './restore-marker.ts';
import { restoreReport } from './restore-report.ts';
import { assertEmptyDatabase, movesAside, occupiedPaths, setAside } from './restore-target.ts';

/** Processes that use a home or its database. */
const LOCKS = ['lock', 'run/control.lock', 'run/gateway.lock'];

/** Statements that read all of a large database. */
const STATEMENT_MS = 10 * 60_000;

interface RestoreOptions {
  file: string;
  passphrase: string | undefined;
  force: boolean;
}

async function readOptions(config: Config, args: readonly string[]): Promise<RestoreOptions | undefined> {
  const { values, positionals } = parsed({
    args: [...args],
    allowPositionals: true,
    options: { 'passphrase-file': { type: 'string' }, force: { type: 'boolean' } },
  });
  const [file] = positionals;
  if (file === undefined || positionals.length !== 1) return undefined;
  const passphrase = await passphraseOf(config, values['passphrase-file']);
  return { file: path.resolve(file), passphrase, force: values.force === true };
}

/**
 * All of the backup is checked before anything is changed. A restore that was interrupted continues when it is run again.
 * @returns the exit code; undefined for wrong arguments
 */
export async function restore(config: Config, args: readonly string[]): Promise<number | undefined> {
  const options = await readOptions(config, args);
  if (options === undefined) return undefined;
  const log = commandLog(config);
  const archive = await openBackup(options);
  const { header, manifest } = archive;

  await mkdir(path.join(config.home, 'run'), { recursive: true, mode: 0o700 });
  await using _locks = await lockHome(config.home);
  await prepareTarget(config, options, archive, log);

  await using database = await openTarget(config, log);
  const { url } = database;
  await restoreDatabase(url, archive, log);
  await restoreFiles(config, archive);
  await migrate({ url, log });
  await using pool = openDatabase({ url, log, connections: 1, statementTimeoutMs: STATEMENT_MS });
  await disconnectHosts(pool.pool);
  const store = await openStore(config.store, header.deployment_id);
  try {
    if (manifest.store.included) await restoreBlobs(store, archive);
    // Read first: the report is worth a repetition of the restore.
    const report = await restoreReport({ database: pool, store, header, manifest });
    await removeMarker(config.home);
    process.stdout.write(report);
  } finally {
    store.close?.();
  }
  return 0;
}

async function openBackup({ file, passphrase }: RestoreOptions): Promise<ArchiveReader> {
  const { header } = await readHeader(file);
  await assertKnownSchema(header.schema);
  if (header.encryption === null) return await openArchive(file, undefined);
  if (passphrase === undefined)
    throw new ConfigError([
      `${file} is encrypted: its passphrase must be given with --passphrase-file FILE or RELEAP_BACKUP_PASSPHRASE`,
    ]);
  return await openArchive(file, await keyOf(passphrase, header.encryption));
}

async function lockHome(home: string): Promise<AsyncDisposable> {
  await using locks = new AsyncDisposableStack();
  for (const name of LOCKS) {
    const lock = await lockFile(path.join(home, name), `a restore, process ${process.pid}`);
    if ('heldBy' in lock)
      throw new Error(`RELEAP_HOME=${home} is in use (${lock.heldBy}): stop the service before a restore`);
    locks.use(lock);
  }
  return locks.move();
}

/** Refuses to overwrite anything, unless an earlier attempt with the same backup has written it. */
async function prepareTarget(
  config: Config,
  { file, force }: RestoreOptions,
  { header, manifest }: { header: Header; manifest: Manifest },
  log: Logger,
): Promise<void> {
  const { home, databaseUrl } = config;
  const marker = await readMarker(home);
  if (marker !== undefined) {
    if (marker.backup === header.id) return await setAside(config, marker.moves, log);
    throw new Error(
      `a restore of another backup (${marker.file}, ${marker.backup}) has begun in ${home} and not ended: run that one again, or use an empty RELEAP_HOME`,
    );
  }
  if (databaseUrl !== undefined) await assertEmptyDatabase(databaseUrl, log);
  const occupied = await occupiedPaths(config, manifest.files);
  if (occupied.length > 0 && !force)
    throw new Error(
      `the target of the restore is not empty:\n${occupied.map((one) => `  ${one}`).join('\n')}\n` +
        'Use an empty RELEAP_HOME, or --force, which moves these aside (it removes nothing)',
    );
  const now = new Date();
  const moves = movesAside(config, occupied, now);
  await writeMarker(home, { backup: header.id, file, started_at: now.toISOString(), moves });
  await setAside(config, moves, log);
}

async function openTarget(config: Config, log: Logger): Promise<HomeDatabase> {
  if (config.databaseUrl === undefined) return await startHomePostgres(config, log);
  return { url: config.databaseUrl, [Symbol.asyncDispose]: () => Promise.resolve() };
}

/** All rows come with one commit: an earlier attempt has loaded all of them, or none. */
async function restoreDatabase(url: string, archive: ArchiveReader, log: Logger): Promise<void> {
  const { header, manifest } = archive;
  const found = await restoredFrom(url, log);
  if (found !== 'nothing') {
    if (found.backup === header.id) return;
    throw new Error(
      'the database has the rows of a service, and not of this backup: nothing of it was changed',
    );
  }
  await migrateTo(url, manifest.migrations, log);
  await using load = await DatabaseLoad.begin(url, log);
  const tables = new Map(manifest.tables.map((table) => [`database/${table.name}`, table]));
  for await (const { name, content } of archive.streams()) {
    const table = tables.get(name);
    if (table === undefined) continue;
    if (!load.has(table.name)) {
      process.stderr.write(`left out the table ${table.name}: it is not one of the service\n`);
      continue;
    }
    const rows = await load.table(table, content);
    if (rows !== table.rows)
      throw new Error(`table ${table.name}: ${rows} rows instead of ${table.rows} were restored`);
  }
  await load.commit(manifest.sequences, header.id);
}

async function restoreFiles(config: Config, archive: ArchiveReader): Promise<void> {
  const prefix = 'files/';
  for await (const { name, content } of archive.streams()) {
    if (!name.startsWith(prefix)) continue;
    const file = pathOf(name.slice(prefix.length), config);
    await writeHomeFile(file, await buffer(content));
  }
}

/** Content is checked against its digest; what is there already stays. */
async function restoreBlobs(store: BlobStore, archive: ArchiveReader): Promise<void> {
  const prefix = 'store/';
  for await (const { name, content } of archive.streams()) {
    if (!name.startsWith(prefix)) continue;
    const digest = name.slice(prefix.length);
    if ((await store.stat(digest)) === undefined)
      await store.put(content, { digest, maxBytes: Number.MAX_SAFE_INTEGER });
  }
}
