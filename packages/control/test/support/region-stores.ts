/** Two regions, one of which may get a bucket of a real S3 server as its store, reached through a relay. */
import assert from 'node:assert/strict';
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { after, afterEach, before, beforeEach } from 'node:test';
import { ListObjectsV2Command } from '@aws-sdk/client-s3';
import { testKeys } from '@releap/testing/keys';
import { startS3Server, type TestS3Server } from '@releap/testing/s3-server';
import {
  create,
  startWorld,
  until,
  waitFor,
  type Answer,
  type Caller,
  type ScriptedRunner,
  type World,
} from '@releap/testing/world';
import { digestOf, PARTS, upload } from './artifacts.ts';
import { startRelay, type TcpRelay } from './tcp-relay.ts';

export const partDigests = Object.values(PARTS).map(digestOf).sort();

const SNAP = { image: { type: 'snapshot', name: 'snap' } };

export function assertReplicating(answer: Answer, code = 'snapshot_not_ready'): void {
  assert.equal(answer.status, 409, answer.text);
  assert.equal(answer.body.code, code);
  assert.equal(answer.body.retryable, true);
  assert.match(answer.body.error, /is still replicating into the region "/);
  assert.ok(Number(answer.headers.get('retry-after')) > 0);
}

export interface Replica {
  id: string;
  status: string;
  attempts: number;
  error: string | null;
}

/** Registers the hooks of a test file: each test has a world of its own, with the regions `here` and `there`. */
// oxlint-disable-next-line typescript/explicit-function-return-type -- its helpers say it
export function startRegionStores() {
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

  /** In the folder of the deployment's store. */
  async function fileOf(digest: string): Promise<string> {
    const { rows } = await world.database.pool.query<{ id: string }>('select id from deployment');
    const hex = digest.slice('sha256:'.length);
    return path.join(ownStore, rows[0]?.id ?? '', 'sha256', hex.slice(0, 2), hex);
  }

  async function metrics(): Promise<string> {
    return (await world.operator('GET', '/metrics')).text;
  }

  return {
    get world() {
      return world;
    },
    get relay() {
      return relay;
    },
    get server() {
      return server;
    },
    giveStore,
    setStore,
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
  };
}
