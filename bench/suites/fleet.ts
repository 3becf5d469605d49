/**
 * The control plane of a live fleet: 100,000 sandboxes on 100 hosts, of 10,000 organizations. The hosts are connected and silent.
 * `RELEAP_BENCH_FLEET=0.01` takes a hundredth of it, to see that everything works.
 */
import { randomBytes } from 'node:crypto';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { parseSandboxId } from '@releap/contract';
import { mintApiKey } from '@releap/control';
import { startPostgres, openDatabase, type Database } from '@releap/database';
import { pino } from 'pino';
import { Server } from '../api/server.ts';
import { SilentRunner } from '../api/silent-runner.ts';
import { runLoad, writeScript } from '../api/wrk.ts';
import { fillFleet } from '../fleet/fill.ts';
import type { Placements } from '../fleet/statement-times.ts';
import { cpuSeconds, familyCpuSeconds, memoryOf, until } from '../processes.ts';
import { summaryRows, type SuiteResult, type Verdict } from '../report.ts';
import { type Samples, summarize, timed } from '../statistics.ts';
import { suiteFolder, type Suite } from '../suite.ts';

const SCALE = Number(process.env['RELEAP_BENCH_FLEET'] ?? 1);
const HOSTS = Math.ceil(100 * Math.max(SCALE, 0.1));
const SANDBOXES = Math.ceil(100_000 * SCALE);
const ORGANIZATIONS = Math.ceil(10_000 * SCALE);
const CONNECTIONS = '16';
const IDLE_MS = SCALE < 1 ? 10_000 : 60_000;
const ROUND_SECONDS = 2;
/** Creates that one placement round of an otherwise idle server places. */
const TOGETHER = 20;
/** Organizations that create at the same time. */
const CREATING = 64;
/** Sandboxes that are stopped, and started while others are created. */
const STARTS = 20;
/** Once the code and the pages of the database are warm. */
const WARM_UP = 1;

const GET = 'GET /vms/:id';
const BARE_GET = 'bare server, the same select';
const POST = 'POST /vms, no host ready';
const BARE_POST = 'bare server, the same insert';
/** Connections that release and allocate the cores of one sandbox each, as fast as they are answered. */
const MOVERS = 8;
const ONE_HOST = `sandboxes moved, ${MOVERS} of one host at a time`;
const MANY_HOSTS = `sandboxes moved, ${MOVERS} of different hosts at a time`;

