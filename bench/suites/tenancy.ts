/** What tenancy costs: authentication with many keys, metering many sandboxes, reading a long ledger. */
import { randomBytes } from 'node:crypto';
import { Agent, request } from 'node:http';
import { join } from 'node:path';
import { newToken, newUuid, tokenDigest, tokenPrefix } from '@releap/contract';
import { startPostgres, type Database, type PostgresInstance } from '@releap/database';
import { pino } from 'pino';
import { createBurstMeter } from '../../packages/control/src/tenancy/billing/burst.ts';
import { chargeMeters } from '../../packages/control/src/tenancy/billing/charge-meters.ts';
import { readCredits, readGrants } from '../../packages/control/src/tenancy/billing/ledger.ts';
import { BILLING_SETTINGS } from '../../packages/control/src/tenancy/billing/settings.ts';
import { listRecords } from '../../packages/control/src/compute/sandboxes/queries.ts';
import { Server } from '../api/server.ts';
import { fresh, processorTime, writeProjects, writeSandboxes } from '../api/many-sandboxes.ts';
import { SilentRunner } from '../api/silent-runner.ts';
import { summaryRows, type SuiteResult, type Verdict } from '../report.ts';
import { interleave, summarize, timed } from '../statistics.ts';
import { suiteFolder, type Suite, type SuiteOptions } from '../suite.ts';

const KEYS = 100_000;
const SANDBOXES = 10_000;
const LEDGER_ROWS = 1_000_000;
/** Requests that make one sample: the median of them. */
const A_SAMPLE = 200;
const MINUTE_MS = 60_000;
/** Entries that one answer has. */
const READ = { limit: 50 };
const LISTED = 100;
/** Enough that ten of them are beyond the 99th percentile. */
const READS = 1000;

const log = pino({ level: 'silent' });

export const tenancy: Suite = async (options) => {
  await using folder = await suiteFolder();
  await using postgres = await startPostgres({ dir: join(folder.path, 'postgres'), log });
  return [
    await authentication(postgres, options),
    await metering(postgres, options),
    await ledger(postgres, options),
  ];
};

async function authentication(
  postgres: PostgresInstance,
  { samples, progress, signal }: SuiteOptions,
): Promise<SuiteResult> {
  await using database = await fresh(postgres, 'authentication');
  const internal = randomBytes(32).toString('hex');
  await using control = await Server.start('control-server.ts', [database.url, internal, '16']);
  const { url, internalUrl = '', apiKey = '', projectId = '' } = control.ready;
  await using runner = await SilentRunner.connect(internalUrl, internal);
  runner.ready = true;
  progress(`writing ${KEYS} API keys`);
  const tokens: string[] = [];
  for (let from = 0; from < KEYS; from += 5_000) {
    const batch = Array.from({ length: 5_000 }, () => newToken('apiKey'));
    await database.pool.query(
      `insert into api_keys (id, project_id, name, token_hash, key_prefix)
       select t.id, $1, t.prefix, t.hash, t.prefix from unnest($2::uuid[], $3::bytea[], $4::text[]) as t(id, hash, prefix)`,
      [projectId, batch.map(() => newUuid()), batch.map(tokenDigest), batch.map(tokenPrefix)],
    );
    tokens.push(...batch);
  }
  await database.pool.query('analyze api_keys');

  const agent = new Agent({ keepAlive: true, maxSockets: 1 });
  const get = (path: string, token?: string): Promise<void> =>
    new Promise((resolve, reject) => {
      const headers = token === undefined ? {} : { authorization: `Bearer ${token}` };
      request(`${url}${path}`, { agent, headers }, (response) => {
        response.resume();
        response.once('end', () =>
          response.statusCode === 200
            ? resolve()
            : reject(new Error(`GET ${path} answered ${response.statusCode}`)),
        );
      })
        .once('error', reject)
        .end();
    });
  const median = (call: () => Promise<void>) => async (): Promise<number> => {
    const taken: number[] = [];
    for (let i = 0; i < A_SAMPLE; i++) taken.push(await timed(call));
    return summarize(taken).p50;
  };
  let next = 0;
  const PUBLIC = 'public route';
  const KNOWN = 'route behind an API key, of a caller that comes again within a second';
  const NEW = `route behind an API key, another of ${KEYS} keys every time`;
  const taken = await interleave(
    {
      // Neither does any work: the one says that a host is ready, the other an empty list.
      [PUBLIC]: median(() => get('/healthz')),
      [KNOWN]: median(() => get('/cpu-types', apiKey)),
      [NEW]: median(() => get('/cpu-types', tokens[(next += 7_919) % KEYS])),
    },
    {
      rounds: samples,
      warmUp: 3,
      signal,
      onRound: (round) => progress(`authentication, round ${round + 1}`),
    },
  );
  agent.destroy();
  const p50 = (name: string): number => summarize(taken[name] ?? []).p50;
  const adds = (name: string): Verdict => ({
    what: `what a ${name} takes more than a ${PUBLIC}, p50, in ms`,
    value: p50(name) - p50(PUBLIC),
    goal: 'at most 0.2',
    met: p50(name) - p50(PUBLIC) <= 0.2,
  });
  return {
    title: 'Authentication',
    goal: `An API key adds at most 0.2 ms to a request (p50) with ${KEYS} keys in the table. A sample is the median of ${A_SAMPLE} requests over one connection.`,
    unit: 'ms',
    rows: summaryRows(taken),
    verdicts: [adds(KNOWN), adds(NEW)],
    samples: taken,
  };
}

