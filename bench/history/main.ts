/**
 * `node bench/history/main.ts [--rows N]`: whether the statements of the control plane cost the same with N ended
 * sandboxes, jobs and charges (10 million when not said) as without. The real control plane runs the same calls on an
 * empty database and on one with that history; every named statement that it has sent is explained on both. Ends with 1
 * when one reads a large table sequentially, or touches many more buffers.
 */
import { parseArgs } from 'node:util';
import { rm } from 'node:fs/promises';
import { join } from 'node:path';
import { temporaryFolder } from '@releap/testing/temporary-folder';
import { openDatabase, startPostgres } from '@releap/database';
import { endFirst } from '@releap/testing/postgres';
import { create, startWorld, until, waitFor, type World } from '@releap/testing/world';
import { Client } from 'pg';
import { pino } from 'pino';
import { chargeMeters } from '../../packages/control/src/tenancy/billing/charge-meters.ts';
import { readCredits, readGrants } from '../../packages/control/src/tenancy/billing/ledger.ts';
import { BILLING_SETTINGS } from '../../packages/control/src/tenancy/billing/settings.ts';
import { organizationsCrossing } from '../../packages/control/src/tenancy/billing/unbilled.ts';
import { JOB_PURGE } from '../../packages/control/src/compute/jobs/module.ts';
import { SANDBOX_PURGE } from '../../packages/control/src/compute/sandboxes/module.ts';
import { SNAPSHOT_PURGE } from '../../packages/control/src/compute/snapshots/module.ts';
import { purgeEnded } from '../../packages/control/src/platform/retention/purge.ts';
import { OBJECT_STORE_PURGE } from '../../packages/control/src/storage/object-stores/module.ts';
import { VOLUME_PURGE } from '../../packages/control/src/storage/volumes/module.ts';
import { INVITATION_PURGE } from '../../packages/control/src/tenancy/management/module.ts';
import { fillHistory } from './fill.ts';

const { values } = parseArgs({ options: { rows: { type: 'string', default: '10000000' } } });
const ROWS = Number(values.rows);
/** Tables that grow with history. Reading one from end to end is what must not happen. */
const LARGE = /^(sandboxes|jobs|snapshots|credit_usage\w*|audit_log\w*|credit_ledger)$/;
/** A B-tree over ten million rows is two levels deeper than an empty one; each row found costs that much more. */
const MORE_BUFFERS = 400;
/** A table of this many more pages is rightly read whole. */
const PAGES = 8;
/** Runs once a day, and decides against an index that each transition would pay for. */
const PURGES = [SNAPSHOT_PURGE, SANDBOX_PURGE, OBJECT_STORE_PURGE, VOLUME_PURGE, JOB_PURGE, INVITATION_PURGE];
const READS_ALL = new Set(['purge-runners']);
const TIMES = 5;

interface Sent {
  name: string;
  text: string;
  values: unknown[];
}
interface Plan {
  'Node Type': string;
  'Relation Name'?: string;
  'Shared Hit Blocks': number;
  'Shared Read Blocks': number;
  Plans?: Plan[];
}

const say = (text: string): void => void process.stderr.write(`${text}\n`);

/** The named statements that this process sends, with the last values of each. */
const sent = new Map<string, Sent>();
type Query = (this: unknown, ...args: unknown[]) => unknown;
const prototype = Client.prototype as unknown as { query: Query };
const { query } = prototype;
prototype.query = function (this: unknown, ...args: unknown[]) {
  const [config] = args as [Partial<Sent> | undefined];
  if (typeof config === 'object' && typeof config.name === 'string' && typeof config.text === 'string')
    sent.set(config.name, { name: config.name, text: config.text, values: config.values ?? [] });
  return query.apply(this, args);
};

async function work(world: World): Promise<void> {
  const { pool } = world.database;
  await world.runner();
  const vms = [];
  for (let n = 0; n < 5; n++) vms.push(await create(world.call, world, { persistent: true }));
  for (const vm of vms) await waitFor(world.call, vm.id, 'running');
  const [first] = vms;
  if (first === undefined) throw new Error('no sandbox was made');
  for (const path of [
    '/vms',
    '/vms?limit=2',
    `/vms/${first.id}`,
    '/snapshots',
    '/images',
    `/jobs/${first.jobId}`,
    '/secrets',
  ])
    await world.call('GET', path);
  for (const verb of ['stop', 'start']) {
    await world.call('POST', `/vms/${first.id}/${verb}`);
    await waitFor(world.call, first.id, verb === 'stop' ? 'stopped' : 'running');
  }
  await world.call('POST', `/vms/${first.id}/snapshots`, { name: 'one' });
  await world.call('DELETE', `/vms/${vms[1]?.id}`);
  const waiting = await create(world.call, world, { mode: 'dedicated', cpu: 16 });
  await world.runner({ facts: { cores: 4 } });
  await world.operator('GET', '/operator/hosts');
  await world.control.sweep();
  await world.call('DELETE', `/vms/${waiting.id}`);
  const { rows } = await pool.query<{ org_id: string }>('select org_id from projects limit 1');
  const orgId = rows[0]?.org_id ?? '';
  await chargeMeters(pool, BILLING_SETTINGS.prices, { meterMs: 0 });
  await organizationsCrossing(pool, BILLING_SETTINGS.prices, 0n);
  await readCredits(pool, BILLING_SETTINGS, orgId, { limit: 50 });
  await readGrants(pool, orgId, { limit: 50 });
  await purgeEnded(world.database, PURGES, 36_500, new AbortController().signal);
  await until(() => sent.size > 40);
}