export const fleet: Suite = async ({ samples, progress, signal }) => {
  await using folder = await suiteFolder();
  const log = pino({ level: 'silent' });
  await using postgres = await startPostgres({ dir: join(folder.path, 'postgres'), log });
  const token = randomBytes(32).toString('hex');
  await using control = await Server.start('../fleet/control-server.ts', [
    postgres.url(),
    token,
    CONNECTIONS,
  ]);
  const { url, internalUrl = '', apiKey = '', projectId = '' } = control.ready;
  await using bare = await Server.start('bare-server.ts', [postgres.url(), projectId, CONNECTIONS]);
  await using database = openDatabase({
    url: postgres.url(),
    log,
    connections: MOVERS,
    statementTimeoutMs: 600_000,
  });
  const { pool } = database;
  await using runners = new AsyncDisposableStack();
  progress(`connecting ${HOSTS} hosts`);
  const hosts: SilentRunner[] = [];
  for (let n = 0; n < HOSTS; n++) hosts.push(runners.use(await SilentRunner.connect(internalUrl, token)));
  const { rows: known } = await pool.query<{ id: string }>('select id from runners order by id');
  const ids = known.map(({ id }) => id);
  await fillFleet(database, { organizations: ORGANIZATIONS, sandboxes: SANDBOXES }, ids, progress);
  const accept = async (ready: boolean): Promise<void> => {
    for (const host of hosts) host.ready = ready;
    await until('the hosts are ready, or are not', async () => {
      const { rows } = await pool.query<{ n: number }>(
        'select count(*)::integer as n from runners where ready',
      );
      return rows[0]?.n === (ready ? HOSTS : 0);
    });
  };
  await accept(true);

  progress('an idle server');
  const idle = await idleCost(control, postgres.pid);

  const headers = { authorization: `Bearer ${apiKey}`, 'content-type': 'application/json' };
  const body = JSON.stringify({ image: 'busybox' });
  const made = await Promise.all(Array.from({ length: 50 }, () => create(url, headers, body)));
  await allPlaced(database);
  await stopSome(database, made);
  const load = async (name: string, to: string, method: 'GET' | 'POST', paths: string[], keys?: string[]) => {
    const path = join(folder.path, `${name}.lua`);
    await writeScript(path, {
      url: to,
      method,
      headers,
      paths,
      ...(keys === undefined ? {} : { authorizations: keys.map((key) => `Bearer ${key}`) }),
      ...(method === 'POST' ? { body } : {}),
    });
    return async () => (await runLoad(path, to, ROUND_SECONDS)).requestsPerSecond;
  };
  const bareId = (id: string): string => `/vms/${uuidOf(id)}`;
  const loads = {
    [GET]: await load(
      'get',
      url,
      'GET',
      made.map((id) => `/vms/${id}`),
    ),
    [BARE_GET]: await load('bare-get', bare.ready.url, 'GET', made.map(bareId)),
    [POST]: await load('post', url, 'POST', ['/vms']),
    [BARE_POST]: await load('bare-post', bare.ready.url, 'POST', ['/vms']),
  };
  // Those of one organization commit one after another, so that its quotas hold.
  const { rows: projects } = await pool.query<{ id: string }>(
    'select id from projects where id <> $1 limit $2',
    [projectId, CREATING],
  );
  const keys = await Promise.all(projects.map(async ({ id }) => (await mintApiKey(pool, id)).token));
  const placed = await load('post-many', url, 'POST', ['/vms'], keys);

  const moving = {
    [ONE_HOST]: await runningOn(database, ids.slice(0, 1)),
    [MANY_HOSTS]: await runningOn(database, ids.slice(0, MOVERS)),
  };

  const requests: Samples = {};
  const note = (into: Samples, name: string, value: number): void => void (into[name] ??= []).push(value);
  const times: Samples = {};
  let creates = 0;
  for (let round = -WARM_UP; round < samples; round++) {
    signal.throwIfAborted();
    progress(round < 0 ? 'warming up' : `round ${round + 1} of ${samples}`);
    const counts = round >= 0;
    const keep = async (name: keyof typeof loads): Promise<void> => {
      const value = await loads[name]();
      if (counts) note(requests, name, value);
    };
    await keep(GET);
    await keep(BARE_GET);
    await accept(false);
    await keep(POST);
    await removeCreated(database);
    await keep(BARE_POST);
    await removeCreated(database);
    await accept(true);

    for (const [name, together] of Object.entries(moving)) {
      const value = await movesASecond(database, together);
      if (counts) note(requests, name, value);
      // What ends as it began changes no sum.
      if (!(await setTrigger(database, 'disable'))) continue;
      const without = await movesASecond(database, together);
      await setTrigger(database, 'enable');
      if (counts) note(requests, `${name}, sums not kept`, without);
    }
    // Rounds of an otherwise idle server.
    await control.ask<Placements>('forget');
    for (let n = 0; n < 10; n++) {
      await Promise.all(Array.from({ length: TOGETHER }, () => create(url, headers, body)));
      await allPlaced(database);
    }
    const quiet = await control.ask<Placements>('placements');
    // Creates that come as fast as they are answered, and starts among them.
    const stopped = await stopSome(database, made.slice(0, STARTS));
    const [before] = [await countPlaced(database)];
    const [starts, seconds] = [
      startAll(url, headers, stopped),
      timed(async () => {
        await placed();
        await allPlaced(database);
      }),
    ];
    const [latencies, took] = [await starts, (await seconds) / 1000];
    const busy = await control.ask<Placements>('placements');
    if (counts) {
      for (const value of quiet.rounds) note(times, `a round, ${TOGETHER} creates together`, value);
      for (const value of quiet.held) note(times, `others wait for it, ${TOGETHER} creates together`, value);
      for (const value of busy.rounds) note(times, 'a round, creates as fast as they are answered', value);
      for (const value of busy.held)
        note(times, 'others wait for it, creates as fast as they are answered', value);
      for (const value of latencies) note(times, 'POST /vms/:id/start meanwhile', value);
      note(requests, 'creates placed', ((await countPlaced(database)) - before) / took);
      creates++;
    }
    await removeCreated(database);
    await pool.query('vacuum sandboxes, jobs');
  }
  const p50 = (name: string): number => summarize(requests[name] ?? []).p50;
  const share = (name: string, base: string): Verdict => ({
    what: `${name}: requests a second relative to the bare server`,
    value: p50(name) / p50(base),
    goal: 'at least 0.6',
    met: p50(name) >= 0.6 * p50(base),
  });
  const atMost = (what: string, value: number, most: number, unit: string): Verdict => ({
    what: `${what}, ${unit}`,
    value,
    goal: `at most ${most}`,
    met: value <= most,
  });
  const p99 = (name: string): number => summarize(times[name] ?? []).p99;
  const title = (what: string): string => `A live fleet: ${what}`;
  const size = `${SANDBOXES} held sandboxes on ${HOSTS} connected hosts, of ${ORGANIZATIONS} organizations`;
  const results: SuiteResult[] = [
    {
      title: title('placement'),
      goal: `With ${size}: a round takes at most 15 ms (p99), and others wait for it for at most 3 ms.`,
      unit: 'ms',
      rows: summaryRows(times),
      verdicts: [
        atMost('a round (p99)', p99(`a round, ${TOGETHER} creates together`), 15, 'ms'),
        atMost('others wait for it (p99)', p99(`others wait for it, ${TOGETHER} creates together`), 3, 'ms'),
      ],
      samples: times,
    },
    {
      title: title('requests'),
      goal: `The same ${size}. \`wrk\`, ${ROUND_SECONDS} s a round. At least 300 creates a second are placed, and at least 0.6 of the bare server's requests are answered.`,
      unit: 'requests/s',
      rows: summaryRows(requests),
      verdicts: [
        share(GET, BARE_GET),
        share(POST, BARE_POST),
        {
          what: 'creates placed a second',
          value: p50('creates placed'),
          goal: 'at least 300',
          met: creates > 0 && p50('creates placed') >= 300,
        },
      ],
      samples: requests,
    },
    {
      title: title('an idle server'),
      goal: `The same ${size}, without requests: at most 5 % of a core, and 120 MB.`,
      unit: 'a minute',
      rows: [
        { what: 'control server', values: idle.control },
        { what: 'PostgreSQL', values: idle.postgres },
      ],
      verdicts: [
        atMost('processor of the control server', idle.control['% of a core'] ?? 0, 5, '% of a core'),
        atMost('memory of the control server', idle.control['MiB'] ?? 0, 120, 'MiB'),
      ],
    },
  ];
  return results;
};

