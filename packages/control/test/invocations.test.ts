/** `POST /fns/:name/spawn`, `POST /fns/:name/map`, `GET /invocations/:id`, and how what the gateway answers is recorded. */
import assert from 'node:assert/strict';
import { after, describe, it } from 'node:test';
import { newUuid } from '@releap/contract';
import { startWorld, until, untilAnswered, type Answer } from '@releap/testing/world';
import { newFunction } from './support/functions.ts';
import { handled, refused, startScriptedGateway } from './support/scripted-gateway.ts';

const gateway = await startScriptedGateway();
const world = await startWorld({ region: { id: 'here', toolboxProxyUrl: gateway.toolboxUrl } });
const fn = await newFunction(world.database, world.call.projectId);
after(() => gateway[Symbol.asyncDispose]());

const MIB = 1024 * 1024;
type Body = NonNullable<RequestInit['body']>;

const spawn = (body?: Body, headers: Record<string, string> = {}, name = fn.name): Promise<Answer> =>
  world.call('POST', `/fns/${name}/spawn`, undefined, { headers, ...(body === undefined ? {} : { body }) });
async function spawned(body?: Body, headers: Record<string, string> = {}): Promise<string> {
  const answer = await spawn(body, headers);
  assert.equal(answer.status, 200, answer.text);
  assert.equal(answer.body.status, 'pending');
  return answer.body.invocation_id as string;
}
async function ended(id: string): Promise<Answer> {
  let answer: Answer | undefined;
  await until(async () => {
    answer = await world.call('GET', `/invocations/${id}`);
    return answer.body.done === true;
  });
  assert.ok(answer);
  return answer;
}
const count = async (what: 'invocations' | 'invocation_payloads', id: string): Promise<number> => {
  const column = what === 'invocations' ? 'id' : 'invocation_id';
  return (await world.database.pool.query(`select from ${what} where ${column} = $1`, [id])).rowCount ?? 0;
};

describe('spawn', () => {
  it('stores the call, has it run with its body as it was sent, and keeps the JSON result as it was written', async () => {
    gateway.answer = (call) =>
      handled(call, ' {"n": 12345678901234567890, "n": 1.50}', { cold: true, version: 1 });
    const body = Buffer.from([0, 255, 10, 13, 0]);
    const id = await spawned(body, { 'content-type': 'image/x-none; a="b"' });
    const answer = await ended(id);
    assert.match(answer.text, /"result": \{"n": 12345678901234567890, "n": 1\.50\}\}$/);
    const { queued_at, finished_at, duration_ms, result, ...rest } = answer.body;
    assert.deepEqual(rest, { id, version: 1, status: 'succeeded', cold: true, error: null, done: true });
    assert.ok(Date.parse(queued_at) <= Date.parse(finished_at), answer.text);
    assert.ok(duration_ms >= 5 && result !== undefined);
    const [call, ...more] = gateway.callsOf(id);
    assert.equal(more.length, 0);
    assert.ok(call);
    assert.deepEqual([call.name, call.body], [fn.name, body]);
    const { headers } = call;
    assert.equal(headers['content-type'], 'image/x-none; a="b"');
    assert.equal(headers['x-rlp-queue'], 'wait');
    assert.match(headers.authorization ?? '', /^Bearer [^.]+\.[^.]+\.[^.]+$/);
    assert.equal(await count('invocation_payloads', id), 0, 'the payload is deleted with the end');
  });

  it('has the handler get the headers of the request, without credentials and what is of the connection', async () => {
    gateway.answer = (call) => handled(call, '1');
    const id = await spawned('x', {
      'content-encoding': 'gzip',
      traceparent: '00-1-2-01',
      'x-signature': 'sha256=1',
      'x-service-preview-token': 'a',
      'x-daytona-preview-token': 'a',
      cookie: 'a=b',
      'x-rlp-queue': 'none',
      'x-forwarded-for': '192.0.2.1',
    });
    await ended(id);
    const { headers } = gateway.callsOf(id)[0] ?? assert.fail('it was not sent');
    const tokens = ['x-service-preview-token', 'x-daytona-preview-token'].map((name) => headers[name]);
    assert.deepEqual(tokens, [undefined, undefined]);
    assert.deepEqual(
      ['content-encoding', 'traceparent', 'x-signature', 'cookie', 'x-rlp-queue', 'x-forwarded-for'].map(
        (name) => headers[name],
      ),
      ['gzip', '00-1-2-01', 'sha256=1', undefined, 'wait', undefined],
    );
    assert.match(headers.authorization ?? '', /^Bearer [^.]+\.[^.]+\.[^.]+$/, 'not the API key');
    const long = await spawn('x', { 'x-long': 'x'.repeat(9 * 1024) });
    assert.equal(long.status, 400, long.text);
    assert.match(long.body.error, /headers .* at most 8192 are stored/);
  });

  it('takes bodies of any kind up to 6 MiB, also none', async () => {
    gateway.answer = (call) => handled(call, String(call.body.length));
    const none = await spawned();
    const large = await spawned(Buffer.alloc(6 * MIB, 'x'), { 'content-type': 'text/plain' });
    const json = await spawned('{"a": 1.0}', { 'content-type': 'application/json' });
    for (const id of [none, large, json]) assert.equal((await ended(id)).body.status, 'succeeded');
    assert.deepEqual(
      [none, large, json].map((id) => [
        gateway.callsOf(id)[0]?.body.length,
        gateway.callsOf(id)[0]?.headers['content-type'],
      ]),
      [
        [0, 'application/octet-stream'],
        [6 * MIB, 'text/plain'],
        [10, 'application/json'],
      ],
    );
    const more = await spawn(Buffer.alloc(6 * MIB + 1));
    assert.equal(more.status, 400, more.text);
    assert.match(more.body.error, /at most 6291456 bytes/);
    const type = await spawn('x', { 'content-type': `text/${'x'.repeat(251)}` });
    assert.equal(type.status, 400, type.text);
  });

  it('answers 404 for a function that is unknown, of another project, or has no version yet', async () => {
    const building = await newFunction(world.database, world.call.projectId);
    await world.database.pool.query('update functions set current_version = null where id = $1', [
      building.id,
    ]);
    const stranger = await world.stranger();
    for (const answer of [
      await spawn('x', {}, 'nothing'),
      await spawn('x', {}, building.name),
      await spawn('x', {}, '%00%2f'),
      await world.call('POST', '/fns/nothing/map', { payloads: [1] }),
      await world.call('POST', `/fns/${building.name}/map`, { payloads: [1] }),
      await stranger('POST', `/fns/${fn.name}/spawn`, {}),
      await stranger('POST', `/fns/${fn.name}/map`, { payloads: [1] }),
    ])
      assert.equal(answer.status, 404, answer.text);
  });

  it('stores a request that is repeated under its Idempotency-Key once', async () => {
    gateway.answer = (call) => handled(call);
    const key = { 'idempotency-key': 'spawn-once', 'content-type': 'text/plain' };
    const answers = await Promise.all(
      Array.from({ length: 5 }, () => untilAnswered(() => spawn('same', key))),
    );
    assert.deepEqual(new Set(answers.map(({ text }) => text)).size, 1, answers[0]?.text);
    const id = answers[0]?.body.invocation_id as string;
    await ended(id);
    const late = await spawn('same', key);
    assert.equal(late.body.invocation_id, id);
    assert.equal(await count('invocations', id), 1);
    assert.equal((await spawn('other', key)).status, 409);
    assert.equal((await spawn('same', { ...key, 'content-type': 'text/html' })).status, 409);
  });
});

