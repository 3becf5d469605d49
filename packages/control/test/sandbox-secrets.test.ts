import assert from 'node:assert/strict';
import { after, before, describe, it } from 'node:test';
import { newToken, newUuid } from '@releap/contract';
import { createEncryption } from '../src/platform/encryption/encryption.ts';
import { copySecrets } from '../src/storage/secrets/placeholders.ts';
import { eraseUnused } from '../src/storage/secrets/secrets.ts';
import { inspect } from '@releap/testing/inspect';
import { keyPath, testKeys } from '@releap/testing/keys';
import { create, startWorld, waitFor, type ScriptedRunner, type World } from '@releap/testing/world';
import { secretsOf } from './support/secrets.ts';

const keys = testKeys(keyPath());
const encryption = createEncryption(keys);
const world = await startWorld({ keys });
const call = world.call;
await world.runner();

const { put, stored, envOf, lookUp } = secretsOf(() => world, encryption);

describe('POST /vms with secrets', () => {
  it('gives the sandbox a placeholder each, in its environment, and never a value', async () => {
    await put('ONE', { value: 'value-of-one', allowed_domains: ['one.example'] });
    await put('TWO', { value: 'value-of-two' });
    const vm = await create(call, world, { secrets: ['ONE', 'TWO', 'ONE'], env: { MORE: 'x' } });
    const env = await envOf(vm.uuid);
    assert.deepEqual(Object.keys(env).sort(), ['MORE', 'ONE', 'TWO']);
    for (const name of ['ONE', 'TWO']) assert.match(env[name] ?? '', /^rlps_[0-9A-Za-z]{43}$/);
    assert.notEqual(env['ONE'], env['TWO']);
    assert.deepEqual(await lookUp(vm.uuid, env['ONE']), {
      name: 'ONE',
      value: 'value-of-one',
      allowedDomains: ['one.example'],
    });
    const runner = await world.runner();
    assert.ok(runner);
    await waitFor(call, vm.id, 'running');
  });

  it('400: unknown secret, by name; nothing is created', async () => {
    await put('KNOWN');
    const before = (await call('GET', '/vms')).body.vms.length;
    const answer = await call('POST', '/vms', { image: 'busybox', secrets: ['KNOWN', 'NO_SUCH'] });
    assert.equal(answer.status, 400, answer.text);
    assert.match(answer.body.error, /^secrets: the project has no secret "NO_SUCH"/);
    assert.match(
      (await call('POST', '/vms', { image: 'busybox', secrets: ['no such'] })).body.error,
      /"no such" is not a valid secret name/,
    );
    assert.match(
      (await call('POST', '/vms', { image: 'busybox', secrets: ['KNOWN'], env: { KNOWN: '' } })).body.error,
      /env\.KNOWN cannot be set/,
    );
    assert.equal((await call('GET', '/vms')).body.vms.length, before);
  });

  it('makes others for every sandbox; one means nothing to another sandbox', async () => {
    await put('EACH');
    const [a, b] = [
      await create(call, world, { secrets: ['EACH'] }),
      await create(call, world, { secrets: ['EACH'] }),
    ];
    const [inA, inB] = [(await envOf(a.uuid))['EACH'], (await envOf(b.uuid))['EACH']];
    assert.notEqual(inA, inB);
    assert.equal((await lookUp(a.uuid, inA))?.name, 'EACH');
    assert.equal(await lookUp(b.uuid, inA), null);
    assert.equal(await lookUp(newUuid(), inA), null);
    assert.equal(await lookUp(a.uuid, newToken('secretPlaceholder')), null);
    assert.equal(await lookUp(a.uuid, 'rlps_short'), null);
    assert.equal(await lookUp(a.uuid, ''), null);
  });

  it('keeps them over stop, start, pause and resume', async () => {
    await put('KEPT');
    const vm = await create(call, world, { secrets: ['KEPT'], persistent: true });
    await waitFor(call, vm.id, 'running');
    const runner = await world.runner({ ready: false });
    assert.ok(runner);
    const first = await envOf(vm.uuid);
    for (const [verb, status] of [
      ['stop', 'stopped'],
      ['start', 'running'],
      ['pause', 'paused'],
      ['resume', 'running'],
    ] as const) {
      assert.equal((await call('POST', `/vms/${vm.id}/${verb}`)).status, 200);
      await waitFor(call, vm.id, status);
      assert.deepEqual(await envOf(vm.uuid), first);
      assert.equal((await lookUp(vm.uuid, first['KEPT']))?.value, 'x');
    }
  });

  it('uses a new value and new domains as soon as they are written', async () => {
    await put('TURNED', { value: 'old' });
    const vm = await create(call, world, { secrets: ['TURNED'] });
    const { TURNED: placeholder } = await envOf(vm.uuid);
    await put('TURNED', { value: 'new', allowed_domains: ['a.b'] });
    assert.deepEqual(await lookUp(vm.uuid, placeholder), {
      name: 'TURNED',
      value: 'new',
      allowedDomains: ['a.b'],
    });
  });

  it('a deleted secret works on in the sandboxes that have it, and is erased with the last of them', async () => {
    await put('ENDED', { value: 'still here' });
    const { id } = await stored(call, 'ENDED');
    const [a, b] = [
      await create(call, world, { secrets: ['ENDED'] }),
      await create(call, world, { secrets: ['ENDED'], persistent: true }),
    ];
    for (const vm of [a, b]) await waitFor(call, vm.id, 'running');
    const placeholders = [(await envOf(a.uuid))['ENDED'], (await envOf(b.uuid))['ENDED']];
    assert.equal((await call('DELETE', '/secrets/ENDED')).status, 204);
    assert.equal((await call('GET', '/secrets/ENDED')).status, 404);
    assert.ok(!(await call('GET', '/secrets')).text.includes('"ENDED"'));
    assert.equal((await call('POST', '/vms', { image: 'busybox', secrets: ['ENDED'] })).status, 400);
    assert.equal((await lookUp(a.uuid, placeholders[0]))?.value, 'still here');
    // Another of the same name is another secret.
    await put('ENDED', { value: 'another' });
    assert.equal((await lookUp(a.uuid, placeholders[0]))?.value, 'still here');

    await call('DELETE', `/vms/${a.id}`);
    await waitFor(call, a.id, 'deleted');
    assert.equal(await lookUp(a.uuid, placeholders[0]), null);
    await eraseUnused(world.database.pool);
    assert.equal((await lookUp(b.uuid, placeholders[1]))?.value, 'still here');
    await call('DELETE', `/vms/${b.id}`);
    await waitFor(call, b.id, 'deleted');
    await eraseUnused(world.database.pool);
    const left = await world.database.pool.query('select 1 from secrets where id = $1', [id]);
    assert.equal(left.rowCount, 0);
    assert.equal((await call('GET', '/secrets/ENDED')).status, 200);
  });

  it('a copy of a sandbox gets its own placeholders, and those in its memory continue to work', async () => {
    await put('FORKED', { value: 'v' });
    await put('FORKED_2', { value: 'w' });
    const source = await create(call, world, { secrets: ['FORKED', 'FORKED_2'] });
    const was = await envOf(source.uuid);
    const copies: { id: string; env: Record<string, string> }[] = [];
    for (const from of [source.uuid, 'copy'] as const) {
      const id = (await create(call, world)).uuid;
      const of = from === 'copy' ? (copies[0]?.id ?? '') : from;
      const env = await world.database.transaction((client) => copySecrets(client, { from: of, to: id }));
      copies.push({ id, env });
    }
    for (const { id, env } of copies) {
      assert.deepEqual(Object.keys(env).sort(), ['FORKED', 'FORKED_2']);
      assert.notEqual(env['FORKED'], was['FORKED']);
      assert.equal((await lookUp(id, env['FORKED']))?.value, 'v');
      assert.equal((await lookUp(id, was['FORKED_2']))?.value, 'w');
      assert.equal(await lookUp(source.uuid, env['FORKED']), null);
    }
    // The copy of the copy has in its memory what its own source had there.
    assert.equal((await lookUp(copies[1]?.id ?? '', copies[0]?.env['FORKED']))?.value, 'v');
    assert.deepEqual(
      await world.database.transaction((client) => copySecrets(client, { from: newUuid(), to: newUuid() })),
      {},
    );
    // The foreign key waits for the end of the transaction, and then holds.
    await assert.rejects(
      world.database.transaction((client) => copySecrets(client, { from: source.uuid, to: newUuid() })),
      /foreign key/,
    );
  });
});

