/** `GET /vms/:id/usage`, `/usage/history` and `/usage/report`, and what is stored of a runner's records. */
import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import type { UsageHistory, UsageReport } from '@releap/contract';
import type { UsagePiece } from '@releap/contract/runner';
import { create, startWorld, until, waitFor, type Created } from '@releap/testing/world';
import { readReport } from '../src/compute/usage/history.ts';
import { usagePartitions } from '../src/compute/usage/module.ts';
import { USAGE_SETTINGS } from '../src/compute/usage/settings.ts';
import { storeUsage } from '../src/compute/usage/store-usage.ts';
import { dropPartitions, makePartitions } from '../src/platform/retention/partitions.ts';
import { quiet } from '@releap/testing/postgres';

const world = await startWorld({ usage: { ...USAGE_SETTINGS, minuteDays: 7 } });
const runner = await world.runner();

const HOUR_MS = 3_600_000;
/** A whole hour, two hours ago: all of its minutes are in the past. */
const hour = Math.floor(Date.now() / HOUR_MS) * HOUR_MS - 2 * HOUR_MS;
const at = (ms: number): string => new Date(ms).toISOString();
const GIB_MINUTE = 2 ** 20 * 60_000;

async function running(): Promise<Created> {
  const vm = await create(world.call, world);
  await waitFor(world.call, vm.id, 'running');
  return vm;
}
const piece = (vm: Created, minute: number, values: Partial<UsagePiece> = {}): UsagePiece => ({
  vm_id: vm.uuid,
  minute: hour / 60_000 + minute,
  duration_ms: 60_000,
  cpu_usec: 30_000_000,
  memory_kib_ms: GIB_MINUTE,
  disk_peak_bytes: 4096,
  disk_read_bytes: 1,
  disk_write_bytes: 2,
  net_rx_bytes: 3,
  net_tx_bytes: 4,
  ...values,
});
let seq = 1_000;
/** Sends records, and waits until they are acknowledged. */
async function send(pieces: UsagePiece[], number = ++seq): Promise<void> {
  const answers = (): number =>
    runner.received.filter((one) => one.type === 'usage_stored' && one.seq === number).length;
  const before = answers();
  runner.send({ type: 'usage_history', seq: number, pieces });
  await until(() => answers() > before);
}
const history = async (vm: Created, query = ''): Promise<UsageHistory> => {
  const answer = await world.call('GET', `/vms/${vm.id}/usage/history${query}`);
  assert.equal(answer.status, 200, answer.text);
  return answer.body as UsageHistory;
};
const report = async (query = ''): Promise<UsageReport> => {
  const answer = await world.call('GET', `/usage/report${query}`);
  assert.equal(answer.status, 200, answer.text);
  return answer.body as UsageReport;
};

describe('GET /vms/:id/usage: "live usage document from host"', () => {
  const document = {
    at: at(hour),
    duration_ms: 5_000,
    cpu_core_s: 1.5,
    disk_read_bytes: 1,
    disk_write_bytes: 2,
    net_rx_bytes: 3,
    net_tx_bytes: 4,
    mem_bytes: 5,
    disk_bytes: 6,
  };

  it('passes the document of the host on, with the id of the sandbox', async () => {
    const vm = await running();
    runner.logs.set(`/vms/${vm.uuid}/usage`, (_request, response) => response.end(JSON.stringify(document)));
    const answer = await world.call('GET', `/vms/${vm.id}/usage`);
    assert.deepEqual([answer.status, answer.body], [200, { sandbox_id: vm.id, ...document }]);
  });

  it('"404: unknown sandbox or not placed on a host (e.g. stopped)"', async () => {
    const stranger = await world.stranger();
    const vm = await create(world.call, world, { persistent: true });
    await waitFor(world.call, vm.id, 'running');
    assert.equal((await stranger('GET', `/vms/${vm.id}/usage`)).status, 404);
    assert.equal((await world.call('GET', '/vms/nonsense/usage')).status, 404);
    assert.equal((await world.call('GET', `/vms/${vm.id}/usage`)).status, 404, 'the host does not know it');
    await world.call('POST', `/vms/${vm.id}/stop`);
    await waitFor(world.call, vm.id, 'stopped');
    const stopped = await world.call('GET', `/vms/${vm.id}/usage`);
    assert.equal(stopped.status, 404);
    assert.match(stopped.text, /is stopped/);
  });

  it('"502: host did not answer", or answers garbage', async () => {
    const vm = await running();
    const answers = [
      '{"cpu_core_s":-1}',
      'hello',
      JSON.stringify({ ...document, filler: 'x'.repeat(20_000) }),
    ];
    for (const text of answers) {
      runner.logs.set(`/vms/${vm.uuid}/usage`, (_request, response) => response.end(text));
      assert.equal((await world.call('GET', `/vms/${vm.id}/usage`)).status, 502, text.slice(0, 20));
    }
    runner.logs.set(`/vms/${vm.uuid}/usage`, (request) => request.destroy());
    assert.equal((await world.call('GET', `/vms/${vm.id}/usage`)).status, 502);
  });
});

