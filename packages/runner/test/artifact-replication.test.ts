/** Artifacts between two hosts of a real control plane: their folders are real, and no micro-VM is started. */
import assert from 'node:assert/strict';
import { createHash, randomBytes } from 'node:crypto';
import { appendFile, mkdir, mkdtemp, open, readdir, readFile, rm, stat, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, before, describe, it } from 'node:test';
import { newUuid } from '@releap/contract';
import { credentialOf } from '@releap/testing/credentials';
import { quiet, startWorld, until, type ScriptedRunner, type World } from '@releap/testing/world';
import { ArtifactFetcher } from '../src/artifact/artifact-fetcher.ts';
import { ArtifactReconciler } from '../src/artifact/artifact-reconciler.ts';
import { StoreClient } from '../src/artifact/store-client.ts';
import {
  createChain,
  growChain,
  readChain,
  shareChain,
  saveChain,
  chainPath,
} from '../src/disk/disk-chain.ts';
import { EmptyExt4Store } from '../src/disk/empty-ext4.ts';
import { ImageFolder } from '../src/image/image-folder.ts';
import { ImageStore } from '../src/image/image-store.ts';
import { heldImagePath, SnapshotFolders } from '../src/machine/index.ts';

const DIGEST = `sha256:${'ab'.repeat(32)}`;

const SPEC = {
  version: 1,
  name: null,
  vcpus: 1,
  ports: [],
  egress_policy: null,
  image_ref: 'x/y:1',
  root: { type: 'registry', ref: 'x/y:1' },
  origin: null,
};

/** What a host has on disk, and the part of a runner that transfers it. */
interface Host {
  runner: ScriptedRunner;
  folder: string;
  snapshots: SnapshotFolders;
  images: ImageStore;
  fetcher: ArtifactFetcher;
}

let dir: string;
let world: World;
let empty: EmptyExt4Store;
const closing: (() => Promise<void>)[] = [];
before(async () => {
  dir = await mkdtemp(join(tmpdir(), 'releap-artifacts-'));
  empty = new EmptyExt4Store(join(dir, 'cache'));
  world = await startWorld({ builtinImages: [] });
});
after(async () => {
  for (const close of closing.reverse()) await close();
  await world[Symbol.asyncDispose]();
  await rm(dir, { recursive: true, force: true });
});

let hosts = 0;
async function host(): Promise<Host> {
  const folder = join(dir, `host-${(hosts += 1)}`);
  await mkdir(join(folder, 'snapshots'), { recursive: true });
  const snapshots = new SnapshotFolders(join(folder, 'snapshots'));
  const images = new ImageStore({ cacheDir: join(folder, 'cache'), log: quiet });
  await images.start();
  const id = newUuid();
  const client = new StoreClient({
    controlUrl: world.internalUrl,
    credential: () => Promise.resolve(credentialOf(id)),
  });
  const snapshotQuarantine = { restore: () => Promise.resolve(false) };
  const fetcher = new ArtifactFetcher({ client, snapshots, snapshotQuarantine, images, log: quiet });
  let runner: ScriptedRunner | undefined;
  const reconciler = new ArtifactReconciler({
    client,
    fetcher,
    images,
    snapshots,
    snapshotReconciler: { named: () => undefined, isAssigned: () => false },
    capture: () => Promise.reject(new Error('no sandbox is here')),
    report: (report) => runner?.report(report),
    log: quiet,
  });
  runner = await world.runner({ id, artifact: (assignment) => reconciler.assign(assignment) });
  closing.push(
    () => images.close(),
    () => reconciler.close(),
  );
  return { runner, folder, snapshots, images, fetcher };
}