describe('what is made from a sandbox with secrets', () => {
  let mine: World;
  let runner: ScriptedRunner;
  const { lookUp: lookUpIn } = secretsOf(() => mine, encryption);
  before(async () => {
    mine = await startWorld({ keys, builtinImages: ['busybox'] });
    runner = await mine.runner();
  });
  after(async () => mine[Symbol.asyncDispose]());

  /** The environment that the host is given for the sandbox of a job. */
  async function begun(job: string): Promise<{ uuid: string; env: Record<string, string> }> {
    const { id: uuid } = await inspect(mine.database, { jobId: job });
    return { uuid, env: (await runner.assigned(uuid)).spec.env };
  }
  async function source(name: string): Promise<{ id: string; uuid: string; env: Record<string, string> }> {
    await put(name, { value: `value of ${name}` }, mine.call);
    const vm = await create(mine.call, mine, { secrets: [name], env: { MORE: 'x' }, persistent: true });
    await waitFor(mine.call, vm.id, 'running');
    return { ...vm, env: (await runner.assigned(vm.uuid)).spec.env };
  }

  it('a fork: the same secrets under placeholders of its own', async () => {
    const vm = await source('IN_FORK');
    const answer = await mine.call('POST', `/vms/${vm.id}/fork`);
    assert.equal(answer.status, 200, answer.text);
    const child = await begun(answer.body.job_id);
    assert.deepEqual(Object.keys(child.env).toSorted(), ['IN_FORK', 'MORE']);
    assert.notEqual(child.env['IN_FORK'], vm.env['IN_FORK']);
    for (const placeholder of [child.env['IN_FORK'], vm.env['IN_FORK']])
      assert.equal((await lookUpIn(child.uuid, placeholder))?.value, 'value of IN_FORK');
    assert.equal(await lookUpIn(vm.uuid, child.env['IN_FORK']), null);
  });

  it('a full snapshot: the secrets of its source, also when that and the secret are deleted', async () => {
    const vm = await source('IN_MEMORY');
    const taken = await mine.call('POST', `/vms/${vm.id}/snapshots`, { name: 'full', kind: 'full' });
    await mine.call('GET', `/snapshots/${taken.body.id}?wait=ready`);
    await mine.call('DELETE', `/vms/${vm.id}`);
    await waitFor(mine.call, vm.id, 'deleted');
    await mine.call('DELETE', '/secrets/IN_MEMORY');
    await eraseUnused(mine.database.pool);
    const image = { type: 'snapshot', name: 'full' };
    const both = await mine.call('POST', '/vms', { image, env: { IN_MEMORY: 'x' } });
    assert.equal(both.status, 400);
    assert.match(both.body.error, /env\.IN_MEMORY cannot be set, because snapshot "full" has a secret/);
    const answer = await mine.call('POST', '/vms', { image });
    assert.equal(answer.status, 200, answer.text);
    const copy = await begun(answer.body.job_id);
    assert.notEqual(copy.env['IN_MEMORY'], vm.env['IN_MEMORY']);
    for (const placeholder of [copy.env['IN_MEMORY'], vm.env['IN_MEMORY']])
      assert.equal((await lookUpIn(copy.uuid, placeholder))?.value, 'value of IN_MEMORY');

    // A secret of that name that is asked for takes the variable; what is in memory means the old one.
    await put('IN_MEMORY', { value: 'another' }, mine.call);
    const third = await begun(
      (await mine.call('POST', '/vms', { image, secrets: ['IN_MEMORY'] })).body.job_id,
    );
    assert.equal((await lookUpIn(third.uuid, third.env['IN_MEMORY']))?.value, 'another');
    assert.equal((await lookUpIn(third.uuid, vm.env['IN_MEMORY']))?.value, 'value of IN_MEMORY');
  });

  it('a disk snapshot: only the secrets that are asked for', async () => {
    await put('ON_DISK', { value: 'v' }, mine.call);
    const vm = await create(mine.call, mine, { secrets: ['ON_DISK'] });
    await waitFor(mine.call, vm.id, 'running');
    const old = (await runner.assigned(vm.uuid)).spec.env['ON_DISK'];
    const taken = await mine.call('POST', `/vms/${vm.id}/snapshots`, { name: 'disk' });
    await mine.call('GET', `/snapshots/${taken.body.id}?wait=ready`);
    const image = { type: 'snapshot', name: 'disk' };
    const bare = await begun((await mine.call('POST', '/vms', { image })).body.job_id);
    assert.deepEqual(bare.env, {});
    assert.equal(await lookUpIn(bare.uuid, old), null);
    const asked = await begun((await mine.call('POST', '/vms', { image, secrets: ['ON_DISK'] })).body.job_id);
    assert.equal((await lookUpIn(asked.uuid, asked.env['ON_DISK']))?.value, 'v');
  });
});
