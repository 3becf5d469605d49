/** What recording the use of sandboxes costs: on a host, and in the control plane with its database. */
import { mkdir, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { readRunnerMessage, type UsagePiece } from '@releap/contract/runner';
import { startPostgres, type PostgresInstance } from '@releap/database';
import { pino } from 'pino';
import { USAGE_SETTINGS } from '../../packages/control/src/compute/usage/settings.ts';
import { storeUsage } from '../../packages/control/src/compute/usage/store-usage.ts';
import { CgroupTree } from '../../packages/runner/src/cgroup/cgroup-tree.ts';
import { CounterReader, type CounterSource } from '../../packages/runner/src/metering/counter-reader.ts';
import { MINUTE_MS } from '../../packages/runner/src/metering/usage-ledger.ts';
import { UsageMeter } from '../../packages/runner/src/metering/usage-meter.ts';
import { identifyProcess } from '../../packages/runner/src/vmm/process-identity.ts';
import { fresh, processorTime, writeProjects, writeSandboxes } from '../api/many-sandboxes.ts';
import { summaryRows, type SuiteResult } from '../report.ts';
import { interleave, summarize } from '../statistics.ts';
import { suiteFolder, type Suite } from '../suite.ts';
import {
  INVOCATIONS,
  record,
  reportBefore,
  reportNow,
  seriesBefore,
  seriesNow,
  writeInvocations,
} from '../usage/reports.ts';
import { spreadOverHosts, storeHours, type Growth } from '../usage/growth.ts';

const SANDBOXES = 10_000;
/** Control groups and disks that exist; each stands for many sandboxes. Reading one costs the same as reading another. */
const READ_FROM = 16;
/** Of which the growth of the database is measured. */
const GROWING = 3_000;
/** For which it is stated. */
const FLEET = 100_000;
const GROWTH_MAX_GIB = 2;
const GIB = 2 ** 30;
/** In a minute: readings of everything, and readings of CPU time for bursts. */
const READINGS = 3;
const CPU_READINGS = 6;
const A_MESSAGE = 1_000;

const log = pino({ level: 'silent' });

export const usage: Suite = async ({ samples, progress, signal }) => {
  await using folder = await suiteFolder();
  await using postgres = await startPostgres({ dir: join(folder.path, 'postgres'), log });
  await using database = await fresh(postgres, 'usage');
  const { pool } = database;
  progress(`writing ${SANDBOXES} running sandboxes`);
  await writeProjects(pool, 100);
  const runnerId = await writeSandboxes(pool, SANDBOXES / 100);
  await pool.query('create table bare (like usage_minutes)');
  await pool.query('vacuum analyze');
  const { rows } = await pool.query<{ id: string }>('select id from sandboxes');
  const ids = rows.map(({ id }) => id);
  await using host = await openHost(folder.path, ids);
  const used = processorTime(postgres, database);

  let seq = 0;
  /** A minute of all of them, as messages; another one each time. */
  const nextMessages = (): string[] => {
    const minute = Math.floor(Date.now() / MINUTE_MS) - 12 * 60 + seq / (SANDBOXES / A_MESSAGE);
    return Array.from({ length: SANDBOXES / A_MESSAGE }, (_, at) =>
      JSON.stringify({
        type: 'usage_history',
        seq: ++seq,
        pieces: ids.slice(at * A_MESSAGE, (at + 1) * A_MESSAGE).map((id) => piece(id, minute)),
      }),
    );
  };
  const read = (text: string): { seq: number; pieces: UsagePiece[] } => {
    const reading = readRunnerMessage(text);
    if (reading.outcome !== 'message' || reading.message.type !== 'usage_history')
      throw new Error('the message cannot be read');
    return reading.message;
  };

  const HOST = `host: ${SANDBOXES} sandboxes read ${READINGS} times, CPU time for bursts ${CPU_READINGS} times, written to disk`;
  const CONTROL = `control plane: ${SANDBOXES} records read, checked, stored by minute and hour`;
  const BARE = 'bare: the same messages parsed, and inserted into one plain table';
  const taken = await interleave(
    {
      [HOST]: () => used(() => host.minute()),
      [CONTROL]: () => {
        const messages = nextMessages();
        return used(async () => {
          for (const text of messages)
            await storeUsage(database, runnerId, read(text), USAGE_SETTINGS.minuteDays);
        });
      },
      [BARE]: () => {
        const messages = nextMessages();
        return used(async () => {
          for (const text of messages) {
            const { pieces } = JSON.parse(text) as { pieces: UsagePiece[] };
            await pool.query(
              `insert into bare select (p ->> 'vm_id')::uuid, to_timestamp((p ->> 'minute')::bigint * 60), $2, 0, (p ->> 'duration_ms')::integer,
                 (p ->> 'cpu_usec')::bigint, (p ->> 'memory_kib_ms')::bigint, (p ->> 'disk_peak_bytes')::bigint, (p ->> 'disk_read_bytes')::bigint,
                 (p ->> 'disk_write_bytes')::bigint, (p ->> 'net_rx_bytes')::bigint, (p ->> 'net_tx_bytes')::bigint
               from jsonb_array_elements($1::jsonb) p`,
              [JSON.stringify(pieces), runnerId],
            );
          }
        });
      },
    },
    { rounds: samples, warmUp: 1, signal, onRound: (round) => progress(`usage, minute ${round + 1}`) },
  );
  const p50 = (name: string): number => summarize(taken[name] ?? []).p50;
  const both = p50(HOST) + p50(CONTROL);
  const result: SuiteResult = {
    title: 'Use of sandboxes',
    goal: `Recording what ${SANDBOXES} running sandboxes use costs under 5 % of one core: reading their counters, keeping minutes on disk, and storing them by minute and hour, the database's part included.`,
    unit: '% of a core',
    rows: summaryRows(taken),
    verdicts: [
      {
        what: 'host and control plane together, p50',
        value: both,
        goal: 'under 5 % of a core',
        met: both < 5,
      },
    ],
    notes: [
      `a minute is simulated: the clock is given, the work is real; each of ${READ_FROM} control groups and disks stands for many sandboxes`,
    ],
    samples: taken,
  };
  return [result, await growth(postgres, progress), await reports(postgres, samples, progress, signal)];
};

/** Reports of invocations, and the cost of their sums when invocations are recorded. */
async function reports(
  postgres: PostgresInstance,
  samples: number,
  progress: (text: string) => void,
  signal: AbortSignal,
): Promise<SuiteResult> {
  await using database = await fresh(postgres, 'reports');
  await writeProjects(database.pool, 1);
  await database.pool.query(`insert into regions (id, name) values ('local', 'local')`);
  progress(`writing ${INVOCATIONS} invocations`);
  const called = await writeInvocations(database);
  const recorded = async (sums: 'enable' | 'disable'): Promise<number> => {
    for (const trigger of ['count_inserted_invocations', 'count_updated_invocations'])
      await database.pool.query(`alter table invocations ${sums} trigger ${trigger}`);
    const begin = performance.now();
    await record(database, called);
    return performance.now() - begin;
  };
  const NOW = 'report of ten functions over 28 days, from hourly sums';
  const BEFORE = 'before: from the log';
  const taken = await interleave(
    {
      [NOW]: () => reportNow(database, called),
      [BEFORE]: () => reportBefore(database, called),
      'series of one function over 28 days, from hourly sums': () => seriesNow(database, called),
      'before: series from the log': () => seriesBefore(database, called),
      'recording 1000 invocations, 100 a statement, with their sums': () => recorded('enable'),
      'before: recording them without sums': () => recorded('disable'),
    },
    { rounds: samples, warmUp: 1, signal, onRound: (round) => progress(`reports, round ${round + 1}`) },
  );
  const times = summarize(taken[BEFORE] ?? []).p50 / summarize(taken[NOW] ?? []).p50;
  return {
    title: 'Reports of invocations',
    goal: `A report over a log of ${INVOCATIONS} invocations is at least 5 times as fast from hourly sums as from the log.`,
    unit: 'ms',
    rows: summaryRows(taken),
    verdicts: [{ what: 'before over now, p50', value: times, goal: 'at least 5', met: times >= 5 }],
    samples: taken,
  };
}

/** What a day of the fleet adds to the database, from two hours of fewer sandboxes. */
async function growth(postgres: PostgresInstance, progress: (text: string) => void): Promise<SuiteResult> {
  const aDay = (amount: number): number => (amount * 24 * FLEET) / GROWING;
  progress(`two hours of ${GROWING} sandboxes`);
  await using database = await fresh(postgres, 'growth');
  await writeProjects(database.pool, GROWING / 10);
  await writeSandboxes(database.pool, 10);
  const hosts = await spreadOverHosts(database.pool);
  await database.pool.query('vacuum analyze');
  let grown: Growth | undefined;
  const percent = await processorTime(
    postgres,
    database,
  )(async () => void (grown = await storeHours(database, hosts)));
  if (grown === undefined) throw new Error('nothing was stored');
  const daily = aDay(grown.hourBytes) / GIB;
  const values = {
    'rows of minutes, million': aDay(grown.minuteRows) / 1e6,
    'minutes, GiB': aDay(grown.minuteBytes) / GIB,
    'hours, GiB': daily,
    'WAL, GiB': aDay(grown.walBytes) / GIB,
    '% of a core': (percent / 120) * (FLEET / GROWING),
  };
  return {
    title: 'Use of sandboxes: growth of the database',
    goal: `At ${FLEET} running sandboxes what is kept of their use grows by at most ${GROWTH_MAX_GIB} GiB a day.`,
    unit: `a day of ${FLEET} sandboxes`,
    rows: [{ what: 'what is stored', values }],
    verdicts: [
      {
        what: 'growth by what stays, the hours, with indexes and free space',
        value: daily,
        goal: `at most ${GROWTH_MAX_GIB} GiB a day`,
        met: daily <= GROWTH_MAX_GIB,
      },
    ],
    notes: [
      `extrapolated from two hours of ${GROWING} sandboxes on 5 hosts, of which three in ten work; without the readings of hosts and the check of messages`,
      `minutes are dropped by whole days: what is kept of them does not grow`,
      `processor time is that of the control plane and of PostgreSQL, with the generation of the sample`,
    ],
  };
}

function piece(id: string, minute: number): UsagePiece {
  return {
    vm_id: id,
    minute,
    duration_ms: 60_000,
    cpu_usec: 7_654_321,
    memory_kib_ms: 62_914_560_000,
    disk_peak_bytes: 104_857_600,
    disk_read_bytes: 1_234_567,
    disk_write_bytes: 2_345_678,
    net_rx_bytes: 3_456_789,
    net_tx_bytes: 4_567_890,
  };
}

interface Host extends AsyncDisposable {
  /** A minute of a host with all of these. */
  minute(): Promise<void>;
}

async function openHost(folder: string, ids: readonly string[]): Promise<Host> {
  const cgroups = await CgroupTree.open(folder);
  const names = Array.from({ length: READ_FROM }, (_, at) => `usage-${at}`);
  await using opened = new AsyncDisposableStack();
  opened.defer(async () => {
    await Promise.all(names.map((name) => cgroups.remove(name)));
    await cgroups.close();
  });
  const own = identifyProcess(process.pid);
  const sources: CounterSource[] = [];
  for (const name of names) {
    await cgroups.create(name, { cpu: 1, cpuMax: 1, memoryMib: 64, pids: 16 });
    const jail = join(folder, name);
    await mkdir(jail);
    for (const file of ['root.image', 'scratch.base', 'scratch-layer-1.qcow2', 'docker.qcow2', 'docker.base'])
      await writeFile(join(jail, file), '');
    sources.push({ cgroup: name, process: own, jail, networkInterface: 'lo' });
  }
  const reader = new CounterReader(cgroups);
  let now = Math.ceil(Date.now() / MINUTE_MS) * MINUTE_MS;
  const meter = new UsageMeter({
    folder: join(folder, 'spool'),
    reader: {
      cpu: (source) => reader.cpu(source),
      read(...request) {
        const reading = reader.read(...request);
        if (reading === undefined) return undefined;
        reading.atMs = now;
        reading.uptimeMs = now;
        reading.cpuMicros = now * 100;
        return reading;
      },
    },
    now: () => now,
    log,
  });
  ids.forEach((id, at) => meter.begin(id, sources[at % READ_FROM] as CounterSource));
  meter.commit();
  const owned = opened.move();
  return {
    async minute() {
      for (let reading = 0; reading < READINGS; reading++) {
        now += MINUTE_MS / READINGS;
        for (let cpu = 0; cpu < CPU_READINGS / READINGS; cpu++) for (const id of ids) meter.cpu(id);
        await meter.pass();
      }
      for (let next = meter.spool.next(); next !== undefined; next = meter.spool.next()) {
        JSON.stringify(next);
        meter.spool.stored(next.seq);
      }
    },
    [Symbol.asyncDispose]: () => owned.disposeAsync(),
  };
}