describe('GET /vms/:id/usage/history', () => {
  it('"minute and hour buckets as integrals", the parts of a minute added up, and gaps left out', async () => {
    const vm = await running();
    await send([piece(vm, 0, { duration_ms: 20_000, disk_peak_bytes: 9 }), piece(vm, 3)]);
    // The rest of the minute: the runner was restarted in it.
    await send([piece(vm, 0, { duration_ms: 40_000, memory_kib_ms: 0 })]);
    const { available, sandbox_id: id, periods } = await history(vm);
    assert.deepEqual([available, id], [true, vm.id]);
    const bytes = { disk_read_bytes: 2, disk_write_bytes: 4, net_rx_bytes: 6, net_tx_bytes: 8 };
    const whole = { duration_ms: 60_000, mem_gib_s: 60, disk_peak_bytes: 4096 };
    const half = { disk_read_bytes: 1, disk_write_bytes: 2, net_rx_bytes: 3, net_tx_bytes: 4 };
    assert.deepEqual(periods, [
      { start: at(hour), ...whole, cpu_core_s: 60, ...bytes },
      { start: at(hour + 180_000), ...whole, cpu_core_s: 30, ...half },
    ]);
    const hours = await history(vm, '?resolution=h');
    assert.deepEqual(
      hours.periods.map(({ start, duration_ms: ms, cpu_core_s: cpu, mem_gib_s: mem }) => [
        start,
        ms,
        cpu,
        mem,
      ]),
      [[at(hour), 120_000, 90, 120]],
    );
  });

  it('a repeated message is stored once, on another server or after its answer was lost', async () => {
    const vm = await running();
    await send([piece(vm, 1), piece(vm, 2)], 77);
    await send([piece(vm, 1), piece(vm, 2)], 77);
    await runner.connect();
    await send([piece(vm, 1), piece(vm, 2)], 77);
    assert.equal((await history(vm)).periods.length, 2);
    const [sum] = (await history(vm, '?resolution=h')).periods;
    assert.deepEqual([sum?.duration_ms, sum?.cpu_core_s], [120_000, 60]);
  });

  it('what a server of the version before has stored is read, and no message is stored by both', async () => {
    const vm = await running();
    const { pool } = world.database;
    const COUNTERS =
      'duration_ms, cpu_usec, memory_kib_ms, disk_peak_bytes, disk_read_bytes, disk_write_bytes, net_rx_bytes, net_tx_bytes';
    /** As its statement stores one piece. @returns how many rows */
    const storeBefore = async (one: UsagePiece, number: number): Promise<number> => {
      const values = COUNTERS.split(', ').map((name) => one[name as keyof UsagePiece]);
      const stored = await pool.query(
        `insert into usage_minutes (sandbox_id, minute, runner_id, seq, ${COUNTERS})
         values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12) on conflict do nothing`,
        [vm.uuid, at(one.minute * 60_000), runner.id, number, ...values],
      );
      if (stored.rowCount === 1)
        await pool.query(
          `insert into usage_hours (sandbox_id, hour, project_id, region, ${COUNTERS})
           values ($1, $2, $3, 'here', $4, $5, $6, $7, $8, $9, $10, $11)`,
          [vm.uuid, at(hour), world.call.projectId, ...values],
        );
      return stored.rowCount ?? 0;
    };
    assert.equal(await storeBefore(piece(vm, 1), 501), 1);
    await send([piece(vm, 1)], 501);
    await send([piece(vm, 2)], 502);
    assert.equal(await storeBefore(piece(vm, 2), 502), 0);
    const starts = (await history(vm)).periods.map(({ start }) => start);
    assert.deepEqual(starts, [at(hour + 60_000), at(hour + 120_000)]);
    const [sum] = (await history(vm, '?resolution=h')).periods;
    assert.deepEqual([sum?.duration_ms, sum?.cpu_core_s], [120_000, 60]);
    const items = (await report(`?start=${at(hour)}&end=${at(hour + HOUR_MS)}`)).items;
    const own = items.filter(({ sandbox_id: id }) => id.endsWith(vm.uuid) || id === vm.id);
    assert.equal(
      own.reduce((ms, item) => ms + item.duration_ms, 0),
      120_000,
    );
  });

  it('`from` is inclusive, `to` exclusive', async () => {
    const vm = await running();
    await send([piece(vm, 0), piece(vm, 1), piece(vm, 2)]);
    const range = `?from=${at(hour)}&to=${at(hour + 120_000)}`;
    assert.deepEqual(
      (await history(vm, range)).periods.map(({ start }) => start),
      [at(hour), at(hour + 60_000)],
    );
    const offset = encodeURIComponent(at(hour + 60_000).replace('Z', '+00:00'));
    assert.equal((await history(vm, `?from=${offset}`)).periods.length, 2);
  });

  it('a runner is believed only about its own sandboxes, and invalid records are dropped alone', async () => {
    const vm = await running();
    const other = await world.runner();
    try {
      other.send({ type: 'usage_history', seq: 1, pieces: [piece(vm, 0)] });
      await until(() => other.received.some((one) => one.type === 'usage_stored'));
      await send([piece(vm, 1), piece(vm, 2, { cpu_usec: -1 }), piece(vm, 60 * 24 * 9)]);
      await send([piece({ ...vm, uuid: crypto.randomUUID() }, 1), piece(vm, 4, { minute: 5 })]);
      assert.deepEqual(
        (await history(vm)).periods.map(({ start }) => start),
        [at(hour + 60_000)],
      );
    } finally {
      await other[Symbol.asyncDispose]();
    }
  });

  it('bad input is refused with what is allowed, and an unknown sandbox is 404', async () => {
    const vm = await running();
    const week = at(hour - 8 * 24 * HOUR_MS);
    const refused: [string, RegExp][] = [
      ['from=yesterday', /from must be a time as in RFC 3339.*"yesterday"/],
      ['to=2026-02-30T00:00:00Z', /to must be a time/],
      ['to=2026-01-31', /to must be a time/],
      [`from=${at(hour)}&to=${at(hour)}`, /from must be before to/],
      [`from=${at(hour)}&to=${week}`, /from must be before to/],
      [`from=${week}`, /at most 7 days apart.*use resolution h/],
      ['from=2020-01-01T00:00:00Z&resolution=h', /at most 420 days apart/],
      ['resolution=s', /resolution/],
    ];
    for (const [query, message] of refused) {
      const answer = await world.call('GET', `/vms/${vm.id}/usage/history?${query}`);
      assert.equal(answer.status, 400, query);
      assert.match(answer.body.error, message);
    }
    assert.equal((await world.call('GET', `/vms/${vm.id}x/usage/history`)).status, 404);
  });
});

