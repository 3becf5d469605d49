/** Copies of a volume on two hosts of a real control plane. */
import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { chmod, mkdir, mkdtemp, readdir, readFile, rm, stat, symlink, writeFile } from 'node:fs/promises';
import type { IncomingMessage } from 'node:http';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, before, describe, it } from 'node:test';
import { fileURLToPath } from 'node:url';
import { isNightly } from '@releap/testing/repetitions';
import { startWorld, until, type World } from '@releap/testing/world';
import { FailingProxy } from './support/failing-proxy.ts';
import { cleanUpBelow, volumeHost, type VolumeHost } from './support/volume-hosts.ts';

let dir: string;
let world: World;
let a: VolumeHost;
let b: VolumeHost;
/** Has no copy of anything, unless a test opens one. */
let c: VolumeHost;
const hosts: VolumeHost[] = [];
/** Of the third host. */
let freeBytes = Number.MAX_SAFE_INTEGER;
/** Between the third host and control. */
let proxy: FailingProxy;
before(async () => {
  dir = await mkdtemp(join(tmpdir(), 'releap-volumes-'));
  world = await startWorld({ builtinImages: [] });
  proxy = await FailingProxy.start(() => world.internalUrl);
  [a, b] = [await volumeHost(world, dir), await volumeHost(world, dir)];
  c = await volumeHost(world, dir, {
    controlUrl: proxy.url,
    timing: { closeWaitMs: 100, outageMs: 1_000 },
    space: () => Promise.resolve({ freeBytes, totalBytes: 2 ** 40 }),
  });
  hosts.push(a, b, c);
});
after(async () => {
  for (const host of hosts) {
    await host.copies.detach();
    await host.copies.unmount();
  }
  await proxy?.close();
  await world[Symbol.asyncDispose]();
  await cleanUpBelow(dir);
  await rm(dir, { recursive: true, force: true });
});

const { signal } = new AbortController();
let volumes = 0;
/** A volume that all hosts may have. */
async function volume(): Promise<string> {
  const answer = await world.call('POST', '/volumes', { name: `v${(volumes += 1)}`, size_gb: 1 });
  assert.equal(answer.status, 200, answer.text);
  const id = answer.body.id as string;
  for (const { id: runnerId, runner } of hosts) {
    await world.database.pool.query('insert into volume_copies (volume_id, runner_id) values ($1, $2)', [
      id,
      runnerId,
    ]);
    runner.drop();
    await runner.connect();
    await until(() => runner.volumes.has(id));
  }
  return id;
}
const detail = async (id: string): Promise<Record<string, unknown>> =>
  (await world.call('GET', `/volumes/${id}`)).body;
const commit = async (id: string): Promise<void> => {
  const answer = await world.call('POST', `/volumes/${id}/commit`, {});
  assert.equal(answer.status, 200, answer.text);
};
const CHILD = fileURLToPath(new URL('support/volume-child.ts', import.meta.url));
async function child(
  crashes: string,
  hostId: string,
  id: string,
  content: string,
): Promise<{ code: number | null; signal: string | null; stderr: string }> {
  const args = [CHILD, join(dir, hostId), hostId, id, content, world.internalUrl];
  const started = spawn(process.execPath, args, {
    env: { ...process.env, RELEAP_CRASH_AT: crashes },
    stdio: ['ignore', 'inherit', 'pipe'],
  });
  let stderr = '';
  started.stderr.on('data', (chunk: Buffer) => (stderr += chunk.toString()));
  const [code, killedBy] = (await once(started, 'exit')) as [number | null, string | null];
  return { code, signal: killedBy, stderr };
}

