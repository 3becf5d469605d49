/** A control plane that is killed in the middle of commits, beside restores, retention and the collection of garbage. */
import assert from 'node:assert/strict';
import { fork } from 'node:child_process';
import { createHash } from 'node:crypto';
import { once } from 'node:events';
import path from 'node:path';
import { it } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import { text } from 'node:stream/consumers';
import { newUuid, type ApiError } from '@releap/contract';
import { openDatabase } from '@releap/database';
import { freshDatabase } from '@releap/testing/postgres';
import { programOf } from '@releap/testing/program';
import { rounds } from '@releap/testing/repetitions';
import { temporaryFolder } from '@releap/testing/temporary-folder';
import { quiet } from '@releap/testing/world';
import { collectBlobGarbage } from '../src/storage/artifacts/blob-garbage.ts';
import { createBlobs } from '../src/storage/artifacts/blobs.ts';
import { FolderStore } from '../src/storage/artifacts/folder-store.ts';
import { restoreVolume } from '../src/storage/volumes/history.ts';
import { removeOldCommits } from '../src/storage/volumes/retention.ts';
import { newOrg, newRunner } from './support/billing.ts';
import type { Committed, TestRoot } from './support/volume-committer.ts';

const CHILD = programOf(path.join(import.meta.dirname, 'support/volume-committer.ts'));
/** Longer than an upload takes until a row names it, and short enough that the collector removes some. */
const GRACE_MS = 1_000;

it('keeps every commit that was answered, with all of its content, and nothing twice', async () => {
  const url = await freshDatabase();
  await using database = openDatabase({ url, log: quiet, connections: 4 });
  const folder = await temporaryFolder('volume-crash');
  const store = createBlobs(database, new FolderStore(folder));
  const { projectId } = await newOrg(database);
  const volume = newUuid();
  await database.pool.query(
    `insert into volumes (id, project_id, name, type, size_gb) values ($1, $2, 'v', 'blockmount', 1)`,
    [volume, projectId],
  );
  const runners = await Promise.all([newRunner(database), newRunner(database)]);
  await database.pool.query(
    'insert into volume_copies (volume_id, runner_id) select $1, r from unnest($2::uuid[]) r',
    [volume, runners],
  );
  const manifests = async (): Promise<{ id: string; number: number; root: string }[]> =>
    (
      await database.pool.query(
        'select id, number, root from volume_manifests where volume_id = $1 order by number',
        [volume],
      )
    ).rows;

  const answered = new Map<number, string>();
  let restored = 0;
  for (let round = 0; round < rounds(4, 60); round++) {
    const child = fork(CHILD, {
      env: {
        ...process.env,
        TEST_DATABASE_URL: url,
        TEST_STORE: folder,
        TEST_VOLUME: volume,
        TEST_RUNNERS: runners.join(' '),
      },
    });
    child.on('message', ({ number, root }: Committed) => {
      assert.ok(!answered.has(number), `two commits were answered with ${number}`);
      answered.set(number, root);
    });
    const exit = once(child, 'exit');
    await once(child, 'message');
    await sleep(Math.random() * 200);
    const one = (await manifests())[0];
    const scope = { id: projectId, audit: () => undefined };
    await restoreVolume({ database, onChanged: () => undefined }, scope, 'v', one?.id ?? '').then(
      () => restored++,
      // It was removed since.
      (error: unknown) => assert.equal((error as ApiError).status, 404),
    );
    child.kill('SIGKILL');
    await removeOldCommits(database, { historyMs: 0, uploadMs: GRACE_MS }, AbortSignal.timeout(60_000));
    await collectBlobGarbage({ database, store, graceMs: GRACE_MS, log: quiet }, AbortSignal.timeout(60_000));
    await exit;
  }

  const left = await manifests();
  const head = left.at(-1)?.number ?? 0;
  assert.ok(answered.size > 0 && restored > 0);
  // Numbers have no gaps among the newest, which are never removed.
  const newest = left.slice(-10).map(({ number }) => number);
  assert.deepEqual(
    newest,
    newest.map((_, n) => head - newest.length + 1 + n),
  );
  const digestOf = (content: string): string =>
    `sha256:${createHash('sha256').update(content).digest('hex')}`;
  for (const { number, root } of left) {
    const content = answered.get(number);
    if (content !== undefined) assert.equal(root, digestOf(content), `commit ${number} is another one`);
    const stored = await store.get(root);
    assert.ok(stored !== undefined, `the root of ${number} is lost`);
    const { packs } = JSON.parse(await text(stored.content)) as TestRoot;
    const { rows } = await database.pool.query<{ digest: string }>(
      `select digest from volume_blobs where volume_id = $1 and first <= $2 and (last is null or last >= $2) order by 1`,
      [volume, number],
    );
    assert.deepEqual(
      rows.map(({ digest }) => digest),
      packs.map(digestOf).sort(),
      `packs of ${number}`,
    );
    for (const pack of packs) assert.ok(await store.stat(digestOf(pack)), `a pack of ${number} is lost`);
  }
  // Whatever the newest ten do not name has gone, as soon as it is old enough.
  await sleep(GRACE_MS);
  await removeOldCommits(database, { historyMs: 0, uploadMs: 0 }, AbortSignal.timeout(60_000));
  await collectBlobGarbage({ database, store, graceMs: 0, log: quiet }, AbortSignal.timeout(60_000));
  const { rows } = await database.pool.query(
    'select digest from blobs b where not exists (select 1 from blob_references r where r.digest = b.digest)',
  );
  assert.deepEqual(rows, []);
});
