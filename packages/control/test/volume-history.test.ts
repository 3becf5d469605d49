/** Earlier commits of volumes, and commits on demand. */
import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { newUuid, VolumeManifest, type ApiError } from '@releap/contract';
import { lose, until } from '@releap/testing/world';
import { Compile } from 'typebox/compile';
import { createChangeNotifier } from '../src/platform/events/change-notifier.ts';
import { requestCommit } from '../src/storage/volumes/commit-request.ts';
import { digestOf, packsOf, removeSandboxes, startVolumeHosts } from './support/volume-host.ts';

const { world, a, b, shared } = await startVolumeHosts();
const remove = (...vms: string[]): Promise<void> => removeSandboxes(world, vms);
const blobsOf = (id: string): Promise<string[]> => packsOf(world, id);

describe('commits of a volume', () => {
  it('POST commit answers when all hosts have committed what was written before; 504 is for those that do not', async () => {
    const { id, name, vms } = await shared();
    const path = `/volumes/${name}/commit`;
    await a.commit(id, { root: 'something' });
    const asked = world.call('POST', path);
    await until(
      () => a.runner.volumes.get(id)?.spec.commit === 1 && b.runner.volumes.get(id)?.spec.commit === 1,
    );
    await a.report(id, { number: 1, dirty_since: '2026-01-02T03:04:05Z', commit: 0 });
    await b.report(id, { number: 1, commit: 1 });
    const last = await a.commit(id, { parent: 1, root: 'all', reason: 'request' });
    await a.report(id, { number: 2, commit: 1 });
    const answer = await asked;
    assert.deepEqual([answer.status, answer.body.last_manifest_id], [200, last.manifest_id], answer.text);
    const context = {
      database: world.database,
      changes: createChangeNotifier(),
      onChanged: () => undefined,
      deadlineMs: 50,
    };
    await assert.rejects(
      requestCommit(
        context,
        { id: world.call.projectId, audit: () => undefined },
        name,
        new AbortController().signal,
      ),
      (error: ApiError) => error.status === 504 && error.message.includes(a.runner.id),
    );
    // Without a host that may have changes there is nothing to wait for.
    await remove(...vms);
    assert.equal((await world.call('POST', path)).status, 200);
    await a.report(id, { number: 2, dirty_since: '2026-01-02T03:04:05Z', commit: 2 });
    await lose(world, a.runner);
    const lost = await world.call('POST', path);
    await a.runner.connect();
    assert.equal(lost.status, 409);
    assert.match(lost.body.error, /is lost, with changes since 2026-01-02T03:04:05/);
    assert.equal((await world.call('POST', '/volumes/none/commit')).status, 404);
  });

  it('manifests are listed in pages, newest first; an older one can be restored while the volume is not mounted, and that undone', async () => {
    const { id, name, vms } = await shared();
    const made: string[] = [];
    for (let n = 0; n < 3; n++)
      made.push(
        (
          await a.commit(id, {
            parent: n,
            root: `state ${n}`,
            add: [`part ${n}`],
            drop: n === 2 ? ['part 0'] : [],
            packs: [1, 2, 2][n] ?? 0,
            used_bytes: n,
            files: 10 * n,
          })
        ).manifest_id,
      );
    const restore = (manifest_id: unknown) => world.call('POST', `/volumes/${name}/restore`, { manifest_id });
    const refused = await restore(made[0]);
    assert.equal(refused.status, 409);
    assert.match(refused.body.error, /sandbox "sandbox-.* has it mounted/);
    await remove(...vms);
    await b.report(id, { number: 3, dirty_since: '2026-01-02T03:04:05Z' });
    assert.match((await restore(made[0])).body.error, /has changes that are not committed/);
    await b.report(id, { number: 3 });
    for (const unknown of [newUuid(), 'x', '']) assert.equal((await restore(unknown)).status, 404);
    assert.equal((await restore(5)).status, 400);
    const restored = await restore(made[0]);
    assert.equal(restored.status, 200, restored.text);
    assert.deepEqual([restored.body.used_bytes, restored.body.last_manifest_id === made[0]], [0, false]);
    assert.deepEqual((await restore(made[0])).body, restored.body, 'repeated');
    await until(() => a.runner.volumes.get(id)?.spec.head?.root === digestOf('state 0'));
    // A host whose tree is older merges, and names the packs of the restored tree.
    await a.upload(id, 'state 4');
    const next = await a.sendCommit(id, { parent: 4, root: 'state 4', packs: 1 });
    assert.equal(next.body.number, 5, next.text);
    assert.equal((await restore(made[2])).status, 200);
    const first = await world.call('GET', `/volumes/${name}/manifests?limit=4`);
    const rest = await world.call('GET', `/volumes/${name}/manifests?cursor=${first.body.next_cursor}`);
    assert.equal(rest.body.next_cursor, null);
    const all: VolumeManifest[] = [...first.body.manifests, ...rest.body.manifests];
    assert.ok(all.every((one) => Compile(VolumeManifest).Check(one)));
    assert.deepEqual(
      all.map(({ number, reason, files, restored_from, runner_id }) => [
        number,
        reason,
        files,
        restored_from,
        runner_id,
      ]),
      [
        [6, 'restore', 20, made[2], undefined],
        [5, 'background', 1, undefined, a.runner.id],
        [4, 'restore', 0, made[0], undefined],
        [3, 'background', 20, undefined, a.runner.id],
        [2, 'background', 10, undefined, a.runner.id],
        [1, 'background', 0, undefined, a.runner.id],
      ],
    );
    const named = await world.database.pool.query(
      'select digest from volume_blobs where volume_id = $1 and last is null order by 1',
      [id],
    );
    assert.deepEqual(
      named.rows.map((row: { digest: string }) => row.digest),
      ['part 1', 'part 2'].map(digestOf).sort(),
    );
    assert.equal((await world.call('GET', `/volumes/${name}/manifests?cursor=x`)).status, 400);
    const stranger = await world.stranger();
    for (const [method, path] of [
      ['GET', 'manifests'],
      ['POST', 'commit'],
      ['POST', 'restore'],
    ] as const) {
      const body = path === 'restore' ? { manifest_id: made[0] } : undefined;
      assert.equal((await stranger(method, `/volumes/${id}/${path}`, body)).status, 404);
    }
  });

  it('after an hour, the last commit of each hour is kept', async () => {
    const { id, vms } = await shared();
    for (let n = 0; n < 13; n++) await a.commit(id, { parent: n, root: `hourly ${n}` });
    // 1 and 2 in one hour, 3 in the next.
    await world.database.pool.query(
      `update volume_manifests set created_at = date_trunc('hour', now()) - interval '5 hours' + number * interval '25 minutes'
        where volume_id = $1 and number <= 3`,
      [id],
    );
    await world.control.runTask('volume-history');
    const { rows } = await world.database.pool.query(
      'select number from volume_manifests where volume_id = $1 and number <= 3 order by 1',
      [id],
    );
    assert.deepEqual(
      rows.map((row: { number: number }) => row.number),
      [2, 3],
    );
    await remove(...vms);
  });

  it('old commits go, and the blobs that only they named; the newest ten stay', async () => {
    const { id, vms } = await shared();
    for (let n = 0; n < 12; n++)
      await a.commit(id, {
        parent: n,
        root: `old root ${n}`,
        add: [`pack ${n}`],
        drop: n === 0 ? [] : [`pack ${n - 1}`],
        packs: 1,
      });
    await world.control.runTask('volume-history');
    assert.equal((await blobsOf(id)).length, 12);
    await world.database.pool.query(
      `update volume_manifests set created_at = created_at - interval '8 days' where volume_id = $1`,
      [id],
    );
    await world.control.runTask('volume-history');
    assert.equal((await blobsOf(id)).length, 10);
    assert.equal((await a.read(id)).body.head.number, 12);
    // The store's garbage collector names what is left alone.
    const { rows } = await world.database.pool.query(
      `select digest from blobs where digest = any($1) and not exists (select 1 from blob_references r where r.digest = blobs.digest)`,
      [Array.from({ length: 12 }, (_, n) => [digestOf(`old root ${n}`), digestOf(`pack ${n}`)]).flat()],
    );
    assert.deepEqual(
      rows.map((row: { digest: string }) => row.digest).sort(),
      ['old root 0', 'old root 1', 'pack 0', 'pack 1'].map(digestOf).sort(),
    );
    await remove(...vms);
    assert.equal((await world.call('DELETE', `/volumes/${id}`)).status, 200);
    await world.control.runTask('volume-garbage');
    assert.deepEqual(await blobsOf(id), []);
  });
});