describe('map', () => {
  it('runs each payload once, as JSON, and gives the ids in their order', async () => {
    gateway.answer = (call) => handled(call, call.body);
    const payloads = Array.from({ length: 1000 }, (_, n) => (n === 7 ? null : { n, text: 'ä \u2028' }));
    const answer = await world.call('POST', `/fns/${fn.name}/map`, { payloads });
    assert.equal(answer.status, 200, answer.text.slice(0, 200));
    const ids = answer.body.invocation_ids as string[];
    assert.deepEqual([answer.body.count, new Set(ids).size], [1000, 1000]);
    const left = (): Promise<{ rows: { n: number }[] }> =>
      world.database.pool.query(
        'select count(*)::int as n from invocation_payloads where invocation_id = any($1)',
        [ids],
      );
    await until(async () => (await left()).rows[0]?.n === 0);
    const byId = Map.groupBy(gateway.calls, ({ id }) => id);
    for (const [n, id] of ids.entries()) {
      const [call, ...more] = byId.get(id) ?? [];
      assert.equal(more.length, 0);
      assert.deepEqual(JSON.parse(call?.body.toString() ?? ''), payloads[n]);
      assert.equal(call?.headers['content-type'], 'application/json');
    }
    assert.deepEqual((await ended(ids[7] ?? '')).body.result, null);
    assert.deepEqual((await ended(ids[8] ?? '')).body.result, { n: 8, text: 'ä \u2028' });
  });

  it('takes payloads of any JSON: with NUL, half a surrogate pair, and a thousand levels deep', async () => {
    gateway.answer = (call) => handled(call, 'true');
    const deep = (levels: number): string => `${'['.repeat(levels)}${']'.repeat(levels)}`;
    const map = (payloads: readonly string[]): Promise<Answer> =>
      world.call('POST', `/fns/${fn.name}/map`, `{"payloads":[${payloads.join()}]}`, {
        headers: { 'content-type': 'application/json' },
      });
    const payloads = ['"a\\u0000b"', '"\\ud800"', '{"\\u0000":1}', deep(1_000)];
    const answer = await map(payloads);
    assert.equal(answer.status, 200, answer.text);
    for (const [index, id] of (answer.body.invocation_ids as string[]).entries()) {
      await ended(id);
      assert.equal(gateway.callsOf(id)[0]?.body.toString(), payloads[index]);
    }
    for (const levels of [1_002, 100_000]) {
      const refused = await map([deep(levels)]);
      assert.equal(refused.status, 400);
      assert.match(refused.body.error, /^payloads\[0\] is nested too deep: at most 1000 levels/);
    }
  });

  it('refuses none, more than 1,000, and one that is too large, and stores nothing of them', async () => {
    const rows = async (): Promise<number> =>
      (await world.database.pool.query('select from invocations')).rowCount ?? 0;
    const before = await rows();
    const map = (body: unknown): Promise<Answer> => world.call('POST', `/fns/${fn.name}/map`, body);
    for (const [body, expected] of [
      [{ payloads: [] }, /payloads/],
      [{}, /payloads/],
      [{ payloads: 'x' }, /payloads/],
      [[], /object/],
      [{ payloads: Array.from({ length: 1001 }, () => 1) }, /1000/],
      [{ payloads: [1, 'x'.repeat(6 * MIB)] }, /payloads\[1\] is too large/],
      [{ payloads: ['x'.repeat(8 * MIB)] }, /too large/],
    ] as const) {
      const answer = await map(body);
      assert.equal(answer.status, 400, answer.text.slice(0, 200));
      assert.match(answer.body.error, expected);
    }
    assert.equal(await rows(), before);
  });
});