/** All files of a tree with their content. */
async function tree(folder: string): Promise<Record<string, string>> {
  const names = await readdir(folder, { recursive: true, withFileTypes: true });
  const files = names.filter((entry) => entry.isFile());
  return Object.fromEntries(
    await Promise.all(
      files.map(async ({ parentPath, name }) => {
        const path = join(parentPath, name);
        return [path.slice(folder.length + 1), await readFile(path, 'utf8')] as const;
      }),
    ),
  );
}
/** Why each manifest was made, newest first. */
const manifests = async (id: string): Promise<string[]> => {
  const { body } = await world.call('GET', `/volumes/${id}/manifests`);
  return (body.manifests as { reason: string }[]).map(({ reason }) => reason);
};
const base = (host: VolumeHost, id: string): number | undefined => host.copies.get(id).state.number;

describe('a volume on two hosts', () => {
  it('has on the second host what a sandbox on the first has written, and keeps the copy of the first as a cache', async () => {
    const id = await volume();
    const { data } = await a.copies.open(id, 's1', signal);
    await mkdir(join(data, 'folder'));
    await writeFile(join(data, 'folder/file'), 'written on a');
    await chmod(join(data, 'folder/file'), 0o640);
    await symlink('folder/file', join(data, 'link'));
    await a.copies.close(id, 's1');
    const there = await b.copies.open(id, 's2', signal);
    assert.equal(await readFile(join(there.data, 'link'), 'utf8'), 'written on a');
    assert.equal((await stat(join(there.data, 'folder/file'))).mode & 0o777, 0o640);
    // Without a change nothing is committed.
    await b.copies.close(id, 's2');
    assert.deepEqual(await manifests(id), ['detach']);
    await until(() => a.copies.get(id).isCache);
    // The cache is brought up to date when it is opened next.
    await b.copies.open(id, 's3', signal);
    await writeFile(join(there.data, 'more'), 'from b');
    await b.copies.close(id, 's3');
    await a.copies.open(id, 's4', signal);
    assert.deepEqual(await tree(data), { 'folder/file': 'written on a', more: 'from b' });
    await a.copies.close(id, 's4');
  });

  it('open on both, gives each what the other commits, and keeps both versions of a file that both changed', async () => {
    const id = await volume();
    const { data: onA } = await a.copies.open(id, 's1', signal);
    const { data: onB } = await b.copies.open(id, 's2', signal);
    await writeFile(join(onA, 'a'), 'a');
    await commit(id);
    await until(async () => (await tree(onB))['a'] === 'a');
    await writeFile(join(onA, 'b'), 'b of a');
    await writeFile(join(onB, 'c'), 'c of b');
    await commit(id);
    const both = { a: 'a', b: 'b of a', c: 'c of b' };
    for (const data of [onA, onB])
      await until(async () => JSON.stringify(await tree(data)) === JSON.stringify(both));

    await writeFile(join(onA, 'a'), 'changed on a');
    await writeFile(join(onB, 'a'), 'changed on b');
    await commit(id);
    await until(() => base(a, id) === base(b, id));
    const [first, second] = [await tree(onA), await tree(onB)];
    assert.deepEqual(first, second);
    const kept = Object.keys(first).find((name) => name.startsWith('a.conflict-')) ?? '';
    assert.deepEqual(new Set([first['a'], first[kept]]), new Set(['changed on a', 'changed on b']));
    const { conflicts } = await detail(id);
    assert.equal((conflicts as unknown[]).length, 1, JSON.stringify(conflicts));
    const [conflict] = conflicts as { path: string; kept_as: string }[];
    assert.deepEqual([conflict?.path, conflict?.kept_as], ['a', kept]);
    await Promise.all([a.copies.close(id, 's1'), b.copies.close(id, 's2')]);
  });
});

