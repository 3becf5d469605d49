import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { json, rlp } from './rlp.ts';
import { send, startService } from './service.ts';

const passing = { stop: 'stopping', start: 'booting', pause: 'pausing', resume: 'booting' } as const;
const wanted = { stop: 'stopped', start: 'running', pause: 'paused', resume: 'running' } as const;
const from = { stop: 'running', start: 'stopped', pause: 'running', resume: 'paused' } as const;
const VERBS = ['stop', 'start', 'pause', 'resume'] as const;

for (const verb of VERBS) {
  describe(`rlp ${verb}`, () => {
    test('asks, waits until it is done, and prints the id', async () => {
      await using service = await startService();
      const vm = service.add('web', { status: from[verb], persistent: true });
      service.outcomes.set(`${verb} web`, [passing[verb], wanted[verb]]);
      const { code, stdout, stderr } = await rlp(service, [verb, 'web']);
      assert.deepEqual([code, stdout, stderr], [0, `${vm.id}\n`, '']);
      assert.equal(vm.status, wanted[verb]);
      assert.ok(service.calls.includes(`POST /vms/${vm.id}/${verb}`));
    });

    test('goes back to where it was: exit code 1, and the reason', async () => {
      await using service = await startService();
      const vm = service.add('web', { status: from[verb], error: 'no space left' });
      service.outcomes.set(`${verb} web`, [passing[verb], from[verb]]);
      const { code, stdout, stderr } = await rlp(service, [verb, 'web']);
      assert.deepEqual([code, stdout], [1, '']);
      assert.equal(
        stderr,
        `rlp: sandbox ${vm.id} is ${from[verb]}, and not ${wanted[verb]}: no space left\n`,
      );
    });
  });
}

describe('rlp stop, start, pause, resume', () => {
  test('take several, go on after a refusal, and tell all of it as JSON', async () => {
    await using service = await startService();
    const one = service.add('one');
    const two = service.add('two');
    service.special.set(`POST /vms/${one.id}/stop`, (_request, response) =>
      send(response, 409, { error: 'sandbox one cannot be stopped: it is paused' }),
    );
    service.outcomes.set('stop two', ['stopping', 'stopped']);
    const outcome = await rlp(service, ['stop', 'one', 'two', 'three', '--json']);
    assert.equal(outcome.code, 1);
    assert.deepEqual(json(outcome), [
      { vm: 'one', error: 'sandbox one cannot be stopped: it is paused' },
      { vm: 'two', vm_id: two.id, status: 'stopped' },
      { vm: 'three', error: 'no sandbox has the name or id "three": rlp ps lists them' },
    ]);
    const plain = await rlp(service, ['stop', 'two', 'three']);
    assert.deepEqual([plain.code, plain.stdout], [4, `${two.id}\n`]);
    assert.match(plain.stderr, /^rlp: no sandbox has the name or id "three"/);
  });

  test('--no-wait returns at once, with the status on its way', async () => {
    await using service = await startService();
    const vm = service.add('web');
    const outcome = await rlp(service, ['pause', '--no-wait', 'web', '--json']);
    assert.equal(outcome.code, 0);
    assert.deepEqual(json(outcome), [{ vm: 'web', vm_id: vm.id, status: 'pausing' }]);
  });

  test('a sandbox that fails or is lost on the way: exit code 1, and the reason', async () => {
    await using service = await startService();
    service.add('web', { error: 'the VMM died' });
    service.outcomes.set('pause web', ['pausing', 'failed']);
    const failed = await rlp(service, ['pause', 'web']);
    assert.deepEqual([failed.code, failed.stdout], [1, '']);
    assert.match(failed.stderr, /^rlp: sandbox \S+ has failed: the VMM died\n$/);
    service.outcomes.set('start web', ['booting', 'lost']);
    assert.match((await rlp(service, ['start', 'web'])).stderr, /is lost, and not running/);
  });

  test('gives up waiting when its time is over, and says that it goes on', async () => {
    await using service = await startService();
    service.add('web');
    const { code, stderr } = await rlp(service, ['stop', 'web', '--wait-timeout', '1s']);
    assert.equal(code, 1);
    assert.match(stderr, /is still stopping after 1 s; it goes on without us/);
  });

  test('want a sandbox, and a time that is one', async () => {
    await using service = await startService();
    assert.equal((await rlp(service, ['stop'])).code, 2);
    assert.equal((await rlp(service, ['stop', 'web', '--wait-timeout', 'soon'])).code, 2);
    assert.deepEqual(service.calls, []);
  });

  test('run --persistent asks for a sandbox that can be stopped and paused', async () => {
    await using service = await startService();
    assert.equal((await rlp(service, ['run', '--persistent', '--no-wait', 'busybox'])).code, 0);
    assert.deepEqual(service.bodies, [{ image: 'busybox', persistent: true }]);
  });
});