describe('GET /usage/report', () => {
  it('"per-sandbox items per interval", of deleted sandboxes too, and of no other project', async () => {
    const [one, two] = [await running(), await running()];
    const pieces = Array.from({ length: 60 }, (_, minute) => piece(one, minute));
    await send([...pieces, piece(two, 61, { disk_peak_bytes: 8192 })]);
    await world.call('DELETE', `/vms/${one.id}`);
    await waitFor(world.call, one.id, 'deleted');
    const range = `?start=${at(hour)}&end=${at(hour + 2 * HOUR_MS)}`;
    const { available, items } = await report(range);
    assert.equal(available, true);
    const mine = items.filter(({ sandbox_id: id }) => id === one.id || id === two.id);
    const bytes = { disk_read_bytes: 60, disk_write_bytes: 120, net_rx_bytes: 180, net_tx_bytes: 240 };
    assert.deepEqual(
      mine.map(({ sandbox_id: id, start }) => [id, start]),
      [
        [two.id, at(hour + HOUR_MS)],
        [one.id, at(hour)],
      ],
    );
    const { name, ...counters } = mine[1] ?? {};
    assert.equal(typeof name, 'string');
    assert.deepEqual(counters, {
      sandbox_id: one.id,
      start: at(hour),
      duration_ms: HOUR_MS,
      cpu_core_s: 1800,
      mem_gib_h: 1,
      disk_peak_bytes: 4096,
      ...bytes,
    });
    const days = await report(`${range}&resolution=d`);
    const day = days.items.find(({ sandbox_id: id }) => id === one.id);
    assert.deepEqual([day?.start.slice(11), day?.cpu_core_s], ['00:00:00.000Z', 1800]);
    const stranger = await world.stranger();
    assert.deepEqual((await stranger('GET', '/usage/report')).body.items, []);
  });

  it('is paged: every item is on one page', async () => {
    const { database } = world;
    const range = { from: new Date(hour), to: new Date(hour + 2 * HOUR_MS) };
    const { projectId } = world.call;
    const whole = (await readReport(database, projectId, 'h', range, null)).items;
    assert.ok(whole.length > 3);
    const paged = [];
    for (let after = null, first = true; first || after !== null; first = false) {
      const { items, last } = await readReport(database, projectId, 'h', range, after, 2);
      paged.push(...items);
      after = last as null;
    }
    assert.deepEqual(paged, whole);
  });

  it('bad input is refused', async () => {
    for (const query of ['start=x', 'end=x', `start=${at(hour)}&end=${at(hour)}`, 'resolution=m', 'cursor=x'])
      assert.equal((await world.call('GET', `/usage/report?${query}`)).status, 400, query);
  });
});

