/** Reports of invocations from hourly sums and histograms, compared with what the log says. */
import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { newUuid } from '@releap/contract';
import { openFresh } from '@releap/testing/postgres';
import { DEFAULT_PRICES } from '../src/tenancy/billing/prices.ts';
import { mergeHours } from '../src/functions/invocations/hours.ts';
import { readFunctionReport, readSeries, reportRange } from '../src/functions/invocations/reports.ts';
import { chargeRunning, endAbandoned } from '../src/functions/invocations/running.ts';
import { recordFinished } from '../src/functions/invocations/store.ts';
import { newOrg } from './support/billing.ts';
import { finished, newFunction, type FunctionRow } from './support/functions.ts';

const HOUR_MS = 3_600_000;
/** A whole hour, four hours ago. */
const hour = Math.floor(Date.now() / HOUR_MS) * HOUR_MS - 4 * HOUR_MS;
const RETENTION_DAYS = 30;

const database = await openFresh();
const projectId = (await newOrg(database)).projectId;

const range = (from: number, to: number) =>
  reportRange({ from: new Date(from), to: new Date(to) }, false, RETENTION_DAYS);
const whole = range(hour - HOUR_MS, hour + 3 * HOUR_MS);
const reportOf = async (of: FunctionRow, exactMax?: number, within = whole) =>
  (await readFunctionReport(database.pool, projectId, within, of.name, exactMax)).functions[0];
const rowsOf = async (of: FunctionRow): Promise<number> =>
  (await database.pool.query('select 1 from invocation_hours where function_id = $1', [of.id])).rowCount ?? 0;