describe('the record of an invocation', () => {
  it('has the outcome that the gateway reports', async () => {
    const large = JSON.stringify('x'.repeat(256 * 1024));
    const cases: [string, (call: Parameters<typeof handled>[0]) => void, object][] = [
      ['text', (call) => handled(call, 'no json'), { status: 'succeeded', error: null }],
      ['large', (call) => handled(call, large), { status: 'succeeded', error: null }],
      ['redirect', (call) => handled(call, '1', { status: 302 }), { status: 'succeeded', result: 1 }],
      ['deep', (call) => handled(call, '['.repeat(100_000) + ']'.repeat(100_000)), { status: 'succeeded' }],
      ['bytes', (call) => handled(call, Buffer.from([0x22, 0xff, 0x22])), { status: 'succeeded' }],
      [
        'failed',
        (call) => handled(call, 'no\0 luck', { status: 500, version: 1 }),
        { status: 'failed', version: 1, error: 'the handler answered with status 500: no\ufffd luck' },
      ],
      ['shed', (call) => refused(call, 429, 'full'), { status: 'shed', error: 'full', duration_ms: null }],
      [
        'timeout',
        (call) => refused(call, 504, 'late', { 'x-rlp-duration-ms': '300000', 'x-rlp-fn-version': '1' }),
        { status: 'timeout', error: 'late', version: 1, duration_ms: 300_000 },
      ],
      ['gone', (call) => refused(call, 404, 'no function'), { status: 'failed', error: 'no function' }],
      ['credits', (call) => refused(call, 402, 'no credits'), { status: 'failed', error: 'no credits' }],
    ];
    gateway.answer = (call) => cases.find(([name]) => name === call.body.toString())?.[1](call);
    for (const [name, , expected] of cases) {
      const { body, text } = await ended(await spawned(name));
      const wanted = { result: undefined, ...expected };
      for (const [field, value] of Object.entries(wanted))
        assert.deepEqual(
          (body as Record<string, unknown>)[field],
          value,
          `${name}.${field} of ${text.slice(0, 300)}`,
        );
    }
  });

  it('is the same 404 for ids that are unknown, malformed, or of another project', async () => {
    gateway.answer = (call) => handled(call);
    const id = await spawned('x');
    const stranger = await world.stranger();
    for (const answer of [
      await world.call('GET', `/invocations/${newUuid()}`),
      await world.call('GET', '/invocations/nothing'),
      await stranger('GET', `/invocations/${id}`),
    ])
      assert.equal(answer.status, 404, answer.text);
  });

  it('waits while no gateway can be reached, and does not count these attempts', async () => {
    await gateway.stop();
    const id = await spawned('later');
    await until(async () => {
      const { text } = await world.call('GET', `/invocations/${id}`);
      return /"pending"/.test(text);
    });
    const twice = await spawned('too');
    await gateway.start();
    gateway.answer = (call) => refused(call, 503, 'not connected');
    await until(() => gateway.callsOf(id).length > 0);
    gateway.answer = (call) => handled(call);
    assert.equal((await ended(id)).body.status, 'succeeded');
    assert.equal((await ended(twice)).body.status, 'succeeded');
    const { rows } = await world.database.pool.query('select attempt from invocations where id = $1', [id]);
    assert.deepEqual(rows, [{ attempt: 1 }]);
  });
});