/** A disk snapshot with two layers and a root image, as a capture leaves it. @param shared its lowest layers and image */
async function takeSnapshot(
  { snapshots, folder }: Host,
  id: string,
  shared?: string,
): Promise<Awaited<ReturnType<typeof readChain>>> {
  const source = join(folder, `source-${id}`);
  const first =
    shared === undefined
      ? await createChain(empty, source, 64, 'overlay')
      : await shareChain(
          (await readChain(snapshots.path(shared))) as NonNullable<Awaited<ReturnType<typeof readChain>>>,
          source,
        );
  const top = await growChain(first);
  await appendFile(chainPath(top, top.layers.at(-1) as string), randomBytes(100_000));
  const partial = await snapshots.begin(id);
  const chain = await shareChain(top, partial);
  await saveChain(chain, true);
  await writeFile(
    heldImagePath(partial),
    shared === undefined ? randomBytes(300_000) : await readFile(heldImagePath(snapshots.path(shared))),
  );
  await snapshots.complete(id, {
    kind: 'disk',
    vmId: newUuid(),
    manifest: DIGEST,
    image: {} as never,
    noChanges: false,
    diskBytes: 100_000,
    scratchBytes: chain.bytes,
  });
  return readChain(snapshots.path(id));
}

/** Writes down in control that this host has taken it. */
async function registered({ runner }: Host, id: string): Promise<void> {
  const { rows } = await world.database.pool.query<{ id: string }>('select id from projects limit 1');
  await world.database.pool.query(
    `insert into snapshots (id, job_id, project_id, name, sandbox_id, kind, runner_id, status, desired, held, spec, region, mode,
                            cpu, mem_mib, scratch_mib, cpu_arch)
     values ($1, gen_random_uuid(), $2, $5, gen_random_uuid(), 'disk', $3, 'ready', 'ready', true, $4, 'here', 'burstable',
             1, 256, 64, 'amd64')`,
    [id, rows[0]?.id, runner.id, JSON.stringify(SPEC), id],
  );
  await world.control.runTask('artifact-garbage');
}

async function untilStored(id: string): Promise<void> {
  await until(async () => {
    await world.database.pool.query(
      'update artifact_locations set retry_at = now() where retry_at is not null',
    );
    await world.control.runTask('artifacts');
    const { rowCount } = await world.database.pool.query(
      'select 1 from artifacts where id = $1 and stored_at is not null',
      [id],
    );
    return rowCount === 1;
  });
}

/** Control wants the artifact on this host, as after a placement there. */
async function want({ runner }: Host, artifactId: string): Promise<void> {
  await world.database.pool.query(
    `insert into artifact_locations (id, artifact_id, runner_id, desired, status, held)
     values (gen_random_uuid(), $1, $2, 'present', 'pending', true)`,
    [artifactId, runner.id],
  );
}

const sha256 = async (path: string): Promise<string> =>
  createHash('sha256')
    .update(await readFile(path))
    .digest('hex');
const filesOf = async (folder: string): Promise<Record<string, string>> => {
  const names = (await readdir(folder)).filter((name) => !name.endsWith('.json'));
  return Object.fromEntries(
    await Promise.all(names.sort().map(async (name) => [name, await sha256(join(folder, name))] as const)),
  );
};
const { signal } = new AbortController();

