/** Volumes between hosts and the control plane: attachments, commits, conflicts, and what is not committed. */
import assert from 'node:assert/strict';
import { once } from 'node:events';
import { connect } from 'node:net';
import { describe, it } from 'node:test';
import { newUuid, type ApiError } from '@releap/contract';
import { credentialOf } from '@releap/testing/credentials';
import { host, lose, until, waitFor } from '@releap/testing/world';
import { insertAttachments } from '../src/storage/volumes/attachments.ts';
import { digestOf, packsOf, removeSandboxes, startVolumeHosts, type Commit } from './support/volume-host.ts';

const { world, a, b, shared } = await startVolumeHosts();
const detail = async (name: string) => (await world.call('GET', `/volumes/${name}`)).body;
const remove = (...vms: string[]): Promise<void> => removeSandboxes(world, vms);

describe('attached volumes', () => {
  it('"deleted by DELETE when no live sandbox has it attached": one that has failed for good does not keep it', async () => {
    await world.call('POST', '/volumes', { name: 'of-a-failed-one', size_gb: 1 });
    const vm = await a.mount('of-a-failed-one');
    await world.database.pool.query(`update sandboxes set status = 'failed' where id = $1`, [vm.uuid]);
    const gone = await world.call('DELETE', '/volumes/of-a-failed-one');
    assert.equal(gone.status, 200, gone.text);
    await remove(vm.id);
  });

  it('are in the assignment in the order of the request; the copy is assigned before, and the sandbox can neither pause, fork nor be captured', async () => {
    const { body } = await world.call('POST', '/volumes', { name: 'attached', size_gb: 3 });
    const vm = await a.mount('attached', {
      persistent: true,
      volumes: [
        { volume: 'attached', mount_path: '/z/', subpath: 'sub/dir/' },
        { volume: body.id, mount_path: '/a' },
      ],
    });
    const { spec } = await a.runner.assigned(vm.uuid);
    assert.deepEqual(spec.volumes, [
      { id: body.id, mount_path: '/z', subpath: 'sub/dir' },
      { id: body.id, mount_path: '/a' },
    ]);
    assert.deepEqual(a.runner.volumes.get(body.id)?.spec, { size_gb: 3, head: null, commit: 0 });
    const items = a.runner.received.flatMap((message) => ('items' in message ? message.items : []));
    assert.ok(
      items.findIndex(({ id }) => id === body.id) < items.findIndex(({ id }) => id === vm.uuid),
      'the copy comes first',
    );
    for (const [path, posted] of [
      ['pause', {}],
      ['fork', {}],
      ['snapshots', { name: 's', kind: 'full' }],
    ] as const) {
      const refused = await world.call('POST', `/vms/${vm.id}/${path}`, posted);
      assert.equal(refused.status, 409, path);
      assert.match(refused.body.error, /it has volumes attached/);
    }
    const taken = await world.call('DELETE', '/volumes/attached');
    assert.equal(taken.status, 409);
    assert.match(taken.body.error, /attached to sandbox "sandbox-/);
    // It is started with them again.
    await world.call('POST', `/vms/${vm.id}/stop`);
    await waitFor(world.call, vm.id, 'stopped');
    assert.equal((await world.call('DELETE', '/volumes/attached')).status, 409);
    await world.call('POST', `/vms/${vm.id}/start`);
    await waitFor(world.call, vm.id, 'running');
    assert.equal((await a.runner.assigned(vm.uuid)).spec.volumes?.length, 2);
    await remove(vm.id);
    assert.ok((await detail('attached')).last_used_at);
    assert.equal((await world.call('DELETE', '/volumes/attached')).status, 200);
    await until(() => a.runner.volumes.get(body.id)?.desired === 'deleted');
    await a.report(body.id, {}, 'deleted');
    const left = await world.database.pool.query('select 1 from volume_copies where volume_id = $1', [
      body.id,
    ]);
    assert.equal(left.rowCount, 0);
  });

  it('404 for an unknown volume; a host without the capability gets no such sandbox', async () => {
    await world.call('POST', '/volumes', { name: 'here' });
    const volumes = [{ volume: 'none', mount_path: '/v' }];
    assert.equal((await world.call('POST', '/vms', { image: 'busybox', volumes })).status, 404);
    const old = await world.runner({ region: 'old', hello: { capabilities: [] } });
    const vm = await world.call('POST', '/vms', {
      image: 'busybox',
      region: 'old',
      volumes: [{ volume: 'here', mount_path: '/v' }],
    });
    const failed = await waitFor(world.call, vm.body.vm_id, 'failed');
    assert.match(failed.error ?? '', /no host of region "old" can mount volumes/);
    assert.equal(old.assignments.size, 0);
  });

  it('start 409 while the host cannot mount volumes', async (t) => {
    await world.call('POST', '/volumes', { name: 'unmountable' });
    const vm = await a.mount('unmountable', { persistent: true });
    await world.call('POST', `/vms/${vm.id}/stop`);
    await waitFor(world.call, vm.id, 'stopped');
    const { hello } = a.runner.options;
    t.after(() => (a.runner.options.hello = hello));
    a.runner.options.hello = { capabilities: [] };
    await a.runner.connect();
    const refused = await world.call('POST', `/vms/${vm.id}/start`);
    assert.equal(refused.status, 409);
    assert.match(refused.body.error, /its host cannot mount volumes now/);
    a.runner.options.hello = hello;
    await a.runner.connect();
    await world.call('POST', `/vms/${vm.id}/start`);
    await waitFor(world.call, vm.id, 'running');
    await remove(vm.id);
  });

  it('409 for a volume that is deleted while the sandbox is created, of which nothing is written', async () => {
    const { body } = await world.call('POST', '/volumes', { name: 'late' });
    const resolved = { volumeId: body.id as string, path: '/v', subpath: null };
    await world.call('DELETE', '/volumes/late');
    await assert.rejects(
      world.database.transaction((on) => insertAttachments(on, newUuid(), [resolved])),
      (error: ApiError) => error.status === 409 && /not ready any more/.test(error.message),
    );
  });

  it('prefer the host that has them mounted, however full it is', async () => {
    await using _other = await world.runner();
    await world.call('POST', '/volumes', { name: 'near' });
    const first = await world.call('POST', '/vms', {
      image: 'busybox',
      cpu: 6,
      volumes: [{ volume: 'near', mount_path: '/v' }],
    });
    const { runner_id } = await waitFor(world.call, first.body.vm_id, 'running');
    const vms = [first.body.vm_id];
    for (let i = 0; i < 3; i++) {
      const { body } = await world.call('POST', '/vms', {
        image: 'busybox',
        volumes: [{ volume: 'near', mount_path: '/v' }],
      });
      vms.push(body.vm_id);
      assert.equal((await waitFor(world.call, body.vm_id, 'running')).runner_id, runner_id);
    }
    await remove(...vms);
  });
});

describe('commits', () => {
  it('a host that disconnects before its blob is read ends its own request only', async () => {
    const { id } = await shared();
    const { port } = new URL(world.internalUrl);
    const socket = connect(Number(port), '127.0.0.1');
    const holding = await world.database.pool.connect();
    try {
      await holding.query('begin; lock table volume_copies in access exclusive mode');
      socket.write(
        [
          `PUT /internal/blobs/${digestOf('cut')}?volume=${id} HTTP/1.1`,
          'host: control',
          `authorization: Bearer ${credentialOf(a.runner.id)}`,
          'content-type: application/octet-stream',
          'content-length: 1000',
          '',
          'cut',
        ].join('\r\n'),
      );
      const waiting = `select 1 from pg_locks where relation = 'volume_copies'::regclass and not granted`;
      await until(async () => (await world.database.pool.query(waiting)).rowCount !== 0);
      socket.destroy();
      await once(socket, 'close');
      // Answered after the server has seen the end of the connection.
      assert.equal((await fetch(`${world.url}/healthz`)).status, 200);
    } finally {
      await holding.query('rollback');
      holding.release();
    }
    assert.equal((await a.put(id, digestOf('cut'), 'cut')).status, 204);
  });

  it('one of two hosts wins, and the other learns of the head; a repeated commit answers the same', async () => {
    const { id, name, vms } = await shared();
    assert.deepEqual((await a.read(id)).body, {
      id,
      size_gb: 100,
      state: 'ready',
      head: null,
      commit: 0,
      uncommitted: false,
    });
    const first = await a.commit(id, { root: 'root 1', add: ['p1', 'p2'], used_bytes: 7, files: 2 });
    assert.equal(first.number, 1);
    const head = { number: 1, root: digestOf('root 1'), bytes: 6 };
    await until(() => b.runner.volumes.get(id)?.spec.head?.number === 1);
    assert.deepEqual(b.runner.volumes.get(id)?.spec.head, head);
    assert.equal(a.runner.volumes.get(id)?.spec.head, null, 'who has committed knows it');
    const shown = await detail(name);
    assert.deepEqual([shown.used_bytes, shown.last_manifest_id, shown.conflicts], [7, first.manifest_id, []]);
    assert.ok(shown.used_bytes_at);

    await b.upload(id, 'root of b', 'p3');
    const late = await b.sendCommit(id, { root: 'root of b', add: ['p3'] });
    assert.deepEqual([late.status, late.body.head], [409, head]);
    const { text } = await world.operator('GET', '/metrics');
    assert.match(text, /releap_volume_commits_total\{outcome="moved"\} 1\n/);
    assert.match(text, /releap_volume_uncommitted_seconds \d/);
    const merged = await b.commit(id, {
      parent: 1,
      root: 'root 2',
      add: ['p3'],
      drop: ['p1'],
      packs: 2,
      reason: 'merge',
      conflicts: [{ path: 'f', kept_as: 'f.conflict-b', kind: 'content' }],
    });
    assert.equal(merged.number, 2);
    const again = await a.sendCommit(id, { root: 'root 1', add: ['p1', 'p2'] });
    assert.deepEqual([again.status, again.body], [200, first]);
    const [conflict] = (await detail(name)).conflicts;
    assert.deepEqual(
      { ...conflict, created_at: '' },
      {
        path: 'f',
        kept_as: 'f.conflict-b',
        kind: 'content',
        manifest_id: merged.manifest_id,
        runner_id: b.runner.id,
        created_at: '',
      },
    );
    // After a restore of the database the number is that of another commit.
    const other = { parent: 2, parent_root: digestOf('of another history'), root: 'root 3', packs: 2 };
    const refused = await b.sendCommit(id, other);
    assert.deepEqual([refused.status, refused.body.head.number], [409, 2]);
    // What has the same root changes nothing.
    const same = await b.sendCommit(id, { parent: 2, root: 'root 2', packs: 2 });
    assert.deepEqual(same.body, merged);
    await remove(...vms);
  });

  it('is refused for blobs that the host has not uploaded, although the store has them, and for packs that do not add up', async () => {
    const { id, vms } = await shared();
    await a.upload(id, 'secret of a');
    await b.upload(id, 'root');
    const wrong: [Commit, RegExp][] = [
      [{ root: 'root', add: ['secret of a'] }, /was not uploaded by this runner/],
      [{ root: 'never uploaded' }, /was not uploaded/],
      [{ root: 'root', packs: 1 }, /the volume has 0, but the root names 1/],
      [{ root: 'root', drop: ['x'], packs: 0 }, /without 0 of 1 dropped/],
    ];
    for (const [commit, said] of wrong) {
      const refused = await b.sendCommit(id, commit);
      assert.equal(refused.status, 400, refused.text);
      assert.match(refused.body.error, said);
    }
    const asked = { digests: ['secret of a', 'root', 'other'].map(digestOf) };
    assert.deepEqual((await b.call('POST', `/internal/volumes/${id}/missing`, asked)).body.missing, [
      digestOf('secret of a'),
      digestOf('other'),
    ]);
    assert.equal((await b.put(id, digestOf('one thing'), 'another')).status, 400);
    const noPlace = await b.call('PUT', `/internal/blobs/${digestOf('x')}`, 'x', {
      headers: { 'content-type': 'application/octet-stream' },
    });
    assert.match(noPlace.body.error, /name a location or a volume/);
    assert.equal((await a.read(id)).body.head, null);
    await remove(...vms);
  });

  it('of a host without a copy are refused, as are its reads: 404, whether the volume exists or not', async () => {
    const { body } = await world.call('POST', '/volumes', { name: 'private' });
    const vm = await a.mount('private');
    await a.commit(body.id, { root: 'private root', add: ['private pack'] });
    for (const id of [body.id, newUuid()]) {
      assert.equal((await b.read(id)).status, 404);
      assert.equal((await b.call('POST', `/internal/volumes/${id}/open`)).status, 404);
      assert.equal((await b.sendCommit(id, { parent: 1, root: 'x' })).status, 404);
      assert.equal((await b.put(id, digestOf('x'), 'x')).status, 404);
      assert.equal((await b.call('POST', `/internal/volumes/${id}/missing`, { digests: [] })).status, 404);
    }
    for (const text of ['private root', 'private pack']) {
      assert.equal((await b.call('GET', `/internal/blobs/${digestOf(text)}`)).status, 404);
      assert.equal((await a.call('GET', `/internal/blobs/${digestOf(text)}`)).text, text);
    }
    await remove(vm.id);
  });

  it('survive the end of the control plane at any moment: what was answered is there, and what is repeated is there once', async () => {
    const { id, vms } = await shared();
    await a.commit(id, { root: 'before', add: ['kept'] });
    await a.upload(id, 'after', 'more');
    const sent = a
      .sendCommit(id, { parent: 1, root: 'after', add: ['more'], packs: 2 })
      .catch(() => undefined);
    await world.restart();
    await Promise.all([a.runner.connect(), b.runner.connect()]);
    const answer = await sent;
    const repeated = await a.sendCommit(id, { parent: 1, root: 'after', add: ['more'], packs: 2 });
    assert.equal(repeated.status, 200, repeated.text);
    if (answer?.status === 200) assert.deepEqual(repeated.body, answer.body);
    assert.equal(repeated.body.number, 2);
    assert.deepEqual(await packsOf(world, id), ['kept', 'more'].map(digestOf).sort());
    await until(() => b.runner.volumes.get(id)?.spec.head?.number === 2);
    await remove(...vms);
  });
});

describe('what is not committed', () => {
  it('an opening asks hosts that have it mounted to commit, and waits for them; not for those with nothing, and not for lost ones', async () => {
    const { id, name, vms } = await shared();
    await a.report(id, { dirty_since: '2026-01-02T03:04:05Z', commit: 0 });
    const opened = await b.call('POST', `/internal/volumes/${id}/open`);
    assert.deepEqual([opened.body.commit, opened.body.uncommitted], [1, true], opened.text);
    await until(() => a.runner.volumes.get(id)?.spec.commit === 1);
    // The one that asks is not asked.
    assert.equal(b.runner.volumes.get(id)?.spec.commit, 0);
    await a.commit(id, { root: 'on request', reason: 'request' });
    assert.equal((await b.read(id, '?commit=1')).body.uncommitted, true);
    await a.report(id, { number: 1, commit: 1 });
    assert.equal((await b.read(id, '?commit=1')).body.uncommitted, false);
    assert.equal((await b.read(id, '?commit=1')).body.head.number, 1);

    await a.report(id, { number: 1, dirty_since: '2026-01-02T03:04:05Z', commit: 1 });
    assert.equal((await detail(name)).error_reason, undefined);
    assert.equal((await host(world, a.runner.id))?.uncommitted_volumes, 1);
    assert.equal((await host(world, b.runner.id))?.uncommitted_volumes, 0);
    await lose(world, a.runner);
    assert.equal((await b.call('POST', `/internal/volumes/${id}/open`)).body.uncommitted, false);
    const lost = `the host ${a.runner.id} is lost; its changes since 2026-01-02T03:04:05Z are not committed`;
    assert.equal((await detail(name)).error_reason, lost);
    const { volumes } = (await world.call('GET', '/volumes')).body;
    assert.equal(volumes.find((one: { id: string }) => one.id === id).error_reason, lost);
    await a.runner.connect();
    await a.report(id, { number: 1, dirty_since: '2026-01-02T03:04:05Z', error: 'the store is full' });
    assert.match((await detail(name)).error_reason, /reports: the store is full; its changes since 2026/);
    await a.report(id, { number: 1 });
    assert.equal((await detail(name)).error_reason, undefined);
    await remove(...vms);
  });
});