describe('what is kept', () => {
  it('partitions are made ahead, and dropped when all in them is older than its retention', async () => {
    const { database } = world;
    const vm = await running();
    const day = 24 * 60;
    await send([piece(vm, 0), piece(vm, -3 * day)]);
    const settings = { ...USAGE_SETTINGS, minuteDays: 1, hourDays: 35 };
    await makePartitions(database, usagePartitions(settings), quiet);
    const names = async (): Promise<string[]> =>
      (
        await database.pool.query<{ name: string }>(
          `select inhrelid::regclass::text as name from pg_inherits where inhparent = 'usage_batches'::regclass`,
        )
      ).rows.map((row) => row.name);
    const old = `usage_batches_${at(hour - 3 * 24 * HOUR_MS)
      .slice(0, 10)
      .replaceAll('-', '_')}`;
    const today = `usage_batches_${at(hour).slice(0, 10).replaceAll('-', '_')}`;
    assert.ok((await names()).includes(old));
    await dropPartitions(database, usagePartitions(settings), quiet);
    const left = await names();
    assert.ok(!left.includes(old) && left.includes(today));
    const minutes = (await history(vm, `?from=${at(hour - 6 * 24 * HOUR_MS)}`)).periods;
    assert.deepEqual(
      minutes.map(({ start }) => start),
      [at(hour)],
    );
    const hours = (await history(vm, `?from=${at(hour - 6 * 24 * HOUR_MS)}&resolution=h`)).periods;
    assert.equal(hours.length, 2, 'hours are kept for longer');
    // What would be in the dropped partition is not accepted again.
    await storeUsage(database, runner.id, { seq: ++seq, pieces: [piece(vm, -3 * day)] }, 1);
    const again = (await history(vm, `?from=${at(hour - 6 * 24 * HOUR_MS)}&resolution=h`)).periods;
    assert.deepEqual(again, hours);
    await world.control.runTask('usage-partitions');
  });

  it('"when metrics store not configured": `available:false`, and runners are told that nothing is stored', async () => {
    const vm = await running();
    await world.restart({ usage: { mode: 'off' } });
    await runner.connect();
    const welcome = runner.received.find((one) => one.type === 'welcome');
    assert.deepEqual(welcome?.capabilities, []);
    assert.deepEqual(await history(vm), { available: false, sandbox_id: vm.id, periods: [] });
    assert.deepEqual(await report(), { available: false, items: [] });
    assert.equal((await world.call('GET', '/vms/nonsense/usage/history')).status, 404);
  });
});
