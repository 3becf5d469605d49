import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { openFresh } from '@releap/testing/postgres';
import { ensureRegion } from '../src/index.ts';

const READ = 'select id, name, toolbox_proxy_url, is_default from regions order by id';

describe('the region of a control server', () => {
  it('keeps the name and the toolbox URL when a second server starts without these settings', async () => {
    await using database = await openFresh();
    await ensureRegion(database.pool, { id: 'here', name: 'Here', toolboxProxyUrl: 'http://t/toolbox' });
    await ensureRegion(database.pool, { id: 'here' });
    const kept = { id: 'here', name: 'Here', toolbox_proxy_url: 'http://t/toolbox', is_default: true };
    assert.deepEqual((await database.pool.query(READ)).rows, [kept]);
    await ensureRegion(database.pool, { id: 'here', name: 'There' });
    assert.deepEqual((await database.pool.query(READ)).rows, [{ ...kept, name: 'There' }]);
  });

  it('has its id as name when it is given none', async () => {
    await using database = await openFresh();
    await ensureRegion(database.pool, { id: 'here' });
    const { rows } = await database.pool.query(READ);
    assert.deepEqual(rows, [{ id: 'here', name: 'here', toolbox_proxy_url: null, is_default: true }]);
  });

  it('becomes the default of a new installation, one of them when several first servers start at once', async () => {
    await using database = await openFresh();
    const ids = ['a', 'b', 'c', 'd', 'e', 'f'];
    await Promise.all(ids.map((id) => ensureRegion(database.pool, { id })));
    const { rows } = await database.pool.query<{ id: string; is_default: boolean }>(READ);
    assert.deepEqual(
      rows.map((row) => row.id),
      ids,
    );
    assert.equal(rows.filter((row) => row.is_default).length, 1);
  });
});
