import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { CAPTURED, takesSnapshots } from '@releap/testing/world';
import { startRelay } from './relay.ts';
import { json, rlpHere } from './rlp.ts';
import { type Project, startService } from './world.ts';

const service = await startService();

interface Snapshot {
  id: string;
  name: string;
  kind: string;
  status: string;
}
/** Newest first. */
async function listed(project: Project): Promise<Snapshot[]> {
  return (await project.call('GET', '/snapshots')).body.snapshots as Snapshot[];
}

describe('rlp snapshot create', () => {
  test('takes a disk of an ephemeral sandbox and all of a persistent one, and waits until it is ready', async () => {
    const project = await service.project();
    await project.create('short');
    await project.create('long', { persistent: true });
    const disk = await project.rlp(['snapshot', 'create', 'short', 'base']);
    const [base] = await listed(project);
    assert.deepEqual(disk, { code: 0, stdout: `${base?.id}\n`, stderr: '' });
    assert.deepEqual([base?.name, base?.kind, base?.status], ['base', 'disk', 'ready']);
    const full = json(await project.rlp(['snapshot', 'create', 'long', 'warm', '--json']));
    assert.deepEqual([full['name'], full['kind'], full['status']], ['warm', 'full', 'ready']);
    assert.equal(typeof full['job_id'], 'string');
  });

  test('--kind is the service’s to refuse; another word is wrong usage', async () => {
    const project = await service.project();
    await project.create('short');
    const refused = await project.rlp(['snapshot', 'create', 'short', 'x', '--kind', 'full']);
    assert.deepEqual([refused.code, refused.stdout], [1, '']);
    assert.match(refused.stderr, /^rlp: .*persistent.*\n$/);
    const wrong = await project.rlp(['snapshot', 'create', 'short', 'x', '--kind', 'warm']);
    assert.equal(wrong.code, 2);
    assert.match(wrong.stderr, /disk, full/);
    assert.deepEqual(await listed(project), []);
  });

  test('a name that is taken, an unknown sandbox, an empty name', async () => {
    const project = await service.project();
    await project.create('web');
    assert.equal((await project.rlp(['snapshot', 'create', 'web', 'base'])).code, 0);
    const taken = JSON.parse((await project.rlp(['snapshot', 'create', 'web', 'base', '--json'])).stderr) as {
      error: string;
    };
    assert.deepEqual(taken, { error: taken.error, exit_code: 1, status: 409, code: 'name_exists' });
    assert.match(taken.error, /"base"/);
    assert.equal((await project.rlp(['snapshot', 'create', 'nobody', 'x'])).code, 4);
    assert.equal((await project.rlp(['snapshot', 'create', 'web', ''])).code, 2);
    assert.equal((await project.rlp(['snapshot', 'create', 'web'])).code, 2);
  });

  test('one that fails: exit code 1, and the reason', async (t) => {
    const project = await service.project();
    await project.create('web');
    t.after(() => (service.runner.options.snapshot = takesSnapshots));
    service.runner.options.snapshot = (assignment, runner) =>
      runner.observeSnapshot(assignment, { status: 'failed', error: 'no space left' });
    const outcome = await project.rlp(['snapshot', 'create', 'web', 'base']);
    assert.deepEqual(outcome, {
      code: 1,
      stdout: '',
      stderr: 'rlp: snapshot base has failed: no space left\n',
    });
  });

  test('gives up waiting when its time is over; --no-wait does not wait', async (t) => {
    const project = await service.project();
    await project.create('web');
    t.after(() => (service.runner.options.snapshot = takesSnapshots));
    service.runner.options.snapshot = () => undefined;
    const late = await project.rlp(['snapshot', 'create', 'web', 'slow', '--wait-timeout', '1s']);
    assert.equal(late.code, 1);
    assert.match(late.stderr, /snapshot slow is still pending after 1 s; it continues in the background/);
    const outcome = await project.rlp(['snapshot', 'create', 'web', 'slower', '--no-wait']);
    const [slower] = await listed(project);
    assert.deepEqual(outcome, { code: 0, stdout: `${slower?.id}\n`, stderr: '' });
    assert.equal(slower?.status, 'pending');
  });
});

