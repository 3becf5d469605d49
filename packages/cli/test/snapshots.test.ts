import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { json, rlpHere } from './rlp.ts';
import { newUuid } from '@releap/contract';
import { send, startService } from './service.ts';
import { addSnapshot } from './service-snapshots.ts';

describe('rlp snapshot create', () => {
  test('takes a disk of an ephemeral sandbox and all of a persistent one, and waits until it is ready', async () => {
    await using service = await startService();
    service.add('short');
    service.add('long', { persistent: true });
    const disk = await rlpHere(service, ['snapshot', 'create', 'short', 'base']);
    assert.deepEqual(disk, { code: 0, stdout: `${service.snapshots[0]?.id}\n`, stderr: '' });
    assert.equal(service.snapshots[0]?.status, 'ready');
    const full = json(await rlpHere(service, ['snapshot', 'create', 'long', 'warm', '--json']));
    assert.deepEqual([full['name'], full['status']], ['warm', 'ready']);
    assert.equal(typeof full['job_id'], 'string');
    assert.deepEqual(service.bodies, [
      { name: 'base', kind: 'disk' },
      { name: 'warm', kind: 'full' },
    ]);
  });

  test('--kind is the service’s to refuse; another word is wrong usage', async () => {
    await using service = await startService();
    service.add('short');
    const refused = await rlpHere(service, ['snapshot', 'create', 'short', 'x', '--kind', 'full']);
    assert.deepEqual(refused, {
      code: 1,
      stdout: '',
      stderr: 'rlp: kind full is not for a sandbox of this sort\n',
    });
    const wrong = await rlpHere(service, ['snapshot', 'create', 'short', 'x', '--kind', 'warm']);
    assert.equal(wrong.code, 2);
    assert.match(wrong.stderr, /disk, full/);
  });

  test('a name that is taken, an unknown sandbox, an empty name', async () => {
    await using service = await startService();
    service.add('web');
    addSnapshot(service, 'base');
    const taken = await rlpHere(service, ['snapshot', 'create', 'web', 'base', '--json']);
    assert.deepEqual(JSON.parse(taken.stderr), {
      error: 'a snapshot named "base" exists',
      exit_code: 1,
      status: 409,
    });
    assert.equal((await rlpHere(service, ['snapshot', 'create', 'nobody', 'x'])).code, 4);
    assert.equal((await rlpHere(service, ['snapshot', 'create', 'web', ''])).code, 2);
    assert.equal((await rlpHere(service, ['snapshot', 'create', 'web'])).code, 2);
  });

  test('one that fails: exit code 1, and the reason', async () => {
    await using service = await startService();
    const vm = service.add('web');
    const failing = addSnapshot(service, 'base', {
      status: 'pending',
      error: 'no space left',
      coming: ['failed'],
    });
    service.special.set(`POST /vms/${vm.id}/snapshots`, (_request, response) =>
      send(response, 200, { ...failing, job_id: newUuid() }),
    );
    const outcome = await rlpHere(service, ['snapshot', 'create', 'web', 'base']);
    assert.deepEqual(outcome, {
      code: 1,
      stdout: '',
      stderr: 'rlp: snapshot base has failed: no space left\n',
    });
  });

  test('gives up waiting when its time is over; --no-wait does not wait', async () => {
    await using service = await startService();
    const vm = service.add('web');
    const slow = addSnapshot(service, 'slow', { status: 'pending' });
    service.special.set(`POST /vms/${vm.id}/snapshots`, (_request, response) =>
      send(response, 200, { ...slow, job_id: newUuid() }),
    );
    const late = await rlpHere(service, ['snapshot', 'create', 'web', 'slow', '--wait-timeout', '1s']);
    assert.equal(late.code, 1);
    assert.match(late.stderr, /snapshot slow is still pending after 1 s; it goes on without us/);
    const outcome = await rlpHere(service, ['snapshot', 'create', 'web', 'slow', '--no-wait']);
    assert.deepEqual(outcome, { code: 0, stdout: `${slow.id}\n`, stderr: '' });
  });
});

