import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { json } from './rlp.ts';
import { but, startService } from './world.ts';

const wanted = { stop: 'stopped', start: 'running', pause: 'paused', resume: 'running' } as const;
/** Brings a sandbox into the status from which the verb starts. */
const FIRST = { stop: [], start: ['stop'], pause: [], resume: ['pause'] } as const;
const VERBS = ['stop', 'start', 'pause', 'resume'] as const;

const service = await startService();

for (const verb of VERBS) {
  describe(`rlp ${verb}`, () => {
    test('requests it, waits until it is done, and prints the id', async () => {
      const project = await service.project();
      const { id } = await project.create('web', { persistent: true });
      for (const earlier of FIRST[verb]) assert.equal((await project.rlp([earlier, 'web'])).code, 0);
      assert.notEqual(await project.status(id), wanted[verb]);
      const { code, stdout, stderr } = await project.rlp([verb, 'web']);
      assert.deepEqual([code, stdout, stderr], [0, `${id}\n`, '']);
      assert.equal(await project.status(id), wanted[verb]);
    });
  });
}

describe('a change that does not succeed: exit code 1, and the reason', () => {
  const error = 'no space left';

  test('pause, start and resume go back to where it was', async () => {
    const project = await service.project();
    const { id } = await project.create('stubborn', { persistent: true });
    service.scripts.set(
      'stubborn',
      but('paused', (assignment, runner) => runner.observe(assignment, { status: 'running', error })),
    );
    const paused = await project.rlp(['pause', 'stubborn']);
    assert.deepEqual([paused.code, paused.stdout], [1, '']);
    assert.equal(paused.stderr, `rlp: sandbox ${id} is running, and not paused: ${error}\n`);

    for (const [verb, undo, there] of [
      ['start', 'stop', 'stopped'],
      ['resume', 'pause', 'paused'],
    ] as const) {
      const one = await project.create(`stays-${there}`, { persistent: true });
      assert.equal((await project.rlp([undo, one.id])).code, 0);
      service.scripts.set(
        `stays-${there}`,
        but('running', (assignment, runner) => runner.observe(assignment, { status: there, error })),
      );
      const { code, stdout, stderr } = await project.rlp([verb, one.id]);
      assert.deepEqual([code, stdout], [1, '']);
      assert.equal(stderr, `rlp: sandbox ${one.id} is ${there}, and not running: ${error}\n`);
    }
  });

  test('a sandbox that does not stop in time is lost', async () => {
    const deadlines = { pending: 60_000, assigned: 60_000, building: 60_000, booting: 60_000 };
    await using hasty = await startService({
      limits: { deadlines: { ...deadlines, stopping: 300, pausing: 60_000, deleting: 60_000 } },
    });
    const project = await hasty.project();
    const { id } = await project.create('stuck', { persistent: true });
    hasty.scripts.set(
      'stuck',
      but('stopped', () => undefined),
    );
    const { code, stdout, stderr } = await project.rlp(['stop', 'stuck']);
    assert.deepEqual([code, stdout], [1, '']);
    assert.equal(
      stderr,
      `rlp: sandbox ${id} is lost, and not stopped: it was stopping for longer than 0.3 s\n`,
    );
  });

  test('a sandbox fails on the way', async () => {
    const project = await service.project();
    const { id } = await project.create('fragile', { persistent: true });
    service.scripts.set(
      'fragile',
      but('paused', (assignment, runner) =>
        runner.observe(assignment, { status: 'failed', error: 'the VMM died' }),
      ),
    );
    const failed = await project.rlp(['pause', 'fragile']);
    assert.deepEqual([failed.code, failed.stdout], [1, '']);
    assert.equal(failed.stderr, `rlp: sandbox ${id} has failed: the VMM died\n`);
  });
});

describe('rlp stop, start, pause, resume', () => {
  test('take several, continue after a refusal, and report all of it as JSON', async () => {
    const project = await service.project();
    await project.create('one');
    const two = await project.create('two', { persistent: true });
    const outcome = await project.rlp(['stop', 'one', 'two', 'three', '--json']);
    assert.equal(outcome.code, 1);
    const [one, ...others] = json(outcome) as unknown as { vm: string; error?: string }[];
    assert.equal(one?.vm, 'one');
    assert.match(String(one?.error), /cannot be stopped: it is not persistent/);
    assert.deepEqual(others, [
      { vm: 'two', vm_id: two.id, status: 'stopped' },
      { vm: 'three', error: 'no sandbox has the name or id "three": rlp ps lists them' },
    ]);
    const plain = await project.rlp(['stop', 'two', 'three']);
    assert.deepEqual([plain.code, plain.stdout], [4, `${two.id}\n`]);
    assert.match(plain.stderr, /^rlp: no sandbox has the name or id "three"/);
  });

  test('--no-wait returns at once, with the transient status', async () => {
    const project = await service.project();
    const { id } = await project.create('slow-pause', { persistent: true });
    service.scripts.set(
      'slow-pause',
      but('paused', () => undefined),
    );
    const outcome = await project.rlp(['pause', '--no-wait', 'slow-pause', '--json']);
    assert.equal(outcome.code, 0);
    assert.deepEqual(json(outcome), [{ vm: 'slow-pause', vm_id: id, status: 'pausing' }]);
  });

  test('gives up waiting when its time is over, and says that the operation continues', async () => {
    const project = await service.project();
    await project.create('slow-stop', { persistent: true });
    service.scripts.set(
      'slow-stop',
      but('stopped', () => undefined),
    );
    const { code, stderr } = await project.rlp(['stop', 'slow-stop', '--wait-timeout', '1s']);
    assert.equal(code, 1);
    assert.match(stderr, /is still stopping after 1 s; it continues in the background/);
  });

  test('need a sandbox, and a valid duration', async () => {
    const project = await service.project();
    const { id } = await project.create('web', { persistent: true });
    assert.equal((await project.rlp(['stop'])).code, 2);
    assert.equal((await project.rlp(['stop', 'web', '--wait-timeout', 'soon'])).code, 2);
    assert.equal(await project.status(id), 'running');
  });

  test('run --persistent asks for a sandbox that can be stopped and paused', async () => {
    const project = await service.project();
    const { code, stdout } = await project.rlp(['run', '--persistent', '--no-wait', 'busybox']);
    assert.equal(code, 0);
    assert.equal((await project.call('GET', `/vms/${stdout.trim()}`)).body.persistent, true);
  });
});
