/** Stores of regions: what the operator sets, what is uploaded there, and what is removed. With a real S3 server. */
import assert from 'node:assert/strict';
import { readFile } from 'node:fs/promises';
import { describe, it } from 'node:test';
import { lose, until, waitFor } from '@releap/testing/world';
import { ask, digestOf } from './support/artifacts.ts';
import { partDigests, startRegionStores } from './support/region-stores.ts';

const t = startRegionStores();
const { giveStore, setStore, contentOf, uploader, snapshotIn, restored, replicas, isStored, fileOf } = t;

describe('the store of a region', () => {
  it('is tried before it is used, shown without its keys, and kept encrypted', async () => {
    const bucket = await giveStore();
    const { regions } = (await t.world.operator('GET', '/operator/regions')).body;
    const shown = regions.find(({ id }: { id: string }) => id === 'there');
    const endpoint = `http://127.0.0.1:${t.relay.port}`;
    assert.deepEqual(shown.store, { bucket, prefix: 'tests', endpoint, s3_region: 'us-east-1' });
    assert.deepEqual(await contentOf(bucket), []);
    const secret = t.server.credentials.secretAccessKey;
    const { rows } = await t.world.database.pool.query<{ text: string }>(
      `select row_to_json(s)::text as text from stores s union all select row_to_json(a)::text from operator_audit a`,
    );
    assert.ok(rows.some(({ text }) => text.includes('setRegionStore') && text.includes(bucket)));
    for (const { text } of rows)
      for (const encoded of [secret, Buffer.from(secret).toString('hex')])
        assert.ok(!text.includes(encoded), text);
    for (const [fields, reason] of [
      [{ bucket: 'nothing-there' }, /cannot be used/],
      [
        { bucket, credentials: { access_key_id: 'test:tester', secret_access_key: 'wrong' } },
        /cannot be used/,
      ],
      [{ bucket: '../etc' }, /bucket/],
      [{ bucket, prefix: '../..' }, /prefix/],
      [{ bucket, endpoint: 'file:///etc' }, /endpoint/],
    ] as const) {
      const answer = await setStore('there', fields);
      assert.equal(answer.status, 400, answer.text);
      assert.match(answer.body.error, reason);
    }
    assert.equal((await setStore('nowhere', { bucket })).status, 404);
    const removed = await t.world.operator('DELETE', '/operator/regions/there/store');
    assert.deepEqual([removed.status, removed.body.store], [200, null]);
    await t.world.control.runTask('blob-garbage');
    const { rowCount } = await t.world.database.pool.query('select 1 from stores where bucket is not null');
    assert.equal(rowCount, 0);
  });

  it('gets what hosts of the region upload, and they read it from there', async () => {
    const bucket = await giveStore('here');
    const home = await uploader();
    const id = await snapshotIn();
    const other = await uploader();
    await until(() => isStored(id));
    assert.deepEqual(await contentOf(bucket), partDigests);
    await lose(t.world, home);
    const vm = await restored('here');
    await waitFor(t.world.call, vm, 'running');
    assert.equal(
      (await other.artifactAssigned(id, ({ desired }) => desired === 'present')).desired,
      'present',
    );
    const layer = await ask(t.world, other, 'GET', `/internal/blobs/${digestOf('a layer')}`);
    assert.equal(await layer.text(), 'a layer');
    assert.deepEqual(await replicas(), []);
  });
});

describe('removal', () => {
  it('removes replicas that nothing uses, and never the home copy', async () => {
    const bucket = await giveStore();
    await uploader();
    await uploader('there');
    const id = await snapshotIn();
    await until(() => isStored(id));
    const vm = await restored('there');
    await waitFor(t.world.call, vm, 'running');
    const age = () =>
      t.world.database.pool.query(
        `update artifact_locations set used_at = now() - interval '8 days' where store_id is not null`,
      );
    const collect = async (): Promise<void> => {
      await age();
      await t.world.control.runTask('artifact-garbage');
      await t.world.database.pool.query(`update store_blobs set touched_at = now() - interval '2 days'`);
      await t.world.database.pool.query(`update blobs set touched_at = now() - interval '2 days'`);
      await t.world.control.runTask('blob-garbage');
    };
    await collect();
    // A sandbox of the region is made from it.
    assert.deepEqual(await contentOf(bucket), partDigests);
    await t.world.call('DELETE', `/vms/${vm}`);
    await waitFor(t.world.call, vm, 'deleted');
    await until(async () => {
      await collect();
      return (await replicas()).length === 0 && (await contentOf(bucket)).length === 0;
    });
    assert.equal(await isStored(id), true);
    for (const digest of partDigests) await readFile(await fileOf(digest));
    // And it can be replicated again.
    await restored('there');
    assert.deepEqual(await contentOf(bucket), partDigests);
  });

  it('keeps a store that has home copies when its region gets another one, and copies from it', async () => {
    const old = await giveStore('there');
    await uploader();
    const home = await uploader('there');
    const id = await snapshotIn('there');
    await until(() => isStored(id));
    const fresh = await giveStore('there');
    await t.world.control.runTask('blob-garbage');
    assert.deepEqual(await contentOf(old), partDigests);
    await restored('here');
    await lose(t.world, home);
    await uploader('there');
    await restored('there');
    assert.deepEqual(await contentOf(fresh), partDigests);
  });

  it('keeps the content of two regions in one bucket apart from that of others', async () => {
    const bucket = await giveStore('there');
    await t.world.operator('POST', '/operator/regions', { id: 'beside' });
    await giveStore('beside', bucket);
    const { rows } = await t.world.database.pool.query<{ n: number }>(
      'select count(distinct store_id)::integer as n from region_stores',
    );
    assert.equal(rows[0]?.n, 1);
  });
});