type Cost = Record<string, number>;

async function idleCost(control: Server, postgresPid: number): Promise<{ control: Cost; postgres: Cost }> {
  const before = [await cpuSeconds([control.pid]), await familyCpuSeconds(postgresPid)] as const;
  const seconds = (await timed(() => sleep(IDLE_MS))) / 1000;
  const share = (after: number, then: number): number => ((after - then) / seconds) * 100;
  return {
    control: {
      '% of a core': share(await cpuSeconds([control.pid]), before[0]),
      MiB: (await memoryOf(control.pid)).pss,
    },
    postgres: { '% of a core': share(await familyCpuSeconds(postgresPid), before[1]) },
  };
}

const uuidOf = (id: string): string => parseSandboxId(id)?.uuid ?? '';

async function create(url: string, headers: Record<string, string>, body: string): Promise<string> {
  const answer = await fetch(`${url}/vms`, { method: 'POST', headers, body });
  if (!answer.ok) throw new Error(`POST /vms answered ${answer.status}: ${await answer.text()}`);
  return ((await answer.json()) as { vm_id: string }).vm_id;
}

async function allPlaced({ pool }: Database): Promise<void> {
  await until('every create is placed', async () => {
    const { rows } = await pool.query(`select 1 from sandboxes where status = 'pending' limit 1`);
    return rows.length === 0;
  });
}