interface Cost {
  buffers: number;
  sequential: string[];
}

async function explain(url: string, statements: readonly Sent[]): Promise<Map<string, Cost>> {
  await using database = openDatabase({
    url,
    log: pino({ level: 'silent' }),
    connections: 1,
    statementTimeoutMs: 60_000,
  });
  const costs = new Map<string, Cost>();
  for (const { name, text, values: given } of statements) {
    let least: Cost | undefined;
    for (let n = 0; n < TIMES; n++) {
      const client = await database.pool.connect();
      try {
        await client.query('begin');
        const { rows } = await client.query<{ 'QUERY PLAN': { Plan: Plan }[] }>({
          text: `explain (analyze, buffers, format json) ${text}`,
          values: given,
        });
        const plan = rows[0]?.['QUERY PLAN'][0]?.Plan;
        if (plan === undefined) continue;
        const buffers = plan['Shared Hit Blocks'] + plan['Shared Read Blocks'];
        if (least === undefined || buffers < least.buffers) least = { buffers, sequential: sequential(plan) };
      } catch (error) {
        say(`${name}: ${(error as Error).message}`);
        break;
      } finally {
        await client.query('rollback').catch(() => undefined);
        client.release();
      }
    }
    if (least !== undefined) costs.set(name, least);
  }
  return costs;
}

function sequential(plan: Plan): string[] {
  const below = (plan.Plans ?? []).flatMap(sequential);
  const table = plan['Relation Name'];
  return plan['Node Type'] === 'Seq Scan' && table !== undefined && LARGE.test(table)
    ? [table, ...below]
    : below;
}

// On a disk, as a service has it: ten million rows of history do not fit into memory.
const folder = await temporaryFolder('releap-history-');
await using postgres = await startPostgres({ dir: join(folder, 'postgres'), log: pino({ level: 'silent' }) });
const urls = { empty: await newDatabase('history_empty'), full: await newDatabase('history_full') };
const results: Record<keyof typeof urls, Map<string, Cost>> = { empty: new Map(), full: new Map() };
for (const which of ['empty', 'full'] as const) {
  sent.clear();
  await using world = await startWorld({ databaseUrl: urls[which] });
  if (which === 'full') await fillHistory(urls.full, ROWS, say);
  say(`${which}: the control plane works`);
  await work(world);
  const statements = [...sent.values()].sort((a, b) => a.name.localeCompare(b.name));
  say(`${which}: explaining ${statements.length} statements`);
  results[which] = await explain(urls[which], statements);
}

async function newDatabase(name: string): Promise<string> {
  const client = new Client({ connectionString: postgres.url('postgres') });
  await client.connect();
  try {
    await client.query(`create database ${name}`);
  } finally {
    await client.end();
  }
  return postgres.url(name);
}

const wrong: string[] = [];
console.log(`| statement | buffers, no history | buffers, ${ROWS} ended rows |\n|---|---:|---:|`);
for (const [name, full] of results.full) {
  const empty = results.empty.get(name);
  if (empty === undefined) continue;
  console.log(`| ${name} | ${empty.buffers} | ${full.buffers} |`);
  if (READS_ALL.has(name)) continue;
  if (full.sequential.length > 0 && full.buffers > empty.buffers + PAGES)
    wrong.push(`${name} reads ${full.sequential.join(', ')} sequentially`);
  if (full.buffers - empty.buffers > MORE_BUFFERS)
    wrong.push(`${name} touches ${full.buffers} buffers, and ${empty.buffers} without history`);
}
for (const line of wrong) say(`NOT FLAT: ${line}`);
await endFirst.disposeAsync();
await postgres.stop();
await rm(folder, { recursive: true, force: true });
process.exitCode = wrong.length === 0 ? 0 : 1;
