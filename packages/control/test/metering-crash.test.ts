/** "the ledger's sum equals the balance at any time under concurrent usage, grants and crashes". */
import assert from 'node:assert/strict';
import { fork } from 'node:child_process';
import { once } from 'node:events';
import path from 'node:path';
import { after, before, it } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import { openDatabase, type Database } from '@releap/database';
import { freshDatabase } from '@releap/testing/postgres';
import { programOf } from '@releap/testing/program';
import { chargeMeters } from '../src/tenancy/billing/charge-meters.ts';
import { accounts, charged, exactCost, newOrg, newSandbox, PRICES, setStatus } from './support/billing.ts';
import { quiet } from '@releap/testing/world';

let url: string;
let database: Database;
before(async () => {
  url = await freshDatabase();
  database = openDatabase({ url, log: quiet, connections: 6 });
});
after(async () => database.close());

const ROUNDS = 5;
const SANDBOXES = 60;
const CHILD = programOf(path.join(import.meta.dirname, 'support/metering-child.ts'));

it('metering that is killed repeatedly in the middle, beside grants and lifecycle changes, charges every microsecond once', async () => {
  const orgs = await Promise.all([newOrg(database), newOrg(database), newOrg(database)]);
  const size = { millicores: 1_777, memMib: 3_333, gpus: 1, spot: true };
  const vms = await Promise.all(
    Array.from({ length: SANDBOXES }, (_, index) =>
      newSandbox(database, orgs[index % orgs.length]?.projectId ?? '', size),
    ),
  );
  /** Kept here too: the service forgets a meter once all of it is in the ledger. */
  const opened = async (): Promise<Map<string, { vm: string; since: bigint }>> => {
    const { rows } = await database.pool.query<{ id: string; sandbox_id: string; since: string }>(
      'select id, sandbox_id, (extract(epoch from opened_at) * 1000000)::bigint as since from sandbox_meters',
    );
    return new Map(rows.map((row) => [row.id, { vm: row.sandbox_id, since: BigInt(row.since) }]));
  };

  let granted = 0n;
  const end = new AbortController();
  const checks = (async () => {
    while (!end.signal.aborted) {
      for (const { balance, sum } of await accounts(database)) assert.equal(balance, sum);
      await sleep(5);
    }
  })();
  const grants = (async () => {
    while (!end.signal.aborted) {
      await database.pool.query(
        `insert into credit_ledger (org_id, amount, kind) select org_id, 7, 'grant' from unnest($1::uuid[]) as org_id`,
        [orgs.map((org) => org.orgId)],
      );
      granted += 7n;
      await sleep(3);
    }
  })();
  const all = await opened();
  const changes = (async () => {
    for (let at = 0; !end.signal.aborted; at = (at + 7) % SANDBOXES) {
      const vm = vms[at] ?? '';
      await setStatus(database, vm, 'stopped');
      await setStatus(database, vm, 'booting');
      for (const [id, meter] of await opened()) all.set(id, meter);
      await sleep(4);
    }
  })();

  for (let round = 0; round < ROUNDS; round++) {
    const child = fork(CHILD, { env: { ...process.env, TEST_DATABASE_URL: url } });
    await once(child, 'message');
    // Another one charges beside it.
    const beside = chargeMeters(database.pool, PRICES, { meterMs: 1, batch: 1_000 });
    await sleep(5 + round * 13);
    child.kill('SIGKILL');
    await Promise.all([once(child, 'exit'), beside]);
  }
  end.abort();
  await Promise.all([checks, grants, changes]);

  for (const vm of vms) await setStatus(database, vm, 'deleting');
  const { rows: left } = await database.pool.query<{ id: string; until: string }>(
    `select id, (extract(epoch from closed_at) * 1000000)::bigint as until from sandbox_meters`,
  );
  assert.ok(left.length >= SANDBOXES);
  await chargeMeters(database.pool, PRICES, { meterMs: 1 });
  assert.equal((await opened()).size, 0, 'all of it is settled');

  // Of every meter, the last period that was charged ends where it was closed, and they cover its whole time.
  const { rows } = await database.pool.query<{ sandbox_id: string; since: string; until: string }>(
    `select sandbox_id, (extract(epoch from period_from) * 1000000)::bigint as since, (extract(epoch from period_to) * 1000000)::bigint as until
       from ledger_entries where kind = 'usage' order by sandbox_id, period_from`,
  );
  const begins = new Map<string, Set<bigint>>();
  for (const { vm, since } of all.values()) begins.set(vm, (begins.get(vm) ?? new Set()).add(since));
  for (const vm of vms) {
    let cost = 0n;
    let run: [bigint, bigint] | undefined;
    for (const row of rows.filter((one) => one.sandbox_id === vm)) {
      const [since, until] = [BigInt(row.since), BigInt(row.until)];
      if (run !== undefined && since === run[1]) run[1] = until;
      else {
        assert.ok(
          begins.get(vm)?.has(since),
          'a charge begins where one has ended, or where a meter was opened',
        );
        if (run !== undefined) cost += exactCost(size, run[1] - run[0]);
        run = [since, until];
      }
    }
    if (run !== undefined) cost += exactCost(size, run[1] - run[0]);
    assert.equal(await charged(database, vm), cost);
  }
  const last = await accounts(database);
  assert.equal(last.length, orgs.length);
  for (const { balance, sum } of last) assert.equal(balance, sum);
  const { rows: sums } = await database.pool.query<{ sum: string }>(
    `select sum(amount) from credit_ledger where kind = 'grant'`,
  );
  assert.equal(BigInt(sums[0]?.sum ?? 0), granted * BigInt(orgs.length));
});