describe('a disk snapshot', () => {
  it('is uploaded, and is the same on the host that fetches it', async () => {
    const [home, other] = [await host(), await host()];
    const id = newUuid();
    await takeSnapshot(home, id);
    await registered(home, id);
    await untilStored(id);
    assert.deepEqual(await readdir(join(home.folder, 'snapshots')), [id]);
    await want(other, id);
    // Several sandboxes need it at once.
    await Promise.all([1, 2, 3].map(() => other.fetcher.ensureSnapshot(id, signal)));
    assert.deepEqual(await filesOf(other.snapshots.path(id)), await filesOf(home.snapshots.path(id)));
    assert.deepEqual(await other.snapshots.load(id), await home.snapshots.load(id));
    const base = await stat(join(other.snapshots.path(id), 'base.ext4'));
    // Still with its holes: as large for a guest, and next to nothing on the disk.
    assert.equal(base.size, 64 * 2 ** 20);
    assert.ok(base.blocks * 512 < base.size / 4, `${base.blocks * 512} bytes are allocated`);
  });

  it('shares layers and the root image with its parent in the store', async () => {
    const home = await host();
    const [parent, child] = [newUuid(), newUuid()];
    const count = async (): Promise<number> =>
      (await world.database.pool.query<{ n: number }>('select count(*)::integer as n from blobs')).rows[0]
        ?.n ?? 0;
    await takeSnapshot(home, parent);
    await registered(home, parent);
    await untilStored(parent);
    const before = await count();
    await takeSnapshot(home, child, parent);
    await registered(home, child);
    await untilStored(child);
    // Its own layer, and the two descriptions.
    assert.equal((await count()) - before, 3);
  });

  it('is not fetched when the store has something else under its name', async () => {
    const [home, other] = [await host(), await host()];
    const id = newUuid();
    await takeSnapshot(home, id);
    await registered(home, id);
    await untilStored(id);
    await world.database.pool.query(
      `update artifact_parts p set digest = q.digest, bytes = q.bytes from artifact_parts q
        where p.artifact_id = $1 and p.name = 'disk.json' and q.artifact_id = $1 and q.name = 'snapshot.json'`,
      [id],
    );
    await want(other, id);
    await assert.rejects(other.fetcher.ensureSnapshot(id, signal), /damaged/);
    assert.deepEqual(await readdir(join(other.folder, 'snapshots')), []);
  });

  it('is uploaded again from the beginning after a host lost what it had', async () => {
    const home = await host();
    const id = newUuid();
    await takeSnapshot(home, id);
    const layer = join(home.snapshots.path(id), 'layer-1.qcow2');
    const content = await readFile(layer);
    await rm(layer);
    await registered(home, id);
    await until(async () => {
      const { rows } = await world.database.pool.query<{ error: string | null }>(
        'select error from artifact_locations where artifact_id = $1',
        [id],
      );
      return rows[0]?.error?.includes('ENOENT') === true;
    });
    await writeFile(layer, content);
    await untilStored(id);
  });
});

describe('an image', () => {
  it('is uploaded, and is the same on the host that fetches it', async () => {
    const [home, other] = [await host(), await host()];
    const root = randomBytes(200_000);
    const digest = `sha256:${createHash('sha256').update(root).digest('hex')}`;
    const folder = new ImageFolder(join(home.folder, 'cache'));
    {
      await using work = await folder.shortWork(signal);
      const made = await folder.imageIn(work.path);
      const file = await open(made.root, 'wx');
      await file.writeFile(root);
      await file.close();
      await folder.publish(made.dir, {
        version: 1,
        digest,
        sizeBytes: root.length,
        layerCount: 2,
        config: {} as never,
        origin: { repository: 'built', anonymous: false },
      });
    }
    const { rows } = await world.database.pool.query<{ id: string }>('select id from projects limit 1');
    const job = newUuid();
    await world.database.pool.query(
      `insert into images (id, project_id, name, source, status, manifest_name, job_id)
       values (gen_random_uuid(), $1, 'built', '{"type": "dockerfile"}', 'ready', $2, $3)`,
      [rows[0]?.id, digest, job],
    );
    await world.database.pool.query(
      `insert into jobs (id, project_id, kind, status, attempts, runner_id) values ($1, $2, 'build', 'done', 1, $3)`,
      [job, rows[0]?.id, home.runner.id],
    );
    await world.control.runTask('artifacts');
    const { rows: artifacts } = await world.database.pool.query<{ id: string }>(
      'select id from artifacts where digest = $1',
      [digest],
    );
    const id = artifacts[0]?.id ?? '';
    await untilStored(id);
    await want(other, id);
    await other.fetcher.ensureImage(digest, signal);
    const found = await other.images.find(digest);
    assert.equal(found?.layerCount, 2);
    assert.equal((await readFile(found.path)).equals(root), true);
    // The host that built it does not remove it, whatever the size of its cache; it may be told after the upload.
    await until(async () => (await folder.list()).find((one) => one.digest === digest)?.pinned === true);
  });
});
