import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { startRelay } from './relay.ts';
import { json, rlpHere } from './rlp.ts';
import { but, startService } from './world.ts';

const service = await startService();

describe('rlp fork', () => {
  test('of a running sandbox waits until the copy runs, and prints its id alone', async () => {
    const project = await service.project();
    const source = await project.create('web', { persistent: true });
    const outcome = await project.rlp(['fork', 'web']);
    const [child] = (await project.call('GET', '/vms')).body.vms;
    assert.deepEqual(outcome, { code: 0, stdout: `${child.id}\n`, stderr: '' });
    assert.deepEqual([child.name, child.status], ['web-fork', 'running']);
    assert.equal((await project.call('GET', `/vms/${child.id}`)).body.forked_from, source.id);
  });

  test('of a paused sandbox waits until the copy is paused', async () => {
    const project = await service.project();
    const source = await project.create('web', { persistent: true });
    assert.equal((await project.rlp(['pause', 'web'])).code, 0);
    const outcome = await project.rlp(['fork', 'web', '--name', 'twin', '--json']);
    assert.equal(outcome.code, 0, outcome.stderr);
    const { name, status, forked_from } = json(outcome);
    assert.deepEqual([name, status, forked_from], ['twin', 'paused', source.id]);
  });

  test('a source that was paused in between: the copy is paused, and that is no failure', async () => {
    const project = await service.project();
    await project.create('web', { persistent: true });
    service.scripts.set(
      'paused-meanwhile',
      but('running', (assignment, runner) => runner.observe(assignment, { status: 'paused' })),
    );
    assert.equal((await project.rlp(['fork', 'web', '--name', 'paused-meanwhile'])).code, 0);
  });

  test('--no-wait prints the id at once', async () => {
    const project = await service.project();
    await project.create('web', { persistent: true });
    service.scripts.set(
      'slow',
      but('running', () => undefined),
    );
    const outcome = await project.rlp(['fork', '--no-wait', 'web', '--name', 'slow']);
    const [child] = (await project.call('GET', '/vms')).body.vms;
    assert.deepEqual(outcome, { code: 0, stdout: `${child.id}\n`, stderr: '' });
    assert.deepEqual([child.name, child.status], ['slow', 'assigned']);
  });

  test('a copy that fails: exit code 1, and the reason', async () => {
    const project = await service.project();
    await project.create('web', { persistent: true });
    service.scripts.set(
      'broken',
      but('running', (assignment, runner) =>
        runner.observe(assignment, { status: 'failed', error: 'no space left' }),
      ),
    );
    const { code, stdout, stderr } = await project.rlp(['fork', 'web', '--name', 'broken']);
    assert.deepEqual([code, stdout], [1, '']);
    assert.match(stderr, /^rlp: sandbox \S+ has failed: no space left\n$/);
  });

  test('is repeated after a temporary refusal, as one request', async () => {
    const project = await service.project();
    const { id } = await project.create('web', { persistent: true });
    await using relay = await startRelay({ url: project.url });
    const path = `POST /vms/${id}/fork`;
    relay.answers.set(path, (_request, response) => {
      relay.answers.delete(path);
      response.writeHead(429, { 'retry-after': '1', 'content-type': 'application/json' });
      response.end('{"error":"the create queue is full","retry_after_secs":1}');
    });
    assert.equal((await rlpHere({ url: relay.url, key: project.key }, ['fork', 'web'])).code, 0);
    const keys = relay.requests
      .filter(({ method, url }) => `${method} ${url}` === path)
      .map(({ headers }) => headers['idempotency-key']);
    assert.match(String(keys[0]), /^[0-9a-f-]{36}$/);
    assert.deepEqual(keys, [keys[0], keys[0]], 'it makes one fork whatever came of the first try');
  });

  test('is refused when there are no credits', async () => {
    await using poor = await startService({ billing: { mode: 'enforce' } });
    const project = await poor.project(poor.world.orgId);
    const give = (amount: string) =>
      poor.world.operator('POST', `/operator/orgs/${poor.world.orgId}/grants`, {
        amount,
        kind: 'adjustment',
      });
    assert.equal((await give('1000')).status, 200);
    await project.create('web', { persistent: true });
    assert.equal((await give('-1001')).status, 200);
    const { code, stdout, stderr } = await project.rlp(['fork', 'web']);
    assert.deepEqual([code, stdout], [1, '']);
    assert.match(stderr, /^rlp: .*credits.*\n$/);
  });

  test('unknown, not persistent, wrong usage', async () => {
    const project = await service.project();
    const { id } = await project.create('web');
    assert.equal((await project.rlp(['fork', 'nobody'])).code, 4);
    const refused = await project.rlp(['fork', 'web']);
    assert.deepEqual([refused.code, refused.stdout], [1, '']);
    assert.match(refused.stderr, new RegExp(`^rlp: sandbox "${id}" cannot be forked: it is not persistent`));
    assert.equal((await project.rlp(['fork'])).code, 2);
    assert.equal((await project.rlp(['fork', 'web', '--wait-timeout', 'soon'])).code, 2);
  });
});
