import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { newToken, newUuid, VolumeDetail, VolumeList, VolumeRecord } from '@releap/contract';
import { startWorld, until, type Answer, type Caller } from '@releap/testing/world';
import { Compile } from 'typebox/compile';

const world = await startWorld();
const call = world.call;

const add = (body: object, by: Caller = call): Promise<Answer> => by('POST', '/volumes', body);
const list = async (by: Caller, query = ''): Promise<VolumeList['volumes']> => {
  const answer = await by('GET', `/volumes${query}`);
  assert.ok(Compile(VolumeList).Check(answer.body), answer.text);
  return answer.body.volumes;
};

describe('volumes', () => {
  it('POST /volumes answers with the record, without what is unset; GET the same with last_manifest_id when available, and conflicts', async () => {
    const { status, body, text } = await add({ name: 'plain' });
    assert.equal(status, 200, text);
    assert.ok(Compile(VolumeRecord).Check(body), text);
    const { id, created_at, updated_at, ...rest } = body;
    assert.ok(created_at && updated_at);
    assert.deepEqual(rest, { name: 'plain', type: 'blockmount', size_gb: 100, state: 'ready' });
    const large = await add({ name: 'A._-z', type: 'blockmount', size_gb: 10_000 });
    assert.equal(large.body.size_gb, 10_000, large.text);
    assert.equal((await add({ name: '0'.repeat(128), size_gb: 1 })).status, 200);
    for (const ref of [id, id.toUpperCase(), 'plain']) {
      const read = await call('GET', `/volumes/${ref}`);
      assert.deepEqual(read.body, { ...body, conflicts: [] });
      assert.ok(Compile(VolumeDetail).Check(read.body));
    }
    assert.deepEqual(
      (await list(call)).map(({ name }) => name),
      ['0'.repeat(128), 'A._-z', 'plain'],
    );
  });

  for (const [what, body, said] of [
    ['invalid name', { name: 'a/b' }, /name must be 1 to 128 characters/],
    ['empty name', { name: '' }, /name must be 1 to 128 characters/],
    ['long name', { name: 'x'.repeat(129) }, /name must be 1 to 128 characters/],
    ['missing name', { name: undefined }, /name is required/],
    ['unsupported type', { type: 'nfs' }, /type must be "blockmount"/],
    ['size_gb out of range', { size_gb: 0 }, /size_gb must be an integer from 1 to 10000, but was 0/],
    ['size_gb out of range', { size_gb: 10_001 }, /size_gb must be an integer from 1 to 10000/],
    ['a part of a GiB', { size_gb: 1.5 }, /size_gb/],
    ['a text as size', { size_gb: 'x' }, /size_gb/],
  ] as const) {
    it(`POST /volumes 400: ${what} (${JSON.stringify(body).slice(0, 40)})`, async () => {
      const answer = await add({ name: 'refused', ...body });
      assert.equal(answer.status, 400, answer.text);
      assert.match(answer.body.error, said);
    });
  }

  it('409 for a name that exists, in one project only; a deleted name is reusable, and the retired row is renamed', async () => {
    const [own, other] = [await world.stranger(), await world.stranger()];
    const first = await add({ name: 'twice' }, own);
    const again = await add({ name: 'twice' }, own);
    assert.equal(again.status, 409);
    assert.match(again.body.error, /named "twice"/);
    assert.equal((await add({ name: 'twice' }, other)).status, 200);

    const gone = await own('DELETE', '/volumes/twice');
    assert.deepEqual([gone.status, gone.body], [200, { id: first.body.id, state: 'deleted' }]);
    for (const ref of ['twice', 'twice-deleted', first.body.id])
      for (const method of ['GET', 'DELETE'])
        assert.equal((await own(method, `/volumes/${ref}`)).status, 404);
    // Retired names may repeat, and are no names of what exists.
    const second = await add({ name: 'twice' }, own);
    assert.equal((await own('DELETE', `/volumes/${second.body.id}`)).status, 200);
    const third = await add({ name: 'twice-deleted' }, own);
    assert.equal(third.status, 200, third.text);
    assert.deepEqual(
      (await list(own)).map(({ id }) => id),
      [third.body.id],
    );
    assert.deepEqual(
      (await list(own, '?include_deleted=true')).map(({ id, name, state }) => [id, name, state]),
      [
        [third.body.id, 'twice-deleted', 'ready'],
        [second.body.id, 'twice-deleted', 'deleted'],
        [first.body.id, 'twice-deleted', 'deleted'],
      ],
    );
    assert.equal((await own('GET', '/volumes?include_deleted=maybe')).status, 400);
  });

  it('one of many creates of one name at once is done; the same Idempotency-Key creates once', async () => {
    const own = await world.stranger();
    const answers = await Promise.all(Array.from({ length: 5 }, () => add({ name: 'race' }, own)));
    assert.deepEqual(
      answers.map(({ status }) => status).sort((a, b) => a - b),
      [200, 409, 409, 409, 409],
    );
    const headers = { 'idempotency-key': 'once' };
    const first = await own('POST', '/volumes', { name: 'keyed' }, { headers });
    const replayed = await own('POST', '/volumes', { name: 'keyed' }, { headers });
    assert.deepEqual([replayed.status, replayed.body], [200, first.body]);
  });

  it("400 when the ref matches one volume's id and another's name", async () => {
    const own = await world.stranger();
    const { id } = (await add({ name: 'one' }, own)).body;
    assert.equal((await add({ name: id }, own)).status, 200);
    for (const method of ['GET', 'DELETE']) {
      const answer = await own(method, `/volumes/${id}`);
      assert.equal(answer.status, 400);
      assert.match(answer.body.error, /the id of one volume and the name of another/);
    }
    assert.equal((await own('DELETE', '/volumes/one')).status, 200);
    assert.equal((await own('GET', `/volumes/${id}`)).body.name, id);
  });

  it('404 alike for unknown texts and volumes of others; 401 without a key', async () => {
    const own = await world.stranger();
    const { id } = (await add({ name: 'mine' }, own)).body;
    for (const ref of ['mine', id, newUuid(), 'none', 'a%00', 'x'.repeat(2000)])
      for (const method of ['GET', 'DELETE'])
        assert.equal((await call(method, `/volumes/${ref}`)).status, 404, ref);
    const headers = { authorization: `Bearer ${newToken('apiKey')}` };
    for (const [method, path, body] of [
      ['POST', '/volumes', { name: 'n' }],
      ['GET', '/volumes', undefined],
      ['GET', '/volumes/mine', undefined],
      ['DELETE', '/volumes/mine', undefined],
    ] as const)
      assert.equal((await call(method, path, body, { headers })).status, 401);
  });

  it('of a project are bounded, and those that were deleted do not count', async () => {
    const own = await world.stranger();
    await add({ name: 'deleted' }, own);
    await own('DELETE', '/volumes/deleted');
    await world.database.pool.query(
      `insert into volumes (id, project_id, name, type, size_gb)
       select gen_random_uuid(), $1, 'bulk-' || n, 'blockmount', 1 from generate_series(1, 999) n`,
      [own.projectId],
    );
    assert.equal((await add({ name: 'last' }, own)).status, 200);
    const refused = await add({ name: 'more' }, own);
    assert.equal(refused.status, 400);
    assert.match(refused.body.error, /1000 volumes, which is the most allowed/);
  });

  it('go with their project', async () => {
    const own = await world.stranger();
    await add({ name: 'doomed' }, own);
    await world.database.pool.query(
      'update projects set deleted_at = now(), teardown_after = now() where id = $1',
      [own.projectId],
    );
    await until(async () => {
      const { rows } = await world.database.pool.query('select 1 from volumes where project_id = $1', [
        own.projectId,
      ]);
      return rows.length === 0;
    });
  });
});
