/** "a service started on a home folder of the previous version migrates and keeps every sandbox"; two versions side by side. */
import assert from 'node:assert/strict';
import { readFile } from 'node:fs/promises';
import path from 'node:path';
import { describe, it } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import { SANDBOX_STATUSES } from '@releap/contract';
import { migrate, openDatabase, parseMigration, readMigrations } from '@releap/database';
import { emptyDatabase, quiet } from '@releap/testing/postgres';
import { caller, create, startWorld, type Answer } from '@releap/testing/world';
import { mintApiKey } from '../src/index.ts';

const PROJECT = '00000000-0000-4000-8000-000000000002';
const ORG = '00000000-0000-4000-8000-000000000001';
const FIXTURE = path.join(import.meta.dirname, 'fixtures/schema-0006.sql');

describe('a database of the schema 0006', () => {
  it('is migrated, keeps every row, and is served: sandboxes, environments, snapshots, jobs, ledger, audit', async () => {
    const url = await emptyDatabase();
    const migrations = await readMigrations();
    await migrate({ url, log: quiet, migrations: migrations.slice(0, 6) });
    {
      await using old = openDatabase({ url, log: quiet });
      await old.pool.query(await readFile(FIXTURE, 'utf8'));
    }
    await using world = await startWorld({ databaseUrl: url, limits: { runnerLostAfterMs: 3_600_000 } });
    const { pool } = world.database;
    const key = await mintApiKey(pool, PROJECT);
    const call = caller(() => world.url, key.token, PROJECT);
    for (const [index, status] of SANDBOX_STATUSES.entries()) {
      const { rows } = await pool.query<{ id: string; env: unknown; spec: { image_ref: string } }>(
        `select s.id, s.spec, e.env from sandboxes s left join sandbox_env e on e.sandbox_id = s.id where s.spec ->> 'name' = $1`,
        [`was ${status}`],
      );
      assert.equal(rows.length, 1, `${index} ${status}`);
      const record = (await call('GET', `/vms/${rows[0]?.id}`)).body;
      assert.deepEqual([record.status, record.name, record.image_ref], [status, `was ${status}`, 'busybox']);
      assert.deepEqual(
        rows[0]?.env ?? null,
        status === 'deleted' ? null : { NAME: status, TOKEN: 'rlps_placeholder' },
      );
    }
    assert.equal((await call('GET', '/vms')).body.vms.length, SANDBOX_STATUSES.length - 1);
    assert.equal((await call('GET', '/snapshots')).body.snapshots.length, 2);
    const { rows: counts } = await pool.query(
      `select (select count(*)::integer from jobs where project_id = $1) as jobs, (select count(*)::integer from sandbox_secrets) as placeholders,
              (select count(*)::integer from audit_log where org_id = $2) as audit,
              (select count(*)::integer from audit_log_first) as audit_first,
              (select sum(amount) from ledger_entries where org_id = $2) = (select balance from credit_accounts where org_id = $2) as exact,
              (select count(*)::integer from ledger_entries where org_id = $2 and id is not null) >= 101 as ledger`,
      [PROJECT, ORG],
    );
    assert.deepEqual(counts, [
      { jobs: 13, placeholders: 12, audit: 31, audit_first: 31, exact: true, ledger: true },
    ]);
    // Charging continues from there.
    const stopped = (await call('GET', '/vms')).body.vms.find(
      (vm: { status: string }) => vm.status === 'failed',
    );
    assert.equal((await call('DELETE', `/vms/${stopped.id}`)).status, 200);
    await create(call, world);
  });
});

describe('two versions on one database', () => {
  it('an expanding migration and a second server, under load: answers, or 503 with Retry-After, and nothing else', async () => {
    await using world = await startWorld();
    await world.runner();
    const vm = await create(world.call, world);
    const migrations = await readMigrations();
    const newer = parseMigration(
      migrations.length + 1,
      'later',
      `-- compatible-with: ${migrations.length}\n\nalter table sandboxes add column later text not null default 'x';\n` +
        `alter table jobs add column later text; alter table snapshots add column later text; alter table runners add column later text;`,
    );
    const over = new AbortController();
    const wrong: string[] = [];
    let answered = 0;
    const check = (what: string, answer: Answer): void => {
      answered++;
      if (answer.status === 200 || (answer.status === 503 && answer.headers.get('retry-after') !== null))
        return;
      wrong.push(`${what}: ${answer.status} ${answer.text}`);
    };
    const load = async (): Promise<void> => {
      while (!over.signal.aborted) {
        check('list', await world.call('GET', '/vms'));
        check('get', await world.call('GET', `/vms/${vm.id}`));
        const made = await world.call('POST', '/vms', { image: 'busybox' });
        check('create', made);
        if (made.status === 200) check('delete', await world.call('DELETE', `/vms/${made.body.vm_id}`));
      }
    };
    const loads = Promise.all([load(), load(), load()]);
    await sleep(500);
    assert.deepEqual(
      await migrate({ url: world.database.url, log: quiet, migrations: [...migrations, newer] }),
      [newer.id],
    );
    // It knows nothing of the newer migration, as an older server that is started again.
    const other = await world.another();
    const beside = caller(() => other.url, world.call.key, world.call.projectId);
    for (let n = 0; n < 10; n++) {
      check('list beside', await beside('GET', '/vms'));
      check('create beside', await beside('POST', '/vms', { image: 'busybox' }));
    }
    await sleep(1_000);
    over.abort();
    await loads;
    assert.deepEqual(wrong, []);
    assert.ok(answered > 20);
  });
});
