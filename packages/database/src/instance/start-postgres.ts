import type { ChildProcess } from 'node:child_process';
import { chmod, chown, mkdir, realpath } from 'node:fs/promises';
import path from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { Client } from 'pg';
import type { Logger } from 'pino';
import { chooseBinaries, type Binaries } from './binaries.ts';
import { createDataFolder, ensureOwner, folderMajor, PRIVATE_DATABASE, PRIVATE_USER } from './data-folder.ts';
import { type FileLock, lockFile } from './file-lock.ts';
import { clearLeftover } from './leftover.ts';
import { collect, ended } from './output.ts';
import { viewOf, type Folders } from './process.ts';
import { reachableSocketFolder, SOCKET_PORT } from './socket-folder.ts';

/** Crash recovery replays at most `max_wal_size` of log. */
const START_DEADLINE_MS = 120_000;
/** Worker processes of a killed server exit within moments; until then no new server can start. */
const ORPHAN_DEADLINE_MS = 15_000;
const FAST_SHUTDOWN_MS = 20_000;
const IMMEDIATE_SHUTDOWN_MS = 5_000;

/** Settings that the folder's postgresql.conf cannot override. */
const FIXED_SETTINGS = [
  'listen_addresses=',
  `port=${SOCKET_PORT}`,
  'unix_socket_permissions=0700',
  'fsync=on',
  'full_page_writes=on',
  'synchronous_commit=on',
  'logging_collector=off',
  'log_destination=stderr',
];

export interface PostgresOptions {
  /** Folder of the instance: `data`, `socket` and `lock` are in it. Created if absent. */
  dir: string;
  log: Logger;
  /** Folder for a copy of the npm binaries if they cannot be used in place. Default: below `dir`. */
  binariesDir?: string;
  /** Use these instead of searching. */
  binaries?: Binaries;
}

/** A running private PostgreSQL, reachable over a Unix socket only. */
export interface PostgresInstance extends AsyncDisposable {
  /** Connection string of the default database, or of another one. */
  url(database?: string): string;
  /** The same as separate parameters for `pg` and libpq. */
  connection: { host: string; port: number; user: string; database: string };
  version: string;
  pid: number;
  /** Resolves with the reason when the server ends, expected or not. Never rejects. */
  exited: Promise<string>;
  /** Fast shutdown: open transactions are rolled back, everything acknowledged is on disk. Idempotent. */
  stop(): Promise<void>;
}

/**
 * Starts the private PostgreSQL of a folder; the first time, creates its files. Recovers from a crash by itself,
 * stops the server of a killed supervisor, and refuses if a live one owns the folder.
 */
export async function startPostgres(options: PostgresOptions): Promise<PostgresInstance> {
  await mkdir(options.dir, { recursive: true, mode: 0o700 });
  const dir = await realpath(options.dir);
  const lock = await lockInstance(dir);
  const folders = { data: path.join(dir, 'data'), socket: path.join(dir, 'socket') };
  try {
    const major = await folderMajor(folders.data);
    const binaries =
      options.binaries ?? (await chooseBinaries(major, options.binariesDir ?? path.join(dir, 'binaries')));
    const view = viewOf(binaries, folders);
    await mkdir(folders.socket, { recursive: true });
    await chmod(folders.socket, 0o700);
    if (view.owner !== undefined) await chown(folders.socket, view.owner, view.owner);
    if (major === undefined) {
      options.log.info({ version: binaries.version }, 'creating the database files');
      await createDataFolder(binaries, folders);
    }
    await ensureOwner(folders.data, view.owner);
    await clearLeftover(folders, options.log);
    const socket = await reachableSocketFolder(folders.socket);
    try {
      const server = await bootPatiently(binaries, folders, options.log);
      return await open(server, binaries, socket, lock, options.log);
    } catch (error) {
      await socket.remove();
      throw error;
    }
  } catch (error) {
    await lock.release();
    throw error;
  }
}

/** Stops the server of a folder that outlived its supervisor. @throws when a live supervisor owns the folder */
export async function stopLeftoverPostgres(dir: string, log: Logger): Promise<void> {
  const folders = { data: path.join(dir, 'data'), socket: path.join(dir, 'socket') };
  await mkdir(folders.socket, { recursive: true });
  await using _lock = await lockInstance(dir);
  await clearLeftover(folders, log);
}

/** Connection string of the private PostgreSQL of a folder that another process of this machine has started. */
export async function instanceUrl(dir: string): Promise<string> {
  const socket = await reachableSocketFolder(path.join(await realpath(dir), 'socket'));
  return urlOf(socket.path, PRIVATE_DATABASE);
}

const urlOf = (socket: string, database: string): string =>
  `postgres://${PRIVATE_USER}@/${encodeURIComponent(database)}?host=${encodeURIComponent(socket)}`;

