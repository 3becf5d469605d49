/** Schedules of functions: their API, and when they fire, by a clock that the tests set. */
import assert from 'node:assert/strict';
import { after, before, describe, it } from 'node:test';
import { newUuid } from '@releap/contract';
import type { Database } from '@releap/database';
import { propertyRuns } from '@releap/testing/repetitions';
import { openFresh } from '@releap/testing/postgres';
import { quiet, startWorld, until, type Answer, type World } from '@releap/testing/world';
import * as fc from 'fast-check';
import { nextRun } from '../src/functions/schedules/cron.ts';
import { fireSchedules } from '../src/functions/schedules/fire.ts';
import { newOrg } from './support/billing.ts';
import { newFunction, type FunctionRow } from './support/functions.ts';
import { handled, startScriptedGateway, type ScriptedGateway } from './support/scripted-gateway.ts';

describe('the schedules of a function', () => {
  let gateway: ScriptedGateway;
  let world: World;
  let fn: FunctionRow;
  before(async () => {
    gateway = await startScriptedGateway();
    world = await startWorld({ region: { id: 'here', toolboxProxyUrl: gateway.toolboxUrl } });
    fn = await newFunction(world.database, world.call.projectId);
  });
  after(async () => {
    await world[Symbol.asyncDispose]();
    await gateway[Symbol.asyncDispose]();
  });

  const add = (body: object, name = fn.name): Promise<Answer> =>
    world.call('POST', `/fns/${name}/schedules`, body);
  const list = async (): Promise<Record<string, unknown>[]> =>
    (await world.call('GET', `/fns/${fn.name}/schedules`)).body.schedules;

  it('are created, listed newest first, and deleted', async () => {
    const deep = JSON.parse(`${'['.repeat(500)}${']'.repeat(500)}`) as unknown;
    const payload = { text: 'ä', list: [1, null], 'any JSON': ['\0', '\ud800', deep] };
    const yearly = await add({ cron: '30 4 1 1 *', payload });
    assert.equal(yearly.status, 200, yearly.text);
    const { id, next_run_at, ...rest } = yearly.body;
    assert.deepEqual(rest, { cron: '30 4 1 1 *', enabled: true });
    const next = new Date(next_run_at);
    assert.ok(next.getTime() > Date.now());
    assert.match(next_run_at, /-01-01T04:30:00\.000Z$/, 'in UTC');
    const disabled = await add({ cron: '0 0 29 2 *', enabled: false });
    assert.deepEqual([disabled.body.enabled, disabled.body.next_run_at], [false, null]);
    const listed = await list();
    for (const { created_at, updated_at } of listed)
      assert.ok(created_at !== undefined && created_at === updated_at);
    const shown = listed.map(({ created_at: _created, updated_at: _updated, ...one }) => one);
    assert.deepEqual(shown, [
      {
        id: disabled.body.id,
        cron: '0 0 29 2 *',
        payload: null,
        enabled: false,
        next_run_at: null,
        last_run_at: null,
      },
      { id, cron: '30 4 1 1 *', payload, enabled: true, next_run_at, last_run_at: null },
    ]);
    assert.equal((await world.call('DELETE', `/fns/${fn.name}/schedules/${id}`)).status, 204);
    assert.equal((await world.call('DELETE', `/fns/${fn.name}/schedules/${id}`)).status, 404);
    assert.deepEqual(
      (await list()).map((one) => one['id']),
      [disabled.body.id],
    );
  });

  it('are changed in place: what is absent stays, and one that is enabled again has its next time', async () => {
    const { id, next_run_at: first } = (await add({ cron: '30 4 1 1 *', payload: { a: 1 } })).body;
    const patch = (body: object, of = id) => world.call('PATCH', `/fns/${fn.name}/schedules/${of}`, body);
    const paused = await patch({ enabled: false });
    assert.equal(paused.status, 200, paused.text);
    assert.deepEqual(
      [paused.body.enabled, paused.body.next_run_at, paused.body.payload],
      [false, null, { a: 1 }],
    );
    const again = await patch({ enabled: true, payload: null });
    assert.deepEqual([again.body.next_run_at, again.body.payload], [first, null]);
    const moved = await patch({ cron: '0 0 2 1 *' });
    assert.match(moved.body.next_run_at, /-01-02T00:00:00\.000Z$/);
    assert.deepEqual(
      (await list()).find((one) => one['id'] === id),
      moved.body,
    );
    for (const body of [{}, { cron: '0 0 30 2 *' }, { cron: 'x' }, { enabled: 'no' }])
      assert.equal((await patch(body)).status, 400, JSON.stringify(body));
    assert.equal((await patch({ enabled: true }, newUuid())).status, 404);
    const stranger = await world.stranger();
    assert.equal(
      (await stranger('PATCH', `/fns/${fn.name}/schedules/${id}`, { enabled: false })).status,
      404,
    );
    assert.equal((await list()).find((one) => one['id'] === id)?.['next_run_at'], moved.body.next_run_at);
    await world.call('DELETE', `/fns/${fn.name}/schedules/${id}`);
  });

  it('are refused when the expression is not valid or never fires, with the reason', async () => {
    for (const [cron, reason] of [
      ['', /5 fields/],
      ['* * * *', /5 fields/],
      ['* * * * * *', /5 fields/],
      ['@daily', /5 fields/],
      ['60 * * * *', /Invalid value for minute: 60/],
      ['*/0 * * * *', /illegal stepping/],
      ['a b c d e', /illegal characters/],
      ['0 0 30 2 *', /never fires/],
      ['0 0 31 4,6,9,11 *', /never fires/],
      [`${'1,'.repeat(200)}1 * * * *`, /256/],
    ] as const) {
      const answer = await add({ cron });
      assert.equal(answer.status, 400, `${cron}: ${answer.text}`);
      assert.match(answer.body.error, reason);
    }
    for (const body of [{}, { cron: 5 }, { cron: '* * * * *', enabled: 'yes' }])
      assert.equal((await add(body)).status, 400);
  });

  it('are bounded in number', async () => {
    const { id, projectId, name } = await newFunction(world.database, world.call.projectId);
    await world.database.pool.query(
      `insert into function_schedules (id, function_id, project_id, cron, enabled)
       select gen_random_uuid(), $1, $2, '0 0 1 1 *', false from generate_series(1, 99)`,
      [id, projectId],
    );
    const last = await add({ cron: '0 0 1 1 *' }, name);
    assert.equal(last.status, 200, last.text);
    const more = await add({ cron: '0 0 1 1 *' }, name);
    assert.equal(more.status, 400);
    assert.match(more.body.error, /100 schedules already/);
  });

  it('are those of one project: 404 for unknown functions and schedules', async () => {
    const stranger = await world.stranger();
    const { body } = await add({ cron: '0 0 1 1 *' });
    const other = await newFunction(world.database, world.call.projectId);
    for (const answer of [
      await add({ cron: '0 0 1 1 *' }, 'nothing'),
      await world.call('GET', '/fns/nothing/schedules'),
      await world.call('DELETE', `/fns/nothing/schedules/${body.id}`),
      await world.call('DELETE', `/fns/${other.name}/schedules/${body.id}`),
      await world.call('DELETE', `/fns/${fn.name}/schedules/${newUuid()}`),
      await world.call('DELETE', `/fns/${fn.name}/schedules/x`),
      await stranger('POST', `/fns/${fn.name}/schedules`, { cron: '0 0 1 1 *' }),
      await stranger('GET', `/fns/${fn.name}/schedules`),
      await stranger('DELETE', `/fns/${fn.name}/schedules/${body.id}`),
    ])
      assert.equal(answer.status, 404, answer.text);
  });

  it('call it with their payload, once, with two servers at once', async () => {
    gateway.answer = (call) => handled(call, '"done"');
    await world.another();
    const { body } = await add({ cron: '0 0 1 1 *', payload: { n: 1 } });
    await world.database.pool.query(
      `update function_schedules set next_run_at = now() - interval '3 hours' where id = $1`,
      [body.id],
    );
    const fired = async (): Promise<{ id: string; status: string; source: string }[]> =>
      (
        await world.database.pool.query<{ id: string; status: string; source: string }>(
          'select id, status, source from invocations where schedule_id = $1',
          [body.id],
        )
      ).rows;
    await until(async () => (await fired())[0]?.status === 'succeeded');
    const [one, ...more] = await fired();
    assert.deepEqual([one?.source, more], ['schedule', []]);
    const [call] = gateway.callsOf(one?.id ?? '');
    assert.deepEqual([call?.body.toString(), call?.headers['content-type']], ['{"n":1}', 'application/json']);
    assert.equal((await world.call('GET', `/invocations/${one?.id}`)).body.result, 'done');
    const shown = (await list()).find(({ id }) => id === body.id);
    assert.ok(Date.parse(String(shown?.['last_run_at'])) <= Date.now());
    assert.equal(shown?.['next_run_at'], body.next_run_at);
  });
});