describe('sums of ended invocations by hour', () => {
  it('count what the log has, and their percentiles are at most 2 % away, before and after they are merged', async () => {
    const of = await newFunction(database, projectId);
    /** From 20 microseconds to half a minute, more of the short ones. */
    const rows = Array.from({ length: 2_000 }, (_, index) =>
      finished(of, {
        queuedAt: new Date(hour + ((index * 7919) % (2 * HOUR_MS))),
        durationMs: 0.02 * 1.5e6 ** ((((index * 104_729) % 2_000) / 2_000) ** 2),
        cold: index % 10 === 0,
        status: index % 7 === 0 ? 'failed' : 'succeeded',
      }),
    );
    for (let at = 0; at < rows.length; at += 500)
      await recordFinished(database.pool, DEFAULT_PRICES, rows.slice(at, at + 500));
    const exact = await reportOf(of);
    assert.ok(exact);
    assert.equal(exact.total, 2_000);
    const within = (estimate: typeof exact | undefined): void => {
      assert.ok(estimate);
      for (const name of ['p50_ms', 'p95_ms', 'p99_ms'] as const) {
        const [is, should] = [estimate[name] ?? 0, exact[name] ?? 0];
        assert.ok(Math.abs(is - should) <= 0.02 * should, `${name}: ${is} of ${should}`);
      }
      const { p50_ms: _p50, p95_ms: _p95, p99_ms: _p99, ...others } = estimate;
      const { p50_ms: _e50, p95_ms: _e95, p99_ms: _e99, ...expected } = exact;
      assert.deepEqual(others, expected);
    };
    within(await reportOf(of, 0));
    assert.ok((await rowsOf(of)) > 2);
    await Promise.all([mergeHours(database.pool), mergeHours(database.pool)]);
    assert.equal(await rowsOf(of), 2);
    within(await reportOf(of, 0));
    // From within an hour to within another one.
    const cut = range(hour + HOUR_MS / 3, hour + 1.5 * HOUR_MS);
    const part = rows.filter(({ queuedAt }) => queuedAt >= cut.from && queuedAt < cut.to);
    assert.equal((await reportOf(of, 0, cut))?.total, part.length);
    const points = await readSeries(database.pool, of.id, 'h', cut);
    assert.deepEqual(
      points.map(({ total, errors }) => [total, errors]),
      [hour, hour + HOUR_MS].map((start) => {
        const ofHour = part.filter(({ queuedAt }) => Math.floor(+queuedAt / HOUR_MS) * HOUR_MS === start);
        return [ofHour.length, ofHour.filter(({ status }) => status === 'failed').length];
      }),
    );
  });

  it('stay when the log is gone, of which an hour is counted as a whole', async () => {
    const of = await newFunction(database, projectId);
    const queuedAt = new Date(hour + HOUR_MS / 4);
    await recordFinished(database.pool, DEFAULT_PRICES, [finished(of, { queuedAt })]);
    await database.pool.query('delete from invocations where function_id = $1', [of.id]);
    const cut = { ...range(hour + HOUR_MS / 2, hour + 2 * HOUR_MS), logSince: new Date() };
    const left = await reportOf(of, undefined, cut);
    assert.deepEqual([left?.total, left?.sum_ms], [1, 20]);
    assert.ok(Math.abs((left?.p99_ms ?? 0) - 20) <= 0.4);
  });

  it('follow an invocation that was given up, is reported again, and ends', async () => {
    const of = await newFunction(database, projectId);
    const end = finished(of, { queuedAt: new Date(hour), durationMs: 90_000 });
    const running = {
      id: end.id,
      queuedAt: end.queuedAt,
      functionId: of.id,
      versionId: of.versionId,
      version: 1,
      source: 'invoke' as const,
      attempt: null,
      startedAt: end.queuedAt,
      elapsedMs: 30_000,
      cold: false,
    };
    const counted = async () => {
      const found = await reportOf(of, 0);
      return [found?.total, found?.succeeded, found?.failed, found?.sum_ms];
    };
    await chargeRunning(database.pool, DEFAULT_PRICES, [running]);
    assert.deepEqual(await counted(), [1, 0, 0, 0]);
    await endAbandoned(database.pool, -1_000);
    assert.deepEqual(await counted(), [1, 0, 1, 30_000]);
    await mergeHours(database.pool);
    await chargeRunning(database.pool, DEFAULT_PRICES, [{ ...running, elapsedMs: 60_000 }]);
    assert.deepEqual(await counted(), [1, 0, 0, 0]);
    for (let time = 0; time < 2; time += 1) await recordFinished(database.pool, DEFAULT_PRICES, [end]);
    assert.deepEqual(await counted(), [1, 1, 0, 90_000]);
    await mergeHours(database.pool);
    assert.deepEqual(await counted(), [1, 1, 0, 90_000]);
    const { billed_credits: billed } = await readFunctionReport(database.pool, projectId, whole, of.name);
    const log = await database.pool.query<{ billed: string }>(
      'select billed::text from invocations where id = $1',
      [end.id],
    );
    assert.notEqual(billed, '0');
    const sums = await database.pool.query<{ billed: string }>(
      'select sum(billed)::text as billed from invocation_hours where function_id = $1',
      [of.id],
    );
    assert.deepEqual(sums.rows, log.rows);
  });

  it('what was received before they were kept is read from the log', async () => {
    const of = await newFunction(database, projectId);
    const receivedAt = [hour - HOUR_MS / 2, hour + HOUR_MS / 2, hour + 1.5 * HOUR_MS];
    const since = await database.pool.query<{ text: string }>(
      `select prosrc as text from pg_proc where proname = 'invocation_hours_since'`,
    );
    const keptSince = (text: string) =>
      database.pool.query(
        `create or replace function invocation_hours_since() returns timestamptz language sql immutable parallel safe as '${text.replaceAll("'", "''")}'`,
      );
    await keptSince(`select '${new Date(hour + HOUR_MS).toISOString()}'::timestamptz`);
    try {
      await recordFinished(
        database.pool,
        DEFAULT_PRICES,
        receivedAt.map((ms) => finished(of, { id: newUuid(), queuedAt: new Date(ms) })),
      );
      assert.equal(await rowsOf(of), 1);
      assert.equal((await reportOf(of, 0))?.total, 3);
      assert.equal((await readSeries(database.pool, of.id, 'h', whole)).length, 3);
    } finally {
      await keptSince(since.rows[0]?.text ?? '');
    }
  });
});
