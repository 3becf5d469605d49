import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import { type ApiError, badRequest, tokenDigest } from '@releap/contract';
import type { IdGenerator } from '../src/platform/idempotency/id-generator.ts';
import { canonical, createIdempotency, type Idempotency } from '../src/platform/idempotency/idempotency.ts';
import { inspectSandboxes } from '@releap/testing/inspect';
import { quiet } from '@releap/testing/logging';
import { startWorld, untilAnswered, refusalOf } from '@releap/testing/world';

const world = await startWorld();

const withKey = (key: string): RequestInit => ({ headers: { 'idempotency-key': key } });
const count = async (): Promise<number> => (await inspectSandboxes(world.database)).length;

describe('POST /vms with an Idempotency-Key', () => {
  it('makes one sandbox and gives the same answer, token included, to every repetition', async () => {
    const before = await count();
    const body = { image: 'busybox', env: { A: '1' } };
    const answers = await Promise.all(
      Array.from({ length: 10 }, () => untilAnswered(() => world.call('POST', '/vms', body, withKey('one')))),
    );
    assert.deepEqual(new Set(answers.map((one) => `${one.status} ${one.text}`)).size, 1, answers[0]?.text);
    assert.equal(answers.filter((one) => one.headers.get('idempotency-replayed') === 'true').length, 9);
    assert.equal(await count(), before + 1);
    const swapped = await world.call('POST', '/vms', '{"env":{"A":"1"},"image":"busybox"}', withKey('one'));
    assert.equal(swapped.text, answers[0]?.text, 'the order of fields is no difference');
  });

  it('refuses another request under the same key, and leaves the keys of other callers alone', async () => {
    const body = { image: 'busybox' };
    const mine = await world.call('POST', '/vms', body, withKey('two'));
    const other = await world.call('POST', '/vms', { ...body, name: 'x' }, withKey('two'));
    assert.deepEqual(
      [other.status, Object.keys(refusalOf(other) as object)],
      [409, ['error', 'code', 'retryable']],
    );
    assert.match(other.body.error, /Idempotency-Key "two" was used for another request/);
    const elsewhere = await world.call(
      'POST',
      '/images',
      { name: 'x', source: { type: 'registry', ref: 'a/b' } },
      withKey('two'),
    );
    assert.equal(elsewhere.status, 409);
    const stranger = await (await world.stranger())('POST', '/vms', body, withKey('two'));
    assert.equal(stranger.status, 200);
    assert.notEqual(stranger.body.vm_id, mine.body.vm_id);
  });

  it('stores no refusal: the same request may succeed later', async () => {
    const body = { image: 'not-there' };
    const first = await world.call('POST', '/vms', body, withKey('three'));
    assert.equal(first.status >= 400, true);
    const again = await world.call('POST', '/vms', { image: 'busybox' }, withKey('three'));
    assert.equal(again.status, 200, again.text);
  });

  it('refuses keys that are empty, too long or not plain', async () => {
    for (const key of ['', 'x'.repeat(256), 'a b', 'ä']) {
      const answer = await world.call('POST', '/vms', { image: 'busybox' }, withKey(key));
      assert.equal(answer.status, 400, key);
      assert.match(answer.body.error, /header Idempotency-Key must be 1 to 255 visible ASCII characters/);
    }
    assert.equal(
      (await world.call('GET', '/vms', undefined, withKey('a b'))).status,
      200,
      'only where it means something',
    );
  });

  it('after a crash between the work and its answer makes the same sandbox, not another', async () => {
    const body = { image: 'busybox' };
    const first = await world.call('POST', '/vms', body, withKey('crash'));
    const before = await count();
    // As a server leaves it that dies before it has written the answer down.
    await world.database.pool.query(
      `update idempotency_keys set sealed = null, lease_until = now() where id = (select id from idempotency_keys order by created_at desc limit 1)`,
    );
    const again = await world.call('POST', '/vms', body, withKey('crash'));
    assert.equal(again.text, first.text, 'with the same ids and the same token');
    assert.equal(await count(), before);
    const { rows } = await world.database.pool.query('select 1 from sandboxes where access_token_hash = $1', [
      tokenDigest(again.body.access_token),
    ]);
    assert.equal(rows.length, 1);
  });

  it('keeps nothing in the database that gives a token away', async () => {
    const { body } = await world.call('POST', '/vms', { image: 'busybox' }, withKey('secret'));
    const { rows } = await world.database.pool.query<{ dump: string }>(
      `select string_agg(encode(sealed, 'escape') || encode(salt, 'escape'), '') as dump from idempotency_keys`,
    );
    assert.ok(!(rows[0]?.dump ?? '').includes(body.access_token));
    assert.ok(!(rows[0]?.dump ?? '').includes(body.vm_id));
  });
});

