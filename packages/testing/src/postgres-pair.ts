/** A PostgreSQL server with a synchronous standby: what a commit acknowledges is on both. */
import { appendFile, chmod, cp, mkdtemp, rm, writeFile } from 'node:fs/promises';
import path from 'node:path';
import { type PostgresInstance, startPostgres } from '@releap/database';
import { Client } from 'pg';
import { until } from './eventually.ts';
import { quiet } from './logging.ts';
import { BINARIES, execute, fastFolder } from './postgres-instance.ts';
import { postgresPrefix } from './postgres-leftovers.ts';
import { childrenOf } from './processes.ts';

export interface PostgresPair extends AsyncDisposable {
  /** Connection string with the hosts of both. */
  url: string;
  /** Kills the primary with SIGKILL, or freezes all of its processes, as a machine does that is cut off. */
  losePrimary(how: 'killed' | 'frozen'): Promise<void>;
  /** Makes the standby the primary. */
  promote(): Promise<void>;
}

export async function startPostgresPair(): Promise<PostgresPair> {
  const root = await mkdtemp(path.join(await fastFolder(), postgresPrefix()));
  await using cleanup = new AsyncDisposableStack();
  cleanup.defer(() => rm(root, { recursive: true, force: true }));
  const start = async (name: string): Promise<PostgresInstance> => {
    const instance = await startPostgres({ dir: path.join(root, name), log: quiet, binariesDir: BINARIES });
    cleanup.use(instance);
    return instance;
  };
  const primary = await start('primary');
  // The standby's process reaches the socket of the primary: only its owner opens that.
  for (const folder of [root, path.join(root, 'primary')]) await chmod(folder, 0o711);
  await copyAsStandby(primary, path.join(root, 'primary', 'data'), path.join(root, 'standby', 'data'));
  const standby = await start('standby');
  await execute(
    primary.url('postgres'),
    `alter system set synchronous_standby_names = 'standby'`,
    'select pg_reload_conf()',
  );
  await until(() => isSynchronous(primary));
  const frozen: number[] = [];
  cleanup.defer(() => {
    for (const pid of frozen) process.kill(pid, 'SIGKILL');
  });
  const owned = cleanup.move();
  // The standby first: it must not be taken for the primary.
  const hosts = [standby, primary].map(({ connection }) => encodeURIComponent(connection.host)).join(',');
  return {
    url: `postgres://${primary.connection.user}@/${primary.connection.database}?host=${hosts}`,
    async losePrimary(how) {
      if (how === 'killed') {
        process.kill(primary.pid, 'SIGKILL');
        await primary.exited;
        return;
      }
      // The postmaster first: it starts no others. Frozen ones would outlive it.
      process.kill(primary.pid, 'SIGSTOP');
      const others = await childrenOf(primary.pid);
      for (const pid of others) process.kill(pid, 'SIGSTOP');
      frozen.push(...others, primary.pid);
    },
    promote: () => execute(standby.url('postgres'), 'select pg_promote(true, 60)'),
    [Symbol.asyncDispose]: () => owned.disposeAsync(),
  };
}

/** By the interface of base backups (PostgreSQL documentation, "Making a Base Backup Using the Low Level API"). */
async function copyAsStandby({ connection }: PostgresInstance, from: string, to: string): Promise<void> {
  const client = new Client({ ...connection, database: 'postgres' });
  client.on('error', () => undefined);
  await client.connect();
  try {
    await client.query(`select pg_backup_start('standby', fast => true)`);
    const left = ['postmaster.pid', 'postmaster.opts'].map((name) => path.join(from, name));
    await cp(from, to, { recursive: true, filter: (file) => !left.includes(file) });
    const { rows } = await client.query<{ labelfile: string }>('select labelfile from pg_backup_stop(false)');
    await writeFile(path.join(to, 'backup_label'), rows[0]?.labelfile ?? '');
  } finally {
    await client.end();
  }
  await writeFile(path.join(to, 'standby.signal'), '');
  const { host, port, user } = connection;
  await appendFile(
    path.join(to, 'postgresql.auto.conf'),
    `primary_conninfo = 'host=${host} port=${port} user=${user} application_name=standby'\n`,
  );
}

async function isSynchronous({ connection }: PostgresInstance): Promise<boolean> {
  const client = new Client({ ...connection, database: 'postgres' });
  await client.connect();
  try {
    const { rows } = await client.query(`select 1 from pg_stat_replication where sync_state = 'sync'`);
    return rows.length === 1;
  } finally {
    await client.end();
  }
}
