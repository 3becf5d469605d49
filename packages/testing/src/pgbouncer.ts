/** PgBouncer in front of a PostgreSQL server of tests. */
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { open, writeFile } from 'node:fs/promises';
import { type AddressInfo, connect, createServer } from 'node:net';
import path from 'node:path';
import { until } from './eventually.ts';
import { freePort } from './ports.ts';
import { temporaryFolder } from './temporary-folder.ts';

/** It refuses to run as root. */
const NOBODY = 65_534;

export interface PgBouncer extends AsyncDisposable {
  /** Connection string through it. */
  url: string;
}

/**
 * @param databaseUrl of a server on a Unix socket, whose user needs no password
 * @param connectQuery runs in each new session
 */
export async function startPgBouncer(
  databaseUrl: string,
  settings: Record<string, string>,
  connectQuery = 'select 1',
): Promise<PgBouncer> {
  const { username, pathname, searchParams } = new URL(databaseUrl.replace('@/', '@socket/'));
  const database = pathname.slice(1);
  await using cleanup = new AsyncDisposableStack();
  // Only this process opens the socket of the server.
  const relay = createServer((client) => {
    const server = connect(path.join(searchParams.get('host') ?? '', '.s.PGSQL.5432'));
    client.pipe(server).pipe(client);
    for (const [one, peer] of [
      [client, server],
      [server, client],
    ] as const)
      one.on('error', () => peer.destroy()).on('close', () => peer.destroy());
  }).listen(0, '127.0.0.1');
  await once(relay, 'listening');
  cleanup.defer(() => void relay.close());
  const port = await freePort();
  const lines = Object.entries({
    listen_addr: '127.0.0.1',
    listen_port: port,
    unix_socket_dir: '',
    auth_type: 'any',
    ...settings,
  }).map(([name, value]) => `${name} = ${value}\n`);
  const file = path.join(await temporaryFolder('releap-pgbouncer-'), 'pgbouncer.ini');
  await writeFile(
    file,
    `[databases]\n${database} = host=127.0.0.1 port=${(relay.address() as AddressInfo).port} user=${username} connect_query='${connectQuery}'\n` +
      `[pgbouncer]\n${lines.join('')}`,
    { mode: 0o644 },
  );
  // Its user may not enter the folder: it gets the open file.
  await using config = await open(file, 'r');
  const child = spawn('pgbouncer', ['-q', '/dev/fd/3'], {
    stdio: ['ignore', 'ignore', 'pipe', config.fd],
    ...(process.getuid?.() === 0 && { uid: NOBODY, gid: NOBODY }),
  });
  let said = '';
  child.stderr?.on('data', (text: Buffer) => (said = (said + text.toString()).slice(-2_000)));
  const ended = once(child, 'exit');
  cleanup.defer(async () => {
    child.kill('SIGKILL');
    await ended;
  });
  await until(() => {
    if (child.exitCode !== null) throw new Error(`pgbouncer ended: ${said}`);
    return new Promise<boolean>((resolve) => {
      const socket = connect(port, '127.0.0.1');
      socket.on('error', () => resolve(false));
      socket.on('connect', () => {
        resolve(true);
        socket.destroy();
      });
    });
  });
  const owned = cleanup.move();
  return {
    url: `postgres://${username}@127.0.0.1:${port}/${database}`,
    [Symbol.asyncDispose]: () => owned.disposeAsync(),
  };
}