async function metering(
  postgres: PostgresInstance,
  { samples, progress, signal }: SuiteOptions,
): Promise<SuiteResult> {
  await using database = await fresh(postgres, 'metering');
  const { pool } = database;
  progress(`writing ${SANDBOXES} running sandboxes`);
  await writeProjects(pool, 100);
  const runnerId = await writeSandboxes(pool, SANDBOXES / 100);
  const begin = Date.now();
  // Sandboxes start at any time of a minute, and so they are due at any time of one.
  await pool.query(
    `update sandbox_meters set metered_until = to_timestamp($1::double precision / 1000) - random() * interval '60 seconds'`,
    [begin],
  );
  await pool.query('vacuum analyze');
  const { rows } = await pool.query<{ id: string }>('select id from sandboxes');
  const prices = BILLING_SETTINGS.prices;
  let at = begin;
  const bursts = createBurstMeter(database, () => at);
  let statements = 0;
  const used = processorTime(postgres, database);
  // One minute of the service: every sandbox is charged once, in as many passes as the loop makes, and its counters
  // come six times.
  const minute = async (): Promise<void> => {
    const end = at + MINUTE_MS;
    for (let pass = 0; at < end; pass++) {
      at += BILLING_SETTINGS.passMs;
      if (pass % 5 === 0) {
        const age = (at - begin) * 1000;
        bursts.take(
          runnerId,
          rows.map(({ id }) => ({ vm_id: id, incarnation: 'one', cpu_usec: age / 4, age_usec: age })),
        );
      }
      await chargeMeters(pool, prices, { meterMs: MINUTE_MS, now: new Date(at) });
      await bursts.charge(prices);
      statements++;
    }
  };
  const WHAT = `metering ${SANDBOXES} running sandboxes for a minute, bursts of all of them included`;
  const taken = await interleave(
    { [WHAT]: () => used(minute) },
    { rounds: samples, warmUp: 1, signal, onRound: (round) => progress(`metering, minute ${round + 1}`) },
  );
  const { p50 } = summarize(taken[WHAT] ?? []);
  const { rows: written } = await pool.query<{ n: string }>('select count(*) as n from ledger_entries');
  return {
    title: 'Metering',
    goal: `Metering ${SANDBOXES} running sandboxes costs under 5 % of one core, the database's part included, and is written in batches.`,
    unit: '% of a core',
    rows: summaryRows(taken),
    verdicts: [{ what: WHAT, value: p50, goal: 'under 5 % of a core', met: p50 < 5 }],
    notes: [
      `${Math.round(Number(written[0]?.n ?? 0) / statements)} ledger entries a pass on average, one or two statements a pass`,
      'a minute is simulated: the clock is given, the work is real; processor time of the metering process and of the database',
    ],
    samples: taken,
  };
}