async function lockInstance(dir: string): Promise<FileLock> {
  const lock = await lockFile(path.join(dir, 'lock'), `process ${process.pid}`);
  if ('heldBy' in lock)
    throw new Error(`the PostgreSQL in ${dir} belongs to another server that is running: ${lock.heldBy}`);
  return lock;
}

interface Server {
  child: ChildProcess;
  pid: number;
  exited: Promise<string>;
}

async function bootPatiently(binaries: Binaries, folders: Folders, log: Logger): Promise<Server> {
  for (const end = Date.now() + ORPHAN_DEADLINE_MS; ; await sleep(200)) {
    try {
      return await boot(binaries, folders, log);
    } catch (error) {
      const orphans = error instanceof Error && error.message.includes('pre-existing shared memory block');
      if (!orphans || Date.now() > end) throw error;
    }
  }
}

async function boot(binaries: Binaries, folders: Folders, log: Logger): Promise<Server> {
  const view = viewOf(binaries, folders);
  const settings = [...FIXED_SETTINGS, `unix_socket_directories=${view.socket}`].flatMap((setting) => [
    '-c',
    setting,
  ]);
  const child = view.start('postgres', ['-D', view.data, ...settings]);
  const ready = Promise.withResolvers<'ready'>();
  const output = collect(child, (line) => {
    // A standby is ready to accept "read-only connections".
    if (/database system is ready to accept (read-only )?connections/.test(line)) ready.resolve('ready');
    report(line, log);
  });
  const exited = ended(child);
  const timer = new AbortController();
  const late = sleep(START_DEADLINE_MS, 'late' as const, { signal: timer.signal, ref: false }).catch(
    () => 'late' as const,
  );
  const first = await Promise.race([ready.promise, exited, late]);
  timer.abort();
  if (first === 'ready' && child.pid !== undefined) return { child, pid: child.pid, exited };
  if (first === 'late') {
    child.kill('SIGQUIT');
    await exited;
  }
  const how = first === 'late' ? `was not ready within ${START_DEADLINE_MS / 1000} s` : `ended with ${first}`;
  throw new Error(`PostgreSQL ${binaries.version} on ${folders.data} ${how}: ${output.text().trim()}`);
}

/** PostgreSQL's severities; LOG is informational. */
function report(line: string, log: Logger): void {
  const [, severity, text] = /^(?:.*?\s)?(LOG|WARNING|ERROR|FATAL|PANIC):\s+(.*)$/.exec(line) ?? [];
  if (severity === undefined) return void (line.trim() !== '' && log.debug(line.trim()));
  if (severity === 'LOG') log.debug(text);
  else if (severity === 'WARNING' || severity === 'ERROR') log.warn(text);
  else log.error(text);
}

async function open(
  server: Server,
  binaries: Binaries,
  socket: { path: string; remove(): Promise<void> },
  lock: { release(): Promise<void> },
  log: Logger,
): Promise<PostgresInstance> {
  const connection = { host: socket.path, port: SOCKET_PORT, user: PRIVATE_USER, database: PRIVATE_DATABASE };
  let stopping: Promise<void> | undefined;
  const stop = (): Promise<void> =>
    (stopping ??= (async () => {
      await shutDown(server, log);
      await socket.remove();
      await lock.release();
    })());
  try {
    await ensureDatabase(connection);
  } catch (error) {
    await stop();
    throw error;
  }
  return {
    connection,
    url: (database = PRIVATE_DATABASE) => urlOf(socket.path, database),
    version: binaries.version,
    pid: server.pid,
    exited: server.exited,
    stop,
    [Symbol.asyncDispose]: stop,
  };
}

async function ensureDatabase(connection: {
  host: string;
  port: number;
  user: string;
  database: string;
}): Promise<void> {
  const client = new Client({
    ...connection,
    database: 'postgres',
    connectionTimeoutMillis: 10_000,
    query_timeout: 30_000,
  });
  // An unhandled error between queries would end the process; the next query reports it.
  client.on('error', () => undefined);
  await client.connect();
  try {
    const found = await client.query('select 1 from pg_database where datname = $1', [connection.database]);
    if (found.rowCount === 0)
      await client.query(`create database ${client.escapeIdentifier(connection.database)}`);
  } finally {
    await client.end();
  }
}

async function shutDown(server: Server, log: Logger): Promise<void> {
  const within = (ms: number): Promise<boolean> => {
    const timer = new AbortController();
    return Promise.race([
      server.exited.then(() => true),
      sleep(ms, false, { signal: timer.signal }).catch(() => false),
    ]).finally(() => timer.abort());
  };
  server.child.kill('SIGINT');
  if (await within(FAST_SHUTDOWN_MS)) return;
  log.warn(
    'PostgreSQL does not shut down; asking for an immediate shutdown (it will recover at the next start)',
  );
  server.child.kill('SIGQUIT');
  if (await within(IMMEDIATE_SHUTDOWN_MS)) return;
  server.child.kill('SIGKILL');
  await server.exited;
}
