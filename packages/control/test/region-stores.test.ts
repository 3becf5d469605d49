/** Stores of regions: what is uploaded there, and replicated between them. With a real S3 server. */
import assert from 'node:assert/strict';
import { mkdtemp, readFile, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { after, afterEach, before, beforeEach, describe, it } from 'node:test';
import { ListObjectsV2Command } from '@aws-sdk/client-s3';
import { testKeys } from '@releap/testing/keys';
import { startS3Server, type TestS3Server } from '@releap/testing/s3-server';
import {
  create,
  lose,
  startWorld,
  until,
  waitFor,
  type Answer,
  type Caller,
  type ScriptedRunner,
  type World,
} from '@releap/testing/world';
import { ask, digestOf, PARTS, upload } from './support/artifacts.ts';
import { startRelay, type TcpRelay } from './support/tcp-relay.ts';

let folder: string;
let server: TestS3Server;
let relay: TcpRelay;
before(async () => {
  folder = await mkdtemp(path.join(tmpdir(), 'releap-region-stores-'));
  server = await startS3Server(folder);
  relay = await startRelay(Number(new URL(server.endpoint).port));
});
after(async () => {
  await relay[Symbol.asyncDispose]();
  await server[Symbol.asyncDispose]();
  await rm(folder, { recursive: true, force: true });
});

let world: World;
let ownStore: string;
const keys = testKeys();
beforeEach(async () => {
  ownStore = await mkdtemp(path.join(folder, 'own-'));
  world = await startWorld({ builtinImages: [], keys, store: { type: 'folder', path: ownStore } });
  const made = await world.operator('POST', '/operator/regions', { id: 'there' });
  assert.equal(made.status, 201, made.text);
  // A server remembers the regions for a while.
  await until(async () =>
    (await world.call('GET', '/regions')).body.some(({ id }: { id: string }) => id === 'there'),
  );
});
afterEach(async () => {
  relay.mode = 'pass';
  await world[Symbol.asyncDispose]();
});

let buckets = 0;
/** Gives the region a bucket of its own, which is reached through the relay. @returns its name */
async function giveStore(region = 'there', bucket?: string): Promise<string> {
  const name = bucket ?? (await server.bucket(`bucket-${++buckets}`)).bucket;
  const answer = await setStore(region, { bucket: name });
  assert.equal(answer.status, 200, answer.text);
  return name;
}

const setStore = (region: string, fields: object): Promise<Answer> =>
  world.operator('PUT', `/operator/regions/${region}/store`, {
    prefix: 'tests',
    endpoint: `http://127.0.0.1:${relay.port}`,
    credentials: {
      access_key_id: server.credentials.accessKeyId,
      secret_access_key: server.credentials.secretAccessKey,
    },
    ...fields,
  });

/** The digests in a bucket. */
async function contentOf(bucket: string): Promise<string[]> {
  const { Contents = [] } = await server.client.send(new ListObjectsV2Command({ Bucket: bucket }));
  return Contents.map(({ Key = '' }) => `sha256:${Key.split('/').at(-1)}`).sort();
}
const partDigests = Object.values(PARTS).map(digestOf).sort();

/** A host that uploads what it is told to. */
const uploader = (region = 'here', options: object = {}): Promise<ScriptedRunner> =>
  world.runner({
    region,
    artifact(assignment, runner) {
      const { id, generation, desired } = assignment;
      if (desired === 'stored') void upload(world, runner, assignment, PARTS);
      else runner.report({ kind: 'artifact', id, generation, status: desired, detail: {} });
    },
    ...options,
  });

/** A disk snapshot of a new sandbox of the project in a region. @returns its id */
async function snapshotIn(region = 'here', call: Caller = world.call, name = 'snap'): Promise<string> {
  const vm = await create(call, world, { image: 'localhost:5000/app:1', region });
  await waitFor(call, vm.id, 'running');
  const { body, text, status } = await call('POST', `/vms/${vm.id}/snapshots`, { name });
  assert.equal(status, 200, text);
  await until(async () => (await call('GET', `/snapshots/${body.id}`)).body.status === 'ready');
  return body.id;
}

const SNAP = { image: { type: 'snapshot', name: 'snap' } };
const restore = (region: string, call: Caller = world.call): Promise<Answer> =>
  call('POST', '/vms', { ...SNAP, region });

/** Tries until the create is accepted; every refusal before must be of a replication. @returns the id of the sandbox */
async function restored(region: string): Promise<string> {
  let id = '';
  await until(async () => {
    const answer = await restore(region);
    if (answer.status === 200) id = answer.body.vm_id;
    else assertReplicating(answer);
    return answer.status === 200;
  });
  return id;
}

function assertReplicating(answer: Answer, code = 'snapshot_not_ready'): void {
  assert.equal(answer.status, 409, answer.text);
  assert.equal(answer.body.code, code);
  assert.equal(answer.body.retryable, true);
  assert.match(answer.body.error, /is still replicating into the region "/);
  assert.ok(Number(answer.headers.get('retry-after')) > 0);
}

interface Replica {
  id: string;
  status: string;
  attempts: number;
  error: string | null;
}
const replicas = async (): Promise<Replica[]> =>
  (
    await world.database.pool.query<Replica>(
      'select id, status, attempts, error from artifact_locations where store_id is not null',
    )
  ).rows;
const isStored = async (id: string): Promise<boolean> =>
  (await world.database.pool.query('select 1 from artifacts where id = $1 and stored_at is not null', [id]))
    .rowCount === 1;
/** The pause before the next attempt is over. */
const retryNow = (): Promise<unknown> =>
  world.database.pool.query(
    `update artifact_locations set lease_until = now() where store_id is not null and error is not null`,
  );

describe('the store of a region', () => {
  it('is tried before it is used, shown without its keys, and kept encrypted', async () => {
    const bucket = await giveStore();
    const { regions } = (await world.operator('GET', '/operator/regions')).body;
    const shown = regions.find(({ id }: { id: string }) => id === 'there');
    const endpoint = `http://127.0.0.1:${relay.port}`;
    assert.deepEqual(shown.store, { bucket, prefix: 'tests', endpoint, s3_region: 'us-east-1' });
    assert.deepEqual(await contentOf(bucket), []);
    const secret = server.credentials.secretAccessKey;
    const { rows } = await world.database.pool.query<{ text: string }>(
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
    const removed = await world.operator('DELETE', '/operator/regions/there/store');
    assert.deepEqual([removed.status, removed.body.store], [200, null]);
    await world.control.runTask('blob-garbage');
    const { rowCount } = await world.database.pool.query('select 1 from stores where bucket is not null');
    assert.equal(rowCount, 0);
  });

  it('gets what hosts of the region upload, and they read it from there', async () => {
    const bucket = await giveStore('here');
    const home = await uploader();
    const id = await snapshotIn();
    const other = await uploader();
    await until(() => isStored(id));
    assert.deepEqual(await contentOf(bucket), partDigests);
    await lose(world, home);
    const vm = await restored('here');
    await waitFor(world.call, vm, 'running');
    assert.equal(
      (await other.artifactAssigned(id, ({ desired }) => desired === 'present')).desired,
      'present',
    );
    const layer = await ask(world, other, 'GET', `/internal/blobs/${digestOf('a layer')}`);
    assert.equal(await layer.text(), 'a layer');
    assert.deepEqual(await replicas(), []);
  });
});

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
    await waitFor(world.call, vm, 'running');
    assert.deepEqual(await contentOf(bucket), partDigests);
    assert.deepEqual(
      (await replicas()).map(({ status, attempts }) => [status, attempts]),
      [['present', 1]],
    );
    assert.equal((await restore('there')).status, 200);
    assert.equal((await restore('here')).status, 200);
    const parts = await ask(world, there, 'GET', `/internal/artifacts/${id}`);
    assert.equal(parts.status, 200, await parts.text());
    // Not from the store of the deployment: there it is damaged.
    const digest = digestOf('a layer');
    await writeFile(await fileOf(digest), 'other text');
    const layer = await ask(world, there, 'GET', `/internal/blobs/${digest}`);
    assert.equal(await layer.text(), 'a layer');
  });

  it('does the same for an image that was built, and for a function that is deployed from it', async () => {
    await giveStore();
    await uploader('here', { hello: { capabilities: ['dockerfile-builds'] } });
    const there = await uploader('there');
    const posted = await world.call('POST', '/images', {
      name: 'built',
      source: { type: 'dockerfile', dockerfile: 'FROM scratch' },
      region: 'here',
    });
    assert.equal(posted.status, 200, posted.text);
    await until(async () => (await world.call('GET', `/jobs/${posted.body.job_id}`)).body.status === 'done');
    const post = () => world.call('POST', '/vms', { image: 'built', region: 'there' });
    assertReplicating(await post(), 'image_not_ready');
    await until(async () => (await post()).status === 200);
    assert.equal((await replicas())[0]?.status, 'present');
    const used = await there.artifactAssigned(
      (await world.database.pool.query<{ id: string }>('select id from artifacts')).rows[0]?.id ?? '',
      ({ desired }) => desired === 'present',
    );
    assert.equal(used.spec.type, 'image');
    const function_ = await world.call('POST', '/fns', { name: 'made', image: 'built' });
    assert.equal(function_.status, 200, function_.text);
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
    await waitFor(world.call, vm, 'running');
    assert.equal(await readFile(await fileOf(digestOf('a layer')), 'utf8'), 'a layer');
  });

  it('refuses a full snapshot outside its home region, and copies nothing', async () => {
    await giveStore();
    await uploader();
    await uploader('there');
    const vm = await create(world.call, world, {
      image: 'localhost:5000/app:1',
      region: 'here',
      persistent: true,
    });
    await waitFor(world.call, vm.id, 'running');
    const { body } = await world.call('POST', `/vms/${vm.id}/snapshots`, { name: 'snap', kind: 'full' });
    await until(async () => (await world.call('GET', `/snapshots/${body.id}`)).body.status === 'ready');
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
    const stranger = await world.stranger();
    assert.equal((await restore('there', stranger)).status, 404);
    assert.equal((await stranger('GET', `/snapshots/${id}`)).status, 404);
    assert.deepEqual(await replicas(), []);
    await restored('there');
    // A host that no assignment tells to have it.
    const other = await uploader('there');
    assert.equal((await ask(world, other, 'GET', `/internal/artifacts/${id}`)).status, 404);
    assert.equal((await ask(world, other, 'GET', `/internal/blobs/${digestOf('a layer')}`)).status, 404);
    await there.artifactAssigned(id, ({ desired }) => desired === 'present');
  });

  it('says what has failed, tries again, and goes on after the parts that are there', async () => {
    await giveStore();
    await uploader();
    await uploader('there');
    const id = await snapshotIn();
    await until(() => isStored(id));
    const digest = digestOf('a layer');
    await writeFile(await fileOf(digest), 'damaged');
    await restore('there');
    await until(async () => (await replicas())[0]?.error === 'the home copy is damaged');
    const damaged = await restore('there');
    assertReplicating(damaged);
    assert.match(damaged.body.error, /"there" \(the home copy is damaged; it is tried again\)/);
    const { rows } = await world.database.pool.query<{ digest: string }>(
      'select digest from store_blobs where stored_at is not null',
    );
    assert.ok(!rows.some((row) => row.digest === digest));
    await writeFile(await fileOf(digest), 'a layer');
    relay.mode = 'refuse';
    await until(async () => {
      await retryNow();
      await world.control.runTask('replications');
      return (await replicas())[0]?.error === 'the store of the region could not be written';
    });
    const refused = await restore('there');
    assert.match(refused.body.error, /\(the store of the region could not be written; it is tried again\)/);
    assert.ok(!refused.text.includes(String(relay.port)), refused.text);
    relay.mode = 'pass';
    await until(async () => {
      await retryNow();
      await world.control.runTask('replications');
      return (await restore('there')).status === 200;
    });
    assert.match(await metrics(), /^releap_artifact_replications_total\{outcome="copied"\} 1$/m);
    assert.match(await metrics(), /^releap_artifact_replications_total\{outcome="failed"\} [1-9]\d*$/m);
  });

  it('ends when the snapshot is deleted', async () => {
    await giveStore();
    await uploader();
    await uploader('there');
    const id = await snapshotIn();
    await until(() => isStored(id));
    const heldBefore = relay.held;
    relay.mode = 'hold';
    await restore('there');
    await until(() => relay.held > heldBefore);
    assert.equal((await world.call('DELETE', `/snapshots/${id}`)).status, 200);
    await until(async () => {
      await world.control.runTask('artifact-garbage');
      return (await replicas()).length === 0;
    });
    await until(async () => {
      await world.control.runTask('replications');
      return /replications_total\{outcome="cancelled"\} 1$/m.test(await metrics());
    });
    const { rowCount } = await world.database.pool.query(
      'select 1 from store_blobs where stored_at is not null',
    );
    assert.equal(rowCount, 0);
  });

  it('waits while the region is disabled, and continues when it is enabled', async () => {
    await giveStore();
    await uploader();
    await uploader('there');
    const id = await snapshotIn();
    await until(() => isStored(id));
    relay.mode = 'refuse';
    await restore('there');
    await until(async () => (await replicas())[0]?.error !== null && (await replicas()).length === 1);
    const enable = (enabled: boolean) => world.operator('PATCH', '/operator/regions/there', { enabled });
    assert.equal((await enable(false)).status, 200);
    relay.mode = 'pass';
    await until(async () => (await restore('there')).status === 400);
    const before = (await replicas())[0]?.attempts;
    await retryNow();
    for (let n = 0; n < 3; n += 1) await world.control.runTask('replications');
    assert.deepEqual(
      (await replicas()).map(({ status, attempts }) => [status, attempts]),
      [['pending', before]],
    );
    assert.equal((await enable(true)).status, 200);
    await until(async () => (await restore('there')).status === 200);
  });

  it('is continued after the stop or the death of the server that copies', async () => {
    await giveStore();
    await uploader();
    await uploader('there');
    const id = await snapshotIn();
    await until(() => isStored(id));
    const heldBefore = relay.held;
    relay.mode = 'hold';
    await restore('there');
    await until(() => relay.held > heldBefore);
    const [first] = await replicas();
    assert.deepEqual([first?.status, first?.attempts], ['pending', 1]);
    // A stop gives the claim back.
    await world.restart();
    relay.mode = 'pass';
    await until(async () => (await restore('there')).status === 200);
    assert.deepEqual(
      (await replicas()).map(({ status, attempts }) => [status, attempts]),
      [['present', 1]],
    );

    // One that was killed leaves its claim, which expires.
    await world.database.pool.query(
      `update artifact_locations set status = 'pending', attempts = 7, lease_until = now() + interval '1 hour' where store_id is not null`,
    );
    await world.control.runTask('replications');
    assertReplicating(await restore('there'));
    await world.database.pool.query(
      'update artifact_locations set lease_until = now() where store_id is not null',
    );
    await until(async () => (await restore('there')).status === 200);
    assert.deepEqual(
      (await replicas()).map(({ status, attempts }) => [status, attempts]),
      [['present', 8]],
    );
  });

  it('is done by one of two servers, of which the first has stalled', async () => {
    await giveStore();
    await uploader();
    await uploader('there');
    const id = await snapshotIn();
    await until(() => isStored(id));
    const heldBefore = relay.held;
    relay.mode = 'hold';
    await restore('there');
    await until(() => relay.held > heldBefore);
    await world.database.pool.query(
      `update artifact_locations set attempts = attempts + 1, lease_until = now() where store_id is not null`,
    );
    await using second = await world.another();
    const heldByFirst = relay.held;
    // The first one learns that its claim is lost, and may take it again itself.
    await until(async () => {
      await second.runTask('replications');
      return relay.held > heldByFirst;
    });
    relay.mode = 'pass';
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
    const posted = await world.call('POST', '/images', {
      name: 'built',
      source: { type: 'dockerfile', dockerfile: 'FROM scratch' },
      region: 'here',
    });
    await until(async () => (await world.call('GET', `/jobs/${posted.body.job_id}`)).body.status === 'done');
    await uploader('there');
    await lose(world, home);
    const post = () => world.call('POST', '/vms', { image: 'built', region: 'there' });
    await post();
    const answer = await post();
    assertReplicating(answer, 'image_not_ready');
    assert.match(answer.body.error, /\(no host that has it is connected; it is tried again\)/);

    const other = await uploader();
    const id = await snapshotIn();
    await until(() => isStored(id));
    await lose(world, other);
    await restored('there');
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
    await waitFor(world.call, vm, 'running');
    const age = () =>
      world.database.pool.query(
        `update artifact_locations set used_at = now() - interval '8 days' where store_id is not null`,
      );
    const collect = async (): Promise<void> => {
      await age();
      await world.control.runTask('artifact-garbage');
      await world.database.pool.query(`update store_blobs set touched_at = now() - interval '2 days'`);
      await world.database.pool.query(`update blobs set touched_at = now() - interval '2 days'`);
      await world.control.runTask('blob-garbage');
    };
    await collect();
    // A sandbox of the region is made from it.
    assert.deepEqual(await contentOf(bucket), partDigests);
    await world.call('DELETE', `/vms/${vm}`);
    await waitFor(world.call, vm, 'deleted');
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
    await world.control.runTask('blob-garbage');
    assert.deepEqual(await contentOf(old), partDigests);
    await restored('here');
    await lose(world, home);
    await uploader('there');
    await restored('there');
    assert.deepEqual(await contentOf(fresh), partDigests);
  });

  it('keeps the content of two regions in one bucket apart from that of others', async () => {
    const bucket = await giveStore('there');
    await world.operator('POST', '/operator/regions', { id: 'beside' });
    await giveStore('beside', bucket);
    const { rows } = await world.database.pool.query<{ n: number }>(
      'select count(distinct store_id)::integer as n from region_stores',
    );
    assert.equal(rows[0]?.n, 1);
  });
});

/** In the folder of the deployment's store. */
async function fileOf(digest: string): Promise<string> {
  const { rows } = await world.database.pool.query<{ id: string }>('select id from deployment');
  const hex = digest.slice('sha256:'.length);
  return path.join(ownStore, rows[0]?.id ?? '', 'sha256', hex.slice(0, 2), hex);
}

async function metrics(): Promise<string> {
  return (await world.operator('GET', '/metrics')).text;
}