describe('rlp snapshot ls', () => {
  test('lists all pages, newest first', async () => {
    await using service = await startService();
    for (const name of ['one', 'two', 'three']) addSnapshot(service, name);
    addSnapshot(service, 'evil\u001b[2J', {
      kind: 'full',
      mem_bytes: 2 ** 30,
      status: 'failed',
      error: 'no room',
    });
    const { code, stdout } = await rlpHere(service, ['snapshot', 'ls']);
    assert.equal(code, 0);
    const rows = stdout
      .trim()
      .split('\n')
      .map((line) => line.split(/\s{2,}/));
    assert.deepEqual(
      rows.map((row) => row[0]),
      ['NAME', 'evil?[2J', 'three', 'two', 'one'],
    );
    assert.deepEqual(rows[1]?.slice(1, 5), ['full', 'failed', '-', '1024 MiB']);
    assert.match(stdout, /no room/);
    assert.equal((await rlpHere(service, ['snapshot', 'ls', '-q'])).stdout.trim().split('\n').length, 4);
    assert.equal(
      (JSON.parse((await rlpHere(service, ['snapshot', '--json'])).stdout) as unknown[]).length,
      4,
    );
  });
});

describe('rlp snapshot rm', () => {
  test('takes names and ids, goes on after a failure, and tells', async () => {
    await using service = await startService();
    const [one, two, parent] = ['one', 'two', 'parent'].map((name) => addSnapshot(service, name));
    service.special.set(`DELETE /snapshots/${parent?.id}`, (_request, response) =>
      send(response, 409, { error: 'snapshot "parent" has descendants' }),
    );
    const outcome = await rlpHere(service, ['snapshot', 'rm', 'one', 'parent', String(two?.id), 'nobody']);
    assert.equal(outcome.code, 1);
    assert.equal(outcome.stdout, `${one?.id}\n${two?.id}\n`);
    assert.equal(
      outcome.stderr,
      'rlp: snapshot "parent" has descendants\n' +
        'rlp: no snapshot has the name or id "nobody": rlp snapshot ls lists them\n',
    );
    assert.deepEqual(
      service.snapshots.map((left) => left.name),
      ['parent'],
    );
  });

  test('-f: one that does not exist is no error', async () => {
    await using service = await startService();
    const outcome = await rlpHere(service, ['snapshot', 'rm', '-f', 'nobody', '--json']);
    assert.equal(outcome.code, 0);
    assert.deepEqual(json(outcome), [{ snapshot: 'nobody', status: 'absent' }]);
    assert.equal((await rlpHere(service, ['snapshot', 'rm'])).code, 2);
  });
});

describe('rlp run --from-snapshot', () => {
  test('takes the place of the image, with a command and without one', async () => {
    await using service = await startService();
    const ran = await rlpHere(service, ['run', '--from-snapshot', 'base', '--', 'echo', 'hi']);
    assert.deepEqual(ran, { code: 0, stdout: 'hi\n', stderr: '' });
    const bare = await rlpHere(service, ['run', '--from-snapshot', 'base', '--name', 'web']);
    assert.deepEqual([bare.code, bare.stdout], [0, `${service.sandboxes[0]?.id}\n`]);
    assert.deepEqual(service.bodies, [
      { image: { type: 'snapshot', name: 'base' } },
      { image: { type: 'snapshot', name: 'base' }, name: 'web' },
    ]);
  });

  test('with an image beside it, or a command without --, nothing is asked', async () => {
    await using service = await startService();
    for (const args of [
      ['busybox', '--from-snapshot', 'base'],
      ['--from-snapshot', 'base', 'busybox', '--', 'echo'],
      ['--from-snapshot', 'base', 'echo', 'hi'],
      ['--from-snapshot', '', '--', 'echo'],
      [],
    ])
      assert.equal((await rlpHere(service, ['run', ...args])).code, 2, args.join(' '));
    assert.deepEqual(service.calls, []);
  });

  test('one that does not exist: the service says so', async () => {
    await using service = await startService();
    service.special.set('POST /vms', (_request, response) =>
      send(response, 404, { error: 'snapshot "nobody" not found' }),
    );
    const outcome = await rlpHere(service, ['run', '--from-snapshot', 'nobody']);
    assert.deepEqual(outcome, { code: 4, stdout: '', stderr: 'rlp: snapshot "nobody" not found\n' });
  });
});