describe('a runner that dies', () => {
  const steps = [
    'volume:checked-out',

    'volume:announced',

    ...(isNightly()
      ? [
          'volume:mounted',
          'volume:opened',
          'volume:accepted',
          'volume:pack-fetched',
          'volume:fetched',
          'volume:packed',
          'volume:pack-uploaded',
          'volume:uploaded',
          'volume:committed',
          'volume:detaching',
        ]
      : []),
  ];

  it('at any step of an opening and a commit loses nothing, and commits once', async () => {
    const id = await volume();
    const { data } = await a.copies.open(id, 's', signal);
    await writeFile(join(data, 'first'), 'first');
    await a.copies.close(id, 's');
    const crashes = join(dir, 'crashes');
    await mkdir(crashes);
    for (const step of steps) await writeFile(join(crashes, step), '');
    const runs = await untilItLives(crashes, b.id, id, 'second');
    assert.deepEqual(await readdir(crashes), []);
    assert.equal(runs, steps.length + 1);
    assert.deepEqual(await manifests(id), ['detach', 'detach']);
    const there = await a.copies.open(id, 's', signal);
    assert.deepEqual(await tree(there.data), { first: 'first', second: 'second' });

    // It dies with changes, and finds that the other host has committed meanwhile.
    await writeFile(join(crashes, 'volume:packed'), '');
    assert.equal((await child(crashes, b.id, id, 'fourth')).signal, 'SIGKILL');
    await writeFile(join(there.data, 'first'), 'first of a');
    await writeFile(join(there.data, 'third'), 'third');
    await writeFile(join(there.data, 'fourth'), 'fourth of a');
    await a.copies.close(id, 's');
    const merging = ['volume:merged', ...(isNightly() ? ['volume:fetched', 'volume:committed'] : [])];
    for (const step of merging) await writeFile(join(crashes, step), '');
    assert.equal(await untilItLives(crashes, b.id, id, 'fourth'), merging.length + 1);
    await a.copies.open(id, 's', signal);
    const { conflicts } = await detail(id);
    const [conflict, ...more] = conflicts as { path: string; kept_as: string }[];
    assert.ok(conflict);
    assert.deepEqual([conflict.path, more], ['fourth', []]);
    assert.deepEqual(await tree(there.data), {
      first: 'first of a',
      second: 'second',
      third: 'third',
      fourth: 'fourth of a',
      [conflict.kept_as]: 'fourth',
    });
    await a.copies.close(id, 's');
  });
});

/** Runs the copies of a host in a process that dies at each failpoint, until one ends. @returns how many ran */
async function untilItLives(crashes: string, hostId: string, id: string, content: string): Promise<number> {
  for (let runs = 1; ; runs += 1) {
    const { code, signal: killedBy, stderr } = await child(crashes, hostId, id, content);
    if (code === 0) return runs;
    assert.equal(killedBy, 'SIGKILL', stderr);
  }
}

describe('a store that is out of order', () => {
  it('delays commits, loses nothing, and is named; an answer that is lost does not commit twice', async () => {
    const id = await volume();
    const { data } = await c.copies.open(id, 's', signal);
    await writeFile(join(data, 'file'), 'kept');
    proxy.answer = ({ method }) => (method === 'PUT' ? 503 : undefined);
    await c.copies.close(id, 's');
    assert.notEqual(c.copies.get(id).state.dirtySince, undefined);
    await until(() => c.copies.get(id).state.error !== undefined);
    await until(async () => /503|store/.test(String((await detail(id))['error_reason'])));
    let lost = 0;
    proxy.answer = ({ url }) =>
      url?.endsWith('/commits') === true && (lost += 1) === 1 ? 'lost' : undefined;
    await until(() => c.copies.get(id).state.dirtySince === undefined);
    assert.equal(lost, 2);
    assert.deepEqual(await manifests(id), ['detach']);
    const { data: onA } = await a.copies.open(id, 's', signal);
    assert.deepEqual(await tree(onA), { file: 'kept' });
    await writeFile(join(onA, 'file'), 'newer');
    await a.copies.close(id, 's');

    proxy.answer = ({ method, url }) =>
      method === 'GET' && url?.includes('/blobs/') === true ? 503 : undefined;
    await assert.rejects(c.copies.open(id, 's', signal), /newest commit of .* cannot be read/);
    proxy.answer = undefined;
    await c.copies.open(id, 's', signal);
    assert.deepEqual(await tree(data), { file: 'newer' });
    await c.copies.close(id, 's');
  });
});

