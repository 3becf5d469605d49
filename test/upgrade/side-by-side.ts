/**
 * `node test/upgrade/side-by-side.ts OLD_CHECKOUT`: a control server of an older checkout serves under load on a fresh
 * database, while one of this checkout migrates that database and starts beside it; then the old one is stopped. Ends
 * with 1 when a request is answered with anything but its answer, or 503 with Retry-After. Not part of `npm test`: it
 * needs a git worktree of the older version, with its node_modules.
 */
import { spawn } from 'node:child_process';
import { createInterface } from 'node:readline';
import { setTimeout as sleep } from 'node:timers/promises';
import { createDatabase, startTestPostgres } from '@releap/testing/postgres-instance';

const [old] = process.argv.slice(2);
if (old === undefined) throw new Error('usage: node test/upgrade/side-by-side.ts OLD_CHECKOUT');

interface Server {
  url: string;
  key: string | undefined;
  stop(): Promise<void>;
}

const START = `
  import { startControl, ensureBootstrap } from '@releap/control';
  import { openDatabase } from '@releap/database';
  import { pino } from 'pino';
  const databaseUrl = process.env.SIDE_DATABASE;
  const log = pino({ level: 'silent' });
  const control = await startControl({ databaseUrl, databaseConnections: 8, listen: { host: '127.0.0.1', port: 0 },
    tokens: { operator: () => [], gateway: () => [], join: () => [] }, store: { type: 'folder', path: '/nonexistent' },
    region: { id: 'here', name: 'Here', toolboxProxyUrl: 'http://127.0.0.1:1/' }, builtinImages: ['busybox'], log });
  // A second bootstrap would revoke the key of the first.
  let apiKey;
  if (process.env.SIDE_FIRST === '1') {
    const database = openDatabase({ url: databaseUrl, log, connections: 1 });
    ({ apiKey } = await ensureBootstrap(database, { keyName: 'default' }));
    await database.close();
  }
  console.log(JSON.stringify({ url: control.url, key: apiKey }));
  process.stdin.resume().once('end', async () => { await control.close(); process.exit(0); });
`;

async function start(checkout: string, databaseUrl: string, first: boolean): Promise<Server> {
  const child = spawn(process.execPath, ['--input-type=module', '-e', START], {
    cwd: `${checkout}/packages/control`,
    env: { ...process.env, SIDE_DATABASE: databaseUrl, SIDE_FIRST: first ? '1' : '0' },
    stdio: ['pipe', 'pipe', 'inherit'],
  });
  const exited = new Promise<void>((resolve) => child.once('exit', () => resolve()));
  for await (const line of createInterface(child.stdout)) {
    const { url, key } = JSON.parse(line) as { url: string; key?: string };
    return {
      url,
      key,
      async stop() {
        child.stdin.end();
        await exited;
      },
    };
  }
  throw new Error(`the control server of ${checkout} did not start`);
}

const counts = new Map<string, number>();
const wrong: string[] = [];
async function ask(
  server: Server,
  key: string,
  method: string,
  path: string,
  body?: object,
): Promise<unknown> {
  const response = await fetch(server.url + path, {
    method,
    headers: {
      authorization: `Bearer ${key}`,
      ...(body === undefined ? {} : { 'content-type': 'application/json' }),
    },
    ...(body === undefined ? {} : { body: JSON.stringify(body) }),
  });
  const text = await response.text();
  const shown = `${response.status}`;
  counts.set(shown, (counts.get(shown) ?? 0) + 1);
  const retry = response.status === 503 && response.headers.has('retry-after');
  if (response.status !== 200 && !retry)
    wrong.push(`${method} ${path}: ${response.status} ${text.slice(0, 200)}`);
  return response.status === 200 ? JSON.parse(text) : undefined;
}

async function load(server: Server, key: string, over: AbortSignal): Promise<void> {
  while (!over.aborted) {
    const made = (await ask(server, key, 'POST', '/vms', { image: 'busybox', env: { A: 'b' } })) as
      | { vm_id: string }
      | undefined;
    await ask(server, key, 'GET', '/vms?limit=5');
    if (made !== undefined) {
      await ask(server, key, 'GET', `/vms/${made.vm_id}`);
      await ask(server, key, 'DELETE', `/vms/${made.vm_id}`);
    }
    await ask(server, key, 'GET', '/images');
  }
}

await using postgres = await startTestPostgres();
const databaseUrl = await createDatabase(postgres.url('postgres'), 'side_by_side', { empty: true });
const before = await start(old, databaseUrl, true);
const { key } = before;
if (key === undefined) throw new Error('the old server gave no key');
const over = new AbortController();
const loads = [load(before, key, over.signal), load(before, key, over.signal)];
await sleep(3_000);
console.log('old server alone', Object.fromEntries(counts));
const after = await start(process.cwd(), databaseUrl, false);
console.log('new server started', Object.fromEntries(counts));
const beside = new AbortController();
const more = [load(after, key, beside.signal)];
await sleep(5_000);
over.abort();
await Promise.all(loads);
await before.stop();
await sleep(1_000);
beside.abort();
await Promise.all(more);
await after.stop();
console.log('all answers', Object.fromEntries(counts));
for (const line of new Set(wrong)) console.error(`WRONG ${line}`);
process.exitCode = wrong.length === 0 ? 0 : 1;
