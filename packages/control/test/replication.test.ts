/** Replication of images and disk snapshots between the stores of regions. With a real S3 server. */
import assert from 'node:assert/strict';
import { readFile, writeFile } from 'node:fs/promises';
import { describe, it } from 'node:test';
import { create, lose, until, waitFor } from '@releap/testing/world';
import { ask, digestOf } from './support/artifacts.ts';
import { assertReplicating, partDigests, startRegionStores } from './support/region-stores.ts';

const t = startRegionStores();
const {
  giveStore,
  contentOf,
  uploader,
  snapshotIn,
  restore,
  restored,
  replicas,
  isStored,
  retryNow,
  fileOf,
  metrics,
} = t;

/** A snapshot that the store of its region has, with a host here and one in the region with a store of its own. */
async function storedSnapshot(): Promise<string> {
  await giveStore();
  await uploader();
  await uploader('there');
  const id = await snapshotIn();
  await until(() => isStored(id));
  return id;
}

/** Begins a copy whose requests the relay holds. */
async function heldCopy(): Promise<void> {
  const before = t.relay.held;
  t.relay.mode = 'hold';
  await restore('there');
  await until(() => t.relay.held > before);
}

describe('replication', () => {
  it('answers 409 for a disk snapshot until the store of the region has it, and later creates at once', async () => {
    const bucket = await giveStore();
    await uploader();
    const there = await uploader('there');
    const id = await snapshotIn();
    await until(() => isStored(id));
    assert.deepEqual(await contentOf(bucket), []);
    assertReplicating(await restore('there'));
    const vm = await restored('there');
    await waitFor(t.world.call, vm, 'running');
    assert.deepEqual(await contentOf(bucket), partDigests);
    assert.deepEqual(
      (await replicas()).map(({ status, attempts }) => [status, attempts]),
      [['present', 1]],
    );
    assert.equal((await restore('there')).status, 200);
    assert.equal((await restore('here')).status, 200);
    const parts = await ask(t.world, there, 'GET', `/internal/artifacts/${id}`);
    assert.equal(parts.status, 200, await parts.text());
    // Not from the store of the deployment: there it is damaged.
    const digest = digestOf('a layer');
    await writeFile(await fileOf(digest), 'other text');
    const layer = await ask(t.world, there, 'GET', `/internal/blobs/${digest}`);
    assert.equal(await layer.text(), 'a layer');
  });

  it('does the same for an image that was built', async () => {
    await giveStore();
    await uploader('here', { hello: { capabilities: ['dockerfile-builds'] } });
    const there = await uploader('there');
    const posted = await t.world.call('POST', '/images', {
      name: 'built',
      source: { type: 'dockerfile', dockerfile: 'FROM scratch' },
      region: 'here',
    });
    assert.equal(posted.status, 200, posted.text);
    await until(
      async () => (await t.world.call('GET', `/jobs/${posted.body.job_id}`)).body.status === 'done',
    );
    const post = () => t.world.call('POST', '/vms', { image: 'built', region: 'there' });
    assertReplicating(await post(), 'image_not_ready');
    await until(async () => (await post()).status === 200);
    assert.equal((await replicas())[0]?.status, 'present');
    const used = await there.artifactAssigned(
      (await t.world.database.pool.query<{ id: string }>('select id from artifacts')).rows[0]?.id ?? '',
      ({ desired }) => desired === 'present',
    );
    assert.equal(used.spec.type, 'image');
  });

  it('is what a function in another region waits for that is deployed from an image', async () => {
    await giveStore();
    await uploader('here', { hello: { capabilities: ['dockerfile-builds'] } });
    await uploader('there');
    const posted = await t.world.call('POST', '/images', {
      name: 'built',
      source: { type: 'dockerfile', dockerfile: 'FROM scratch' },
      region: 'here',
    });
    await until(
      async () => (await t.world.call('GET', `/jobs/${posted.body.job_id}`)).body.status === 'done',
    );
    const homed = await t.world.operator('PUT', `/operator/orgs/${t.world.orgId}/default-region`, {
      region: 'there',
    });
    assert.equal(homed.status, 200, homed.text);
    await until(async () => {
      const { body } = await t.world.call('POST', '/vms', { image: 'localhost:5000/app:1' });
      return body.vm_id.startsWith('there');
    });
    const deploy = () => t.world.call('POST', '/fns', { name: 'made', image: 'built' });
    assertReplicating(await deploy(), 'image_not_ready');
    await until(async () => {
      const answer = await deploy();
      if (answer.status !== 200) assertReplicating(answer, 'image_not_ready');
      return answer.status === 200;
    });
    await until(
      async () =>
        (await t.world.call('GET', '/fns/made')).body.current_version?.template_state === 'published',
    );
  });

  it('copies from the bucket of a region into the store of the deployment', async () => {
    const bucket = await giveStore();
    await uploader();
    await uploader('there');
    const id = await snapshotIn('there');
    await until(() => isStored(id));
    assert.deepEqual(await contentOf(bucket), partDigests);
    await assert.rejects(readFile(await fileOf(digestOf('a layer'))), { code: 'ENOENT' });
    const vm = await restored('here');
    await waitFor(t.world.call, vm, 'running');
    assert.equal(await readFile(await fileOf(digestOf('a layer')), 'utf8'), 'a layer');
  });

  it('refuses a full snapshot outside its home region, and copies nothing', async () => {
    await giveStore();
    await uploader();
    await uploader('there');
    const vm = await create(t.world.call, t.world, {
      image: 'localhost:5000/app:1',
      region: 'here',
      persistent: true,
    });
    await waitFor(t.world.call, vm.id, 'running');
    const { body } = await t.world.call('POST', `/vms/${vm.id}/snapshots`, { name: 'snap', kind: 'full' });
    await until(async () => (await t.world.call('GET', `/snapshots/${body.id}`)).body.status === 'ready');
    const answer = await restore('there');
    assert.equal(answer.status, 400, answer.text);
    assert.match(answer.body.error, /can only be restored in its home region "here"/);
    assert.deepEqual(await replicas(), []);
  });

  it('does nothing for another organization that knows the name or the digest', async () => {
    await giveStore();
    await uploader();
    const there = await uploader('there');
    const id = await snapshotIn();
    await until(() => isStored(id));
    const stranger = await t.world.stranger();
    assert.equal((await restore('there', stranger)).status, 404);
    assert.equal((await stranger('GET', `/snapshots/${id}`)).status, 404);
    assert.deepEqual(await replicas(), []);
    await restored('there');
    // A host that no assignment tells to have it.
    const other = await uploader('there');
    assert.equal((await ask(t.world, other, 'GET', `/internal/artifacts/${id}`)).status, 404);
    assert.equal((await ask(t.world, other, 'GET', `/internal/blobs/${digestOf('a layer')}`)).status, 404);
    await there.artifactAssigned(id, ({ desired }) => desired === 'present');
  });

  it('says what has failed, tries again, and continues after the parts that are there', async () => {
    await storedSnapshot();
    const digest = digestOf('a layer');
    await writeFile(await fileOf(digest), 'damaged');
    await restore('there');
    await until(async () => (await replicas())[0]?.error === 'the home copy is damaged');
    const damaged = await restore('there');
    assertReplicating(damaged);
    assert.match(damaged.body.error, /"there" \(the home copy is damaged; it is tried again\)/);
    const { rows } = await t.world.database.pool.query<{ digest: string }>(
      'select digest from store_blobs where stored_at is not null',
    );
    assert.ok(!rows.some((row) => row.digest === digest));
    await writeFile(await fileOf(digest), 'a layer');
    t.relay.mode = 'refuse';
    await until(async () => {
      await retryNow();
      await t.world.control.runTask('replications');
      return (await replicas())[0]?.error === 'the store of the region could not be written';
    });
    const refused = await restore('there');
    assert.match(refused.body.error, /\(the store of the region could not be written; it is tried again\)/);
    assert.ok(!refused.text.includes(String(t.relay.port)), refused.text);
    t.relay.mode = 'pass';
    await until(async () => {
      await retryNow();
      await t.world.control.runTask('replications');
      return (await restore('there')).status === 200;
    });
    assert.match(await metrics(), /^releap_artifact_replications_total\{outcome="copied"\} 1$/m);
    assert.match(await metrics(), /^releap_artifact_replications_total\{outcome="failed"\} [1-9]\d*$/m);
  });

  it('ends when the snapshot is deleted', async () => {
    const id = await storedSnapshot();
    await heldCopy();
    assert.equal((await t.world.call('DELETE', `/snapshots/${id}`)).status, 200);
    await until(async () => {
      await t.world.control.runTask('artifact-garbage');
      return (await replicas()).length === 0;
    });
    await until(async () => {
      await t.world.control.runTask('replications');
      return /replications_total\{outcome="cancelled"\} 1$/m.test(await metrics());
    });
    const { rowCount } = await t.world.database.pool.query(
      'select 1 from store_blobs where stored_at is not null',
    );
    assert.equal(rowCount, 0);
  });

  it('waits while the region is disabled, and continues when it is enabled', async () => {
    await storedSnapshot();
    t.relay.mode = 'refuse';
    await restore('there');
    await until(async () => (await replicas())[0]?.error !== null && (await replicas()).length === 1);
    const enable = (enabled: boolean) => t.world.operator('PATCH', '/operator/regions/there', { enabled });
    assert.equal((await enable(false)).status, 200);
    t.relay.mode = 'pass';
    await until(async () => (await restore('there')).status === 400);
    const before = (await replicas())[0]?.attempts;
    await retryNow();
    for (let n = 0; n < 3; n += 1) await t.world.control.runTask('replications');
    assert.deepEqual(
      (await replicas()).map(({ status, attempts }) => [status, attempts]),
      [['pending', before]],
    );
    assert.equal((await enable(true)).status, 200);
    await until(async () => (await restore('there')).status === 200);
  });

  it('is continued after the stop or the death of the server that copies', async () => {
    await storedSnapshot();
    await heldCopy();
    const [first] = await replicas();
    assert.deepEqual([first?.status, first?.attempts], ['pending', 1]);
    // A stop gives the claim back.
    await t.world.restart();
    t.relay.mode = 'pass';
    await until(async () => (await restore('there')).status === 200);
    assert.deepEqual(
      (await replicas()).map(({ status, attempts }) => [status, attempts]),
      [['present', 1]],
    );

    // One that was killed leaves its claim, which expires.
    await t.world.database.pool.query(
      `update artifact_locations set status = 'pending', attempts = 7, lease_until = now() + interval '1 hour' where store_id is not null`,
    );
    await t.world.control.runTask('replications');
    assertReplicating(await restore('there'));
    await t.world.database.pool.query(
      'update artifact_locations set lease_until = now() where store_id is not null',
    );
    await until(async () => (await restore('there')).status === 200);
    assert.deepEqual(
      (await replicas()).map(({ status, attempts }) => [status, attempts]),
      [['present', 8]],
    );
  });

  it('has a bound on concurrent copies of a server', async () => {
    await t.world.restart({ limits: { sweepMs: 100, replications: 1 } });
    await giveStore();
    await uploader();
    await uploader('there');
    const ids = [
      await snapshotIn('here', t.world.call, 'snap'),
      await snapshotIn('here', t.world.call, 'second'),
    ];
    await until(async () => (await Promise.all(ids.map(isStored))).every(Boolean));
    const heldBefore = t.relay.held;
    t.relay.mode = 'hold';
    await restore('there');
    await t.world.call('POST', '/vms', { image: { type: 'snapshot', name: 'second' }, region: 'there' });
    await until(() => t.relay.held > heldBefore);
    for (let n = 0; n < 3; n += 1) await t.world.control.runTask('replications');
    assert.deepEqual(
      (await replicas()).map(({ attempts }) => attempts).toSorted((a, b) => a - b),
      [0, 1],
    );
    t.relay.mode = 'pass';
    await until(async () => (await replicas()).every(({ status }) => status === 'present'));
  });

  it('is done by one of two servers, of which the first has stalled', async () => {
    await storedSnapshot();
    await heldCopy();
    await using second = await t.world.another();
    const heldByFirst = t.relay.held;
    await t.world.database.pool.query(
      `update artifact_locations set attempts = attempts + 1, lease_until = now() where store_id is not null`,
    );
    // The first one learns that its claim is lost, and may take it again itself.
    await until(async () => {
      await second.runTask('replications');
      return t.relay.held > heldByFirst;
    });
    t.relay.mode = 'pass';
    await until(async () => (await restore('there')).status === 200);
    assert.deepEqual(
      (await replicas()).map(({ status, attempts }) => [status, attempts]),
      [['present', 3]],
    );
  });

  it('needs no host that has it once it is stored, and says so before', async () => {
    await giveStore();
    const home = await uploader('here', {
      hello: { capabilities: ['dockerfile-builds'] },
      artifact: () => undefined,
    });
    const posted = await t.world.call('POST', '/images', {
      name: 'built',
      source: { type: 'dockerfile', dockerfile: 'FROM scratch' },
      region: 'here',
    });
    await until(
      async () => (await t.world.call('GET', `/jobs/${posted.body.job_id}`)).body.status === 'done',
    );
    await uploader('there');
    await lose(t.world, home);
    const post = () => t.world.call('POST', '/vms', { image: 'built', region: 'there' });
    await post();
    const answer = await post();
    assertReplicating(answer, 'image_not_ready');
    assert.match(answer.body.error, /\(no host that has it is connected; it is tried again\)/);

    const other = await uploader();
    const id = await snapshotIn();
    await until(() => isStored(id));
    await lose(t.world, other);
    await restored('there');
  });
});
