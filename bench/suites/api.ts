/** Requests a second of the REST API with the VM side left out, next to a bare server that asks the same database. */
import { randomBytes } from 'node:crypto';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { parseSandboxId } from '@releap/contract';
import { startPostgres } from '@releap/database';
import { Client } from 'pg';
import { pino } from 'pino';
import { Server } from '../api/server.ts';
import { SilentRunner } from '../api/silent-runner.ts';
import { CONNECTIONS, type Load, type LoadResult, runLoad, writeScript } from '../api/wrk.ts';
import { type Row, summaryRows, type SuiteResult, type Verdict } from '../report.ts';
import { interleave, type Samples, summarize } from '../statistics.ts';
import { type Suite, suiteFolder } from '../suite.ts';

const ROUND_SECONDS = 1;
const WARM_UP = 3;
const SANDBOXES = 500;
const DATABASE_CONNECTIONS = 16;

const GET = 'GET /vms/:id';
const POST = 'POST /vms, no host ready: written and answered';
const PLACED = 'POST /vms, placed on a host and told to it';
const BARE_GET = 'bare server, the same select';
const BARE_POST = 'bare server, the same insert';

export const api: Suite = async ({ samples, progress, signal }) => {
  await using folder = await suiteFolder();
  const log = pino({ level: 'silent' });
  progress('starting PostgreSQL, the control plane and a bare server');
  await using postgres = await startPostgres({ dir: join(folder.path, 'postgres'), log });
  const databaseUrl = postgres.url();
  const token = randomBytes(32).toString('hex');
  const connections = String(DATABASE_CONNECTIONS);
  await using control = await Server.start('control-server.ts', [databaseUrl, token, connections]);
  const { url, internalUrl = '', apiKey = '', projectId = '' } = control.ready;
  await using bare = await Server.start('bare-server.ts', [databaseUrl, projectId, connections]);
  await using runner = await SilentRunner.connect(internalUrl, token);
  await using database = await connectDatabase(databaseUrl);

  const headers = { authorization: `Bearer ${apiKey}`, 'content-type': 'application/json' };
  const body = JSON.stringify({ image: 'busybox' });
  const ids: string[] = [];
  for (let i = 0; i < SANDBOXES; i++) {
    const answer = await fetch(`${url}/vms`, { method: 'POST', headers, body });
    if (!answer.ok) throw new Error(`POST /vms answered ${answer.status}: ${await answer.text()}`);
    ids.push(((await answer.json()) as { vm_id: string }).vm_id);
  }
  const script = async (name: string, load: Load): Promise<() => Promise<LoadResult>> => {
    const path = join(folder.path, `${name}.lua`);
    await writeScript(path, load);
    return () => runLoad(path, load.url, ROUND_SECONDS);
  };
  const get = { method: 'GET' as const, headers: { authorization: headers.authorization } };
  const uuids = ids.map((id) => parseSandboxId(id)?.uuid ?? '');
  const post = { method: 'POST' as const, headers, body, paths: ['/vms'] };
  const loads = {
    [GET]: await script('get', { ...get, url, paths: ids.map((id) => `/vms/${id}`) }),
    [BARE_GET]: await script('bare-get', {
      ...get,
      url: bare.ready.url,
      paths: uuids.map((id) => `/vms/${id}`),
    }),
    [POST]: await script('post', { ...post, url }),
    [PLACED]: await script('post', { ...post, url }),
    [BARE_POST]: await script('bare-post', { ...post, url: bare.ready.url }),
  };

  const latencies = new Map<string, LoadResult[]>();
  let counts = false;
  const measure = async (name: keyof typeof loads): Promise<number> => {
    const result = await loads[name]();
    if (counts) latencies.set(name, [...(latencies.get(name) ?? []), result]);
    return result.requestsPerSecond;
  };
  /** Every round writes into empty tables: no contender pays for the rows of another. */
  const intoEmpty = async (name: keyof typeof loads): Promise<number> => {
    await database.query('truncate sandboxes, jobs cascade');
    return await measure(name);
  };
  const options = (what: string): Parameters<typeof interleave>[1] => ({
    rounds: samples,
    warmUp: WARM_UP,
    signal,
    onRound: (round) => {
      counts = round >= 0;
      progress(counts ? `${what}, round ${round + 1} of ${samples}` : `${what}, warming up`);
    },
  });
  const reads = await interleave(
    { [GET]: () => measure(GET), [BARE_GET]: () => measure(BARE_GET) },
    options(GET),
  );
  const writes = await interleave(
    {
      [POST]: () => intoEmpty(POST),
      [BARE_POST]: () => intoEmpty(BARE_POST),
      [PLACED]: async () => {
        runner.ready = true;
        await sleep(100);
        try {
          return await intoEmpty(PLACED);
        } finally {
          runner.ready = false;
          // What was accepted last is placed; then the tables may go.
          await sleep(500);
        }
      },
    },
    options('POST /vms'),
  );
  const taken: Samples = { ...reads, ...writes };
  const p50 = (name: string): number => summarize(taken[name] ?? []).p50;
  const share = (name: string, base: string): Verdict => ({
    what: `${name}: requests a second relative to the bare server`,
    value: p50(name) / p50(base),
    goal: 'at least 0.6',
    met: p50(name) >= 0.6 * p50(base),
  });
  const result: SuiteResult = {
    title: 'Requests a second, with the VM side left out',
    goal:
      `\`wrk\` with ${CONNECTIONS} connections, ${ROUND_SECONDS} s a round. At least 0.6 of what a bare node:http server ` +
      'in a process of its own does with the same prepared statement on the same PostgreSQL.',
    unit: 'requests/s',
    rows: summaryRows(taken).map((row) => withLatency(row, latencies.get(row.what) ?? [])),
    verdicts: [share(GET, BARE_GET), share(POST, BARE_POST)],
    notes: [
      `placed on a host as well, which takes more statements than the insert that the bare server does, ` +
        `it is ${(p50(PLACED) / p50(BARE_POST)).toFixed(2)} of the bare server (no goal)`,
      'the last two columns are medians of what `wrk` says of the latency of a round, in ms',
    ],
    samples: taken,
  };
  return [result];
};

function withLatency(row: Row, results: LoadResult[]): Row {
  const median = (pick: (result: LoadResult) => number): number => summarize(results.map(pick)).p50;
  return {
    ...row,
    values: {
      ...row.values,
      'latency p50': median(({ p50 }) => p50),
      'latency p99': median(({ p99 }) => p99),
    },
  };
}

async function connectDatabase(connectionString: string): Promise<Client & AsyncDisposable> {
  const client = new Client({ connectionString });
  await client.connect();
  return Object.assign(client, { [Symbol.asyncDispose]: () => client.end() });
}