describe('a schedule fires', () => {
  let database: Database;
  let fn: FunctionRow;
  before(async () => {
    database = await openFresh();
    fn = await newFunction(database, (await newOrg(database)).projectId);
  });
  after(() => database.close());

  const MINUTE = 60_000;
  const start = Date.UTC(2031, 0, 31, 23, 58);
  const at = (minutes: number): Date => new Date(start + minutes * MINUTE);
  const fire = (when: Date): Promise<number> => fireSchedules(database, quiet, { at: when });

  async function newSchedule(cron: string, from: Date): Promise<string> {
    await database.pool.query('delete from function_schedules');
    const id = newUuid();
    await database.pool.query(
      `insert into function_schedules (id, function_id, project_id, cron, payload, enabled, next_run_at)
       values ($1, $2, $3, $4, null, true, $5)`,
      [id, fn.id, fn.projectId, cron, nextRun(cron, from)],
    );
    return id;
  }
  const firesOf = async (id: string): Promise<string[]> =>
    (
      await database.pool.query<{ queued_at: Date }>(
        'select queued_at from invocations where schedule_id = $1 order by queued_at',
        [id],
      )
    ).rows.map((row) => row.queued_at.toISOString());
  const nextOf = async (id: string): Promise<Date | null | undefined> =>
    (
      await database.pool.query<{ next_run_at: Date | null }>(
        'select next_run_at from function_schedules where id = $1',
        [id],
      )
    ).rows[0]?.next_run_at;

  it('at its times, over the end of a month, however often the clock is read', async () => {
    const id = await newSchedule('*/2 * * * *', at(0));
    for (let second = 0; second <= 360; second += 20) await fire(new Date(start + second * 1000));
    assert.deepEqual(
      await firesOf(id),
      [at(2), at(4), at(6)].map((one) => one.toISOString()),
    );
    assert.deepEqual(await nextOf(id), at(8));
  });

  it('once for all times that have passed while no server was there, or that the clock has jumped over', async () => {
    const id = await newSchedule('* * * * *', at(0));
    await fire(new Date(start + 1000 * MINUTE + 5000));
    assert.deepEqual(await firesOf(id), [new Date(start + 1000 * MINUTE + 5000).toISOString()]);
    assert.deepEqual(await nextOf(id), at(1001));
  });

  it('no time twice when the clock is set back', async () => {
    const id = await newSchedule('* * * * *', at(0));
    await fire(at(10));
    for (const minutes of [3, 4, 9, 10]) assert.equal(await fire(at(minutes)), 0);
    assert.equal(await fire(at(11)), 1);
    assert.equal((await firesOf(id)).length, 2);
  });

  it('never again after its last time, and not while it is disabled', async () => {
    const id = await newSchedule('0 0 1 2 *', at(0));
    await database.pool.query(`update function_schedules set cron = '0 0 30 2 *' where id = $1`, [id]);
    assert.equal(await fire(at(2)), 1);
    assert.deepEqual(await nextOf(id), null);
    assert.equal(await fire(at(100_000)), 0);
  });

  it('with a null payload as the JSON text null', async () => {
    const id = await newSchedule('* * * * *', at(0));
    await fire(at(1));
    const { rows } = await database.pool.query<{ body: Buffer }>(
      'select p.body from invocation_payloads p join invocations i on i.id = p.invocation_id where i.schedule_id = $1',
      [id],
    );
    assert.deepEqual(
      rows.map(({ body }) => body.toString()),
      ['null'],
    );
  });

  it('with others, more than one batch of them, each once from three servers at once', async () => {
    await newSchedule('* * * * *', at(0));
    await database.pool.query(
      `insert into function_schedules (id, function_id, project_id, cron, enabled, next_run_at)
       select gen_random_uuid(), $1, $2, '* * * * *', true, $3::timestamptz + n * interval '1 ms' from generate_series(1, 500) n`,
      [fn.id, fn.projectId, at(1)],
    );
    await Promise.all([fire(at(2)), fire(at(2)), fire(at(2))]);
    // One may have passed rows by that another one had locked.
    await fire(at(2));
    const { rows } = await database.pool.query<{ fires: number; n: number }>(
      `select fires, count(*)::int as n from (
         select count(i.id)::int as fires from function_schedules s left join invocations i on i.schedule_id = s.id group by s.id) c
        group by fires`,
    );
    assert.deepEqual(rows, [{ fires: 1, n: 501 }]);
  });

  it('once for each scheduled time while the clock advances, and less often when the clock jumps', async () => {
    const cron = fc.constantFrom('* * * * *', '*/7 * * * *', '5,50 */3 * * *', '0 0 1 * *', '30 1 * * 0');
    const jump = fc.integer({ min: -90, max: 4_000 });
    await fc.assert(
      fc.asyncProperty(cron, fc.array(jump, { maxLength: 12 }), async (text, jumps) => {
        const id = await newSchedule(text, at(0));
        let now = 0;
        let expected = 0;
        let next = nextRun(text, at(0)) as Date;
        for (const minutes of jumps) {
          now = Math.max(0, now + minutes);
          await fire(at(now));
          if (next > at(now)) continue;
          expected += 1;
          next = nextRun(text, at(now)) as Date;
        }
        assert.equal((await firesOf(id)).length, expected);
        assert.deepEqual(await nextOf(id), next);
      }),
      { numRuns: propertyRuns(100, 10) },
    );
  });
});