describe('repeated work', () => {
  let runs = 0;
  const request = (key: string) => ({ caller: 'me', key, request: { a: 1 } });
  const store = (options = {}): Idempotency =>
    createIdempotency({
      log: quiet,
      database: world.database,
      secret: () => Promise.resolve('the secret of the tests'),
      leaseMs: 1_000,
      patienceMs: 60_000,
      ...options,
    });
  const work = async (fresh: IdGenerator): Promise<unknown> => {
    runs++;
    return { id: fresh.uuid(), token: fresh.token('apiKey') };
  };

  it('is waited for, on any server', async () => {
    runs = 0;
    const slow = async (fresh: IdGenerator): Promise<unknown> => {
      await sleep(200);
      return work(fresh);
    };
    const [one, other] = [store({ leaseMs: 60_000 }), store({ leaseMs: 60_000 })];
    const [a, b] = await Promise.all([one.run(request('slow'), slow), other.run(request('slow'), slow)]);
    assert.deepEqual(a.answer, b.answer);
    assert.equal(runs, 1);
  });

  it('is refused with 409 when it takes longer than the wait limit', async () => {
    const patient = store({ patienceMs: 50, leaseMs: 60_000 });
    const [begun, done] = [Promise.withResolvers<void>(), Promise.withResolvers<void>()];
    const first = patient.run(request('long'), async (fresh) => {
      begun.resolve();
      await done.promise;
      return work(fresh);
    });
    await begun.promise;
    await assert.rejects(
      patient.run(request('long'), work),
      (error: ApiError) => error.status === 409 && /still in progress/.test(error.message),
    );
    done.resolve();
    await first;
  });

  it('whose worker has died is taken over once its lease has ended, with the same ids', async () => {
    const seen: unknown[] = [];
    await assert.rejects(
      store().run(request('died'), async (fresh) => {
        seen.push(await work(fresh));
        throw new Error('the connection broke: it is unknown what was written');
      }),
    );
    assert.deepEqual((await store().run(request('died'), work)).answer, seen[0]);
  });

  it('that was refused leaves its key free', async () => {
    await assert.rejects(
      store().run(request('refused'), () => Promise.reject(badRequest('no'))),
      /no/,
    );
    assert.equal((await store().run(request('refused'), work)).replayed, false);
  });

  it('cannot be opened with another secret, and is done again once it has expired', async () => {
    const done = await store().run(request('old'), work);
    await assert.rejects(
      createIdempotency({
        database: world.database,
        secret: () => Promise.resolve('another'),
        log: quiet,
      }).run(request('old'), work),
      /its response is no longer available/,
    );
    await world.database.pool.query(`update idempotency_keys set expires_at = now() - interval '1 second'`);
    const anew = await store().run(request('old'), work);
    assert.equal(anew.replayed, false);
    assert.notDeepEqual(anew.answer, done.answer);
    await world.database.pool.query(`update idempotency_keys set expires_at = now() - interval '1 second'`);
    await store().sweep();
    const { rowCount } = await world.database.pool.query('select 1 from idempotency_keys');
    assert.equal(rowCount, 0);
  });

  it('is removed once it has expired, in any number, and nothing else is', async () => {
    await world.database.pool.query(
      `insert into idempotency_keys (id, request_hash, salt, expires_at)
       select sha256(('old ' || n)::bytea), sha256('request'), 'salt', now() - interval '1 second' from generate_series(1, 2500) n`,
    );
    await store().run(request('young'), work);
    await store().sweep();
    const { rows } = await world.database.pool.query(
      `select count(*) filter (where expires_at <= now())::integer as old, count(*) > 0 as young from idempotency_keys`,
    );
    assert.deepEqual(rows, [{ old: 0, young: true }]);
  });

  it('is the same request whatever the order of its fields', () => {
    assert.equal(canonical({ b: [{ d: 1, c: 2 }], a: null }), canonical({ a: null, b: [{ c: 2, d: 1 }] }));
    assert.notEqual(canonical({ a: [1, 2] }), canonical({ a: [2, 1] }));
  });
});