describe('a store that is silent', () => {
  const failing = (method: string) => (asked: IncomingMessage) =>
    asked.method === method && asked.url?.includes('/blobs/') === true ? 'silent' : undefined;

  it('is named, and holds up neither the end nor the start of a sandbox for long', async () => {
    // The only one that gives up a transfer after seconds: others do not while the machine stalls.
    const impatient = await volumeHost(world, dir, {
      controlUrl: proxy.url,
      timing: { closeWaitMs: 100, outageMs: 1_000 },
      stallMs: 3_000,
    });
    hosts.push(impatient);
    const id = await volume();
    const { data } = await impatient.copies.open(id, 's', signal);
    await writeFile(join(data, 'file'), 'kept');
    proxy.answer = failing('PUT');
    await impatient.copies.close(id, 's');
    await until(async () => /was silent for/.test(String((await detail(id))['error_reason'])));
    proxy.answer = undefined;
    await until(async () => (await detail(id))['error_reason'] === undefined);
    const { data: onA } = await a.copies.open(id, 's', signal);
    await writeFile(join(onA, 'file'), 'newer');
    await a.copies.close(id, 's');
    proxy.answer = failing('GET');
    await assert.rejects(
      impatient.copies.open(id, 's', signal),
      /newest commit of .* cannot be read: .* silent for/,
    );
    proxy.answer = undefined;
    await until(() =>
      impatient.copies.open(id, 's', signal).then(
        () => true,
        () => false,
      ),
    );
    assert.deepEqual(await tree(data), { file: 'newer' });
    await impatient.copies.close(id, 's');
  });
});

describe('an unused copy', () => {
  it('is removed for space once its changes are committed, and fetched again', async () => {
    const id = await volume();
    const { data } = await c.copies.open(id, 's', signal);
    await writeFile(join(data, 'file'), 'kept');
    freeBytes = 0;
    proxy.answer = ({ method }) => (method === 'PUT' ? 503 : undefined);
    await c.copies.close(id, 's');
    await until(() => c.copies.get(id).state.error !== undefined);
    assert.equal(c.copies.get(id).state.exists, true);
    proxy.answer = undefined;
    await until(() => !c.copies.get(id).state.exists);
    assert.deepEqual((await readdir(join(dir, c.id, 'volumes'))).includes(id), false);
    freeBytes = Number.MAX_SAFE_INTEGER;
    await c.copies.open(id, 's', signal);
    assert.deepEqual(await tree(data), { file: 'kept' });
    await c.copies.close(id, 's');
  });

  it('goes into the quarantine when control does not name it, with its changes, and is removed when it is deleted', async () => {
    const id = await volume();
    const { data } = await c.copies.open(id, 's', signal);
    await writeFile(join(data, 'file'), 'committed');
    await c.copies.close(id, 's');
    await until(() => c.copies.get(id).isCache);
    await c.copies.open(id, 's', signal);
    await writeFile(join(data, 'file'), 'changed');
    proxy.answer = ({ method }) => (method === 'PUT' ? 503 : undefined);
    await c.copies.close(id, 's');
    const named = [...c.runner.volumes.values()];
    c.reconciler.linked();
    for (const assignment of named) if (assignment.id !== id) c.reconciler.named(assignment.id);
    const { ids } = await c.reconciler.orphans();
    assert.deepEqual(ids, [id]);
    c.reconciler.park(ids);
    await c.reconciler.idle();
    const quarantined = async (): Promise<number> => (await readdir(join(dir, c.id, 'quarantine'))).length;
    assert.equal(await quarantined(), 1);
    proxy.answer = undefined;
    // Control names it, and wants a sandbox with it, at once.
    await Promise.all([c.copies.restore(id), c.copies.open(id, 's', signal)]);
    assert.equal(await quarantined(), 0);
    assert.deepEqual(await tree(data), { file: 'changed' });
    await c.copies.close(id, 's');
    assert.equal((await world.call('DELETE', `/volumes/${id}`)).status, 200);
    for (const host of hosts)
      await until(async () => !(await readdir(join(dir, host.id, 'volumes'))).includes(id));
    await assert.rejects(a.copies.open(id, 's', signal), /not assigned/);
  });
});
