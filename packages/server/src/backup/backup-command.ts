/** `releap backup`. */
import { randomUUID } from 'node:crypto';
import { Readable } from 'node:stream';
import { openStore, REFERENCED_BLOBS, type ReferencedBlob } from '@releap/control/backup';
import { dumpDatabase, type DatabaseDump } from '@releap/database/backup';
import type { Logger } from 'pino';
import { type Config, ConfigError, withoutPassword } from '../config/config.ts';
import { type Variable, VARIABLES } from '../config/variables.ts';
import { commandLog } from './command-log.ts';
import { parsed } from './arguments.ts';
import { FORMAT, type Manifest } from './format.ts';
import { homeFiles } from './home-files.ts';
import { openHomeDatabase } from './home-database.ts';
import { newKey, passphraseOf } from './passphrase.ts';
import { assertRestored } from './restore-marker.ts';
import { type ArchiveWriter, writeArchive } from './write-archive.ts';
import { VERSION } from './version.ts';

const LINE_FEED = 0x0a;

interface BackupOptions {
  target: string;
  passphrase: string | undefined;
  withStore: boolean;
}

async function readOptions(config: Config, args: readonly string[]): Promise<BackupOptions | undefined> {
  const { values, positionals } = parsed({
    args: [...args],
    allowPositionals: true,
    options: {
      'passphrase-file': { type: 'string' },
      plain: { type: 'boolean' },
      'with-store': { type: 'boolean' },
    },
  });
  const [target] = positionals;
  if (target === undefined || positionals.length !== 1) return undefined;
  const passphrase =
    values.plain === true ? undefined : await passphraseOf(config, values['passphrase-file']);
  if (passphrase === undefined && values.plain !== true)
    throw new ConfigError([
      'a backup has the keys of all secrets: encrypt it with --passphrase-file FILE or RELEAP_BACKUP_PASSPHRASE, or write it as it is with --plain',
    ]);
  return { target, passphrase, withStore: values['with-store'] === true };
}

/** @returns the exit code; undefined for wrong arguments */
export async function backup(config: Config, args: readonly string[]): Promise<number | undefined> {
  const options = await readOptions(config, args);
  if (options === undefined) return undefined;
  const log = commandLog(config);
  await assertRestored(config);
  await using database = await openHomeDatabase(config, log);
  await using dump = await dumpDatabase(database.url, log);
  // The begin of the transaction: the snapshot has everything that was committed before.
  const [snapshot] = await dump.query<{ deployment: string; now: string }>(
    `select d.id as deployment, to_char(now() at time zone 'utc', 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"') as now from deployment d`,
  );
  if (snapshot === undefined) throw new Error('the table deployment has no row');
  const { key, encryption = null } = options.passphrase === undefined ? {} : await newKey(options.passphrase);
  const header = {
    format: FORMAT,
    id: randomUUID(),
    created_at: snapshot.now,
    version: VERSION,
    schema: dump.migrations.at(-1)?.id ?? 0,
    deployment_id: snapshot.deployment,
    encryption,
  };
  let manifest: Manifest | undefined;
  const bytes = await writeArchive(options.target, header, key, async (archive) => {
    manifest = await writeContent(archive, config, dump, snapshot.deployment, options.withStore, log);
    return manifest;
  });
  if (manifest === undefined) throw new Error('the backup has no manifest');
  process.stderr.write(summary(options, header, manifest, bytes));
  return 0;
}

async function writeContent(
  archive: ArchiveWriter,
  config: Config,
  dump: DatabaseDump,
  deployment: string,
  withStore: boolean,
  log: Logger,
): Promise<Manifest> {
  const tables: Manifest['tables'] = [];
  for (const { name, columns, partitions } of dump.tables) {
    let rows = 0;
    const counted = async function* (): AsyncGenerator<Uint8Array> {
      for await (const chunk of dump.rows({ name, columns, partitions })) {
        rows += linesIn(chunk);
        yield chunk;
      }
    };
    await archive.stream(`database/${name}`, counted());
    tables.push({ name, columns: [...columns], partitions: [...partitions], rows });
  }
  const sequences = await dump.sequences();
  const files = await homeFiles(config);
  for (const { name, content } of files) await archive.stream(`files/${name}`, Readable.from([content]));
  const blobs = await dump.query<ReferencedBlob>(REFERENCED_BLOBS);
  const included = withStore && (await writeBlobs(archive, config, deployment, blobs, log));
  return {
    migrations: dump.migrations.map((one) => ({ ...one })),
    tables,
    sequences,
    files: files.map(({ name }) => name),
    store: {
      type: config.store.type,
      included,
      blobs: blobs.length,
      bytes: blobs.reduce((sum, one) => sum + Number(one.bytes), 0),
    },
    settings: settingsOf(process.env),
  };
}

/** A row of COPY's text format is a line; line feeds in values are escaped. */
function linesIn(chunk: Uint8Array): number {
  let lines = 0;
  for (let at = chunk.indexOf(LINE_FEED); at >= 0; at = chunk.indexOf(LINE_FEED, at + 1)) lines += 1;
  return lines;
}

async function writeBlobs(
  archive: ArchiveWriter,
  config: Config,
  deployment: string,
  blobs: readonly ReferencedBlob[],
  log: Logger,
): Promise<true> {
  const store = await openStore(config.store, deployment);
  try {
    for (const { digest } of blobs) {
      const blob = await store.get(digest);
      // The restore says by name what it belongs to.
      if (blob === undefined) log.warn({ digest }, 'the store lacks a blob that the database names');
      else await archive.stream(`store/${digest}`, blob.content as AsyncIterable<Buffer>);
    }
    return true;
  } finally {
    store.close?.();
  }
}

/** For the operator: a restored service needs the same ones. */
function settingsOf(env: Readonly<Record<string, string | undefined>>): Record<string, string> {
  const settings: Record<string, string> = {};
  for (const [name, variable] of Object.entries<Variable>(VARIABLES)) {
    const value = env[name];
    if (value !== undefined && value !== '')
      settings[name] = variable.secret === true ? '***' : withoutPassword(value);
  }
  return settings;
}

function summary(
  { target, passphrase }: BackupOptions,
  { id, created_at: at, schema }: { id: string; created_at: string; schema: number },
  { tables, files, store }: Manifest,
  bytes: number | undefined,
): string {
  const rows = tables.reduce((sum, table) => sum + table.rows, 0);
  const where = store.type === 's3' ? 'the bucket of RELEAP_STORE' : 'the folder of RELEAP_STORE';
  const blobs = `${store.blobs} blobs (${store.bytes} bytes)`;
  return `backup ${id} of ${at}, ${passphrase === undefined ? 'NOT encrypted' : 'encrypted'}: ${bytes === undefined ? 'standard output' : `${target}, ${bytes} bytes`}
  database: ${tables.length} tables, ${rows} rows, schema ${schema}
  files: ${files.length}
  store: ${store.included ? `${blobs}, in this backup` : store.blobs === 0 ? 'empty' : `${blobs} that the database names, NOT in this backup: back up ${where} too, or use --with-store`}
`;
}