async function countPlaced({ pool }: Database): Promise<number> {
  const { rows } = await pool.query<{ n: number }>(
    `select count(*)::integer as n from sandboxes where held and ${CREATED}`,
  );
  return rows[0]?.n ?? 0;
}

/** As many sandboxes as move at a time, on these hosts in turns. */
async function runningOn({ pool }: Database, hosts: readonly string[]): Promise<string[]> {
  const { rows } = await pool.query<{ id: string }>(
    `select s.id from unnest($1::uuid[]) as h(id) cross join lateral (
       select id, row_number() over () as n from sandboxes where runner_id = h.id and held and persistent and status = 'running' limit $2) s
      order by s.n limit $2`,
    [hosts, MOVERS],
  );
  return rows.map(({ id }) => id);
}

/** @returns whether this version has the trigger that keeps the sums of hosts */
async function setTrigger({ pool }: Database, to: 'enable' | 'disable'): Promise<boolean> {
  const name = 'sandbox_allocations_move';
  const { rowCount } = await pool.query('select 1 from pg_trigger where tgname = $1', [name]);
  if (rowCount === 1) await pool.query(`alter table sandboxes ${to} trigger ${name}`);
  return rowCount === 1;
}

/** A stop and a start in turns, each a transaction of its own. */
async function movesASecond({ pool }: Database, ids: readonly string[]): Promise<number> {
  let moved = 0;
  const until = performance.now() + ROUND_SECONDS * 1000;
  const seconds =
    (await timed(() =>
      Promise.all(
        ids.map(async (id) => {
          while (performance.now() < until) {
            for (const status of ['stopped', 'running'])
              await pool.query({
                name: 'bench-move',
                text: 'update sandboxes set status = $2, updated_at = now() where id = $1',
                values: [id, status],
              });
            moved += 2;
          }
        }),
      ),
    )) / 1000;
  return moved / seconds;
}

/** @returns their ids */
async function stopSome({ pool }: Database, ids: readonly string[]): Promise<string[]> {
  await pool.query(
    `update sandboxes set status = 'stopped', desired = 'stopped', persistent = true, manifest_name = 'sha256:live', deadline_at = null
      where id = any($1)`,
    [ids.map((id) => uuidOf(id))],
  );
  return [...ids];
}

/** One after the other. @returns what each took, in milliseconds */
async function startAll(url: string, headers: Record<string, string>, ids: string[]): Promise<number[]> {
  const taken: number[] = [];
  for (const id of ids)
    taken.push(
      await timed(async () => {
        const answer = await fetch(`${url}/vms/${id}/start`, { method: 'POST', headers });
        if (!answer.ok) throw new Error(`start answered ${answer.status}: ${await answer.text()}`);
      }),
    );
  return taken;
}

/** What has been created since the fleet was written: nothing of it ever runs. */
const CREATED = 'manifest_name is null';

/** Each round begins with the same rows. */
async function removeCreated({ pool }: Database): Promise<void> {
  await pool.query('delete from jobs');
  await pool.query(`delete from sandboxes where ${CREATED}`);
}