async function ledger(
  postgres: PostgresInstance,
  { samples, progress, signal }: SuiteOptions,
): Promise<SuiteResult> {
  await using empty = await fresh(postgres, 'ledger_empty');
  await using full = await fresh(postgres, 'ledger_full');
  progress(`writing ${LEDGER_ROWS} ledger entries`);
  const projectId = newUuid();
  const orgId = newUuid();
  for (const { pool } of [empty, full]) {
    await pool.query(`insert into organizations (id, name) values ($1, 'one')`, [orgId]);
    await pool.query(`insert into projects (id, org_id, name) values ($1, $2, 'one')`, [projectId, orgId]);
    await writeSandboxes(pool, LISTED);
  }
  // Half of them are of the organization that is read, the others of a hundred others. The short one has what fills an
  // answer, half of it grants: what is compared is the search, not the writing of fifty lines.
  const write = async ({ pool }: Database, entries: number, grantEvery: number): Promise<unknown> =>
    await pool.query(
      `insert into credit_ledger (org_id, amount, kind, sandbox_id, region, period_from, period_to)
       select case when n % 2 = 0 then $1::uuid else md5((n % 100)::text)::uuid end, case when n % $3 = 0 then 1000000 else -1000 end,
              case when n % $3 = 0 then 'grant' else 'usage' end, gen_random_uuid(), 'local',
              now() - n * interval '1 second', now() - (n - 1) * interval '1 second'
         from generate_series(1, $2::integer) as n`,
      [orgId, entries, grantEvery],
    );
  await write(full, LEDGER_ROWS, 1000);
  await write(empty, 4 * READ.limit, 4);
  for (const { pool } of [empty, full]) {
    await pool.query('vacuum analyze');
    await pool.query('checkpoint');
  }
  const reads: Record<string, (database: Database) => Promise<unknown>> = {
    credits: ({ pool }) => readCredits(pool, BILLING_SETTINGS, orgId, READ),
    grants: ({ pool }) => readGrants(pool, orgId, READ),
    'list of sandboxes': (database) => listRecords(database, projectId, LISTED, null),
  };
  const p99 =
    (database: Database, read: (database: Database) => Promise<unknown>) => async (): Promise<number> => {
      const taken: number[] = [];
      for (let i = 0; i < READS; i++) taken.push(await timed(() => read(database)));
      return summarize(taken).p99;
    };
  const contenders = Object.fromEntries(
    Object.entries(reads).flatMap(([what, read]) => [
      [`${what}, short ledger`, p99(empty, read)],
      [`${what}, ${LEDGER_ROWS} entries`, p99(full, read)],
    ]),
  );
  const taken = await interleave(contenders, {
    rounds: samples,
    warmUp: 3,
    signal,
    onRound: (round) => progress(`ledger, round ${round + 1}`),
  });
  const verdicts = Object.keys(reads).map((what): Verdict => {
    const [short, long] = [`${what}, short ledger`, `${what}, ${LEDGER_ROWS} entries`].map(
      (name) => summarize(taken[name] ?? []).p50,
    );
    const value = (long ?? Number.NaN) / (short ?? Number.NaN);
    return { what: `${what}: p99 relative to a short ledger`, value, goal: 'at most 1.5', met: value <= 1.5 };
  });
  return {
    title: 'A long ledger',
    goal: `Credits and lists take at most 1.5 times as long (p99) with ${LEDGER_ROWS} ledger entries as with next to none. A sample is the 99th percentile of ${READS} reads, a list one of ${LISTED} sandboxes.`,
    unit: 'ms',
    rows: summaryRows(taken),
    verdicts,
    samples: taken,
  };
}
