import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { json, rlpHere } from './rlp.ts';
import { send, startService } from './service.ts';

describe('rlp fork', () => {
  test('of a running sandbox waits until the copy runs, and prints its id alone', async () => {
    await using service = await startService();
    const source = service.add('web', { persistent: true });
    const outcome = await rlpHere(service, ['fork', 'web']);
    const child = service.sandboxes[0];
    assert.deepEqual(outcome, { code: 0, stdout: `${child?.id}\n`, stderr: '' });
    assert.deepEqual([child?.name, child?.status, child?.forked_from], ['web-fork', 'running', source.id]);
    assert.deepEqual(service.bodies, [{}]);
  });

  test('of a paused sandbox waits until the copy is paused', async () => {
    await using service = await startService();
    const source = service.add('web', { persistent: true, status: 'paused' });
    const outcome = await rlpHere(service, ['fork', 'web', '--name', 'twin', '--json']);
    assert.equal(outcome.code, 0, outcome.stderr);
    const { name, status, forked_from } = json(outcome);
    assert.deepEqual([name, status, forked_from], ['twin', 'paused', source.id]);
    assert.deepEqual(service.bodies, [{ name: 'twin' }]);
  });

  test('a source that was paused in between: the copy is paused, and that is no failure', async () => {
    await using service = await startService();
    service.add('web', { persistent: true });
    service.outcomes.set('fork web', ['booting', 'paused']);
    assert.equal((await rlpHere(service, ['fork', 'web'])).code, 0);
  });

  test('--no-wait prints the id at once', async () => {
    await using service = await startService();
    service.add('web', { persistent: true });
    service.outcomes.set('fork web', ['booting']);
    const outcome = await rlpHere(service, ['fork', '--no-wait', 'web']);
    assert.deepEqual(outcome, { code: 0, stdout: `${service.sandboxes[0]?.id}\n`, stderr: '' });
    assert.equal(service.sandboxes[0]?.status, 'assigned');
  });

  test('a copy that fails: exit code 1, and the reason', async () => {
    await using service = await startService();
    service.add('web', { persistent: true });
    service.outcomes.set('fork web', ['booting', 'failed']);
    const { code, stdout, stderr } = await rlpHere(service, ['fork', 'web']);
    assert.deepEqual([code, stdout], [1, '']);
    assert.match(stderr, /^rlp: sandbox \S+ has failed\n$/);
  });

  test('is tried again when there is no room, and refused when there are no credits', async () => {
    await using service = await startService();
    const source = service.add('web', { persistent: true });
    const keys: unknown[] = [];
    service.special.set(`POST /vms/${source.id}/fork`, (request, response) => {
      if (keys.push(request.headers['idempotency-key']) > 1) return false;
      response.setHeader('retry-after', '1');
      return send(response, 429, { error: 'the create queue is full', retry_after_secs: 1 });
    });
    assert.equal((await rlpHere(service, ['fork', 'web'])).code, 0);
    assert.match(String(keys[0]), /^[0-9a-f-]{36}$/);
    assert.deepEqual(
      keys,
      [keys[0], keys[0]],
      'one request, so that it makes one fork whatever came of the first try',
    );
    service.special.set(`POST /vms/${source.id}/fork`, (_request, response) =>
      send(response, 402, { error: 'the organization is out of credits' }),
    );
    assert.deepEqual(await rlpHere(service, ['fork', 'web']), {
      code: 1,
      stdout: '',
      stderr: 'rlp: the organization is out of credits\n',
    });
  });

  test('unknown, not persistent, wrong usage', async () => {
    await using service = await startService();
    service.add('web');
    assert.equal((await rlpHere(service, ['fork', 'nobody'])).code, 4);
    const refused = await rlpHere(service, ['fork', 'web']);
    assert.deepEqual(
      [refused.code, refused.stderr],
      [1, 'rlp: sandbox "web" is not persistent: it cannot be forked\n'],
    );
    assert.equal((await rlpHere(service, ['fork'])).code, 2);
    assert.equal((await rlpHere(service, ['fork', 'web', '--wait-timeout', 'soon'])).code, 2);
  });
});