describe('rlp snapshot ls', () => {
  test('lists all pages, newest first', async (t) => {
    const project = await service.project();
    await project.create('short');
    await project.create('long', { persistent: true });
    for (const name of ['one', 'two', 'three'])
      assert.equal((await project.rlp(['snapshot', 'create', 'short', name])).code, 0);
    assert.equal((await project.rlp(['snapshot', 'create', 'long', 'warm'])).code, 0);
    t.after(() => (service.runner.options.snapshot = takesSnapshots));
    service.runner.options.snapshot = (assignment, runner) =>
      runner.observeSnapshot(assignment, { status: 'failed', error: 'no room\u001b[2J' });
    assert.equal((await project.rlp(['snapshot', 'create', 'short', 'broken'])).code, 1);
    await using relay = await startRelay({ url: project.url });
    relay.pageSize = 2;
    const ls = (...args: string[]) => rlpHere({ url: relay.url, key: project.key }, ['snapshot', ...args]);
    const { code, stdout } = await ls('ls');
    assert.equal(code, 0);
    assert.deepEqual(relay.calls, ['GET /snapshots', 'GET /snapshots', 'GET /snapshots']);
    const rows = stdout
      .trim()
      .split('\n')
      .map((line) => line.split(/\s{2,}/));
    assert.deepEqual(
      rows.map((row) => row[0]),
      ['NAME', 'broken', 'warm', 'three', 'two', 'one'],
    );
    assert.deepEqual(rows[1]?.slice(1, 4), ['disk', 'failed', '-']);
    assert.deepEqual(rows[2]?.slice(1, 5), ['full', 'ready', '4 KiB', '1024 MiB']);
    assert.equal(CAPTURED.disk_bytes, 4096);
    assert.match(stdout, /no room\?\[2J/);
    assert.equal((await ls('ls', '-q')).stdout.trim().split('\n').length, 5);
    assert.equal((JSON.parse((await ls('--json')).stdout) as unknown[]).length, 5);
  });
});

describe('rlp snapshot rm', () => {
  test('takes names and ids, continues after a failure, and reports', async () => {
    const project = await service.project();
    // Each of its own sandbox: a snapshot of a sandbox descends from the one before.
    for (const name of ['one', 'two', 'parent']) {
      await project.create(`of-${name}`);
      assert.equal((await project.rlp(['snapshot', 'create', `of-${name}`, name])).code, 0);
    }
    assert.equal((await project.rlp(['run', '--from-snapshot', 'parent', '--name', 'heir'])).code, 0);
    assert.equal((await project.rlp(['snapshot', 'create', 'heir', 'child'])).code, 0);
    const [, , two, one] = await listed(project);
    const outcome = await project.rlp(['snapshot', 'rm', 'one', 'parent', String(two?.id), 'nobody']);
    assert.equal(outcome.code, 1);
    assert.equal(outcome.stdout, `${one?.id}\n${two?.id}\n`);
    assert.equal(
      outcome.stderr,
      'rlp: snapshot "parent" cannot be deleted: snapshot "child" descends from it: delete that one first\n' +
        'rlp: no snapshot has the name or id "nobody": rlp snapshot ls lists them\n',
    );
    assert.deepEqual(
      (await listed(project)).map(({ name }) => name),
      ['child', 'parent'],
    );
  });

  test('-f: one that does not exist is no error', async () => {
    const project = await service.project();
    const outcome = await project.rlp(['snapshot', 'rm', '-f', 'nobody', '--json']);
    assert.equal(outcome.code, 0);
    assert.deepEqual(json(outcome), [{ snapshot: 'nobody', status: 'absent' }]);
    assert.equal((await project.rlp(['snapshot', 'rm'])).code, 2);
  });
});

describe('rlp run --from-snapshot', () => {
  test('takes the place of the image', async () => {
    const project = await service.project();
    await project.create('source');
    const snapshot = (await project.rlp(['snapshot', 'create', 'source', 'base'])).stdout.trim();
    const bare = await project.rlp(['run', '--from-snapshot', 'base', '--name', 'web']);
    const [made] = (await project.call('GET', '/vms')).body.vms;
    assert.deepEqual([bare.code, bare.stdout, made.name], [0, `${made.id}\n`, 'web']);
    const assigned = service.runner.assignments.get(project.uuidOf(made.id));
    assert.deepEqual(assigned?.spec.origin, { type: 'snapshot', snapshot_id: snapshot, kind: 'disk' });
  });

  test('with an image beside it, or a command without --, sends no request', async () => {
    const project = await service.project();
    await using relay = await startRelay({ url: project.url });
    for (const args of [
      ['busybox', '--from-snapshot', 'base'],
      ['--from-snapshot', 'base', 'busybox', '--', 'echo'],
      ['--from-snapshot', 'base', 'echo', 'hi'],
      ['--from-snapshot', '', '--', 'echo'],
      [],
    ])
      assert.equal(
        (await rlpHere({ url: relay.url, key: project.key }, ['run', ...args])).code,
        2,
        args.join(' '),
      );
    assert.deepEqual(relay.calls, []);
  });

  test('one that does not exist: the service says so', async () => {
    const project = await service.project();
    const { code, stdout, stderr } = await project.rlp(['run', '--from-snapshot', 'nobody']);
    assert.deepEqual([code, stdout], [4, '']);
    assert.match(stderr, /^rlp: .*"nobody".*\n$/);
  });
});
