import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { json } from './rlp.ts';
import { startService } from './world.ts';

const service = await startService();

describe('rlp expose', () => {
  test('prints the URL; again, it adjusts the visibility of the same endpoint', async () => {
    const project = await service.project();
    const vm = await project.create('web');
    const first = await project.rlp(['expose', 'web', '8080']);
    assert.deepEqual([first.code, first.stderr], [0, '']);
    assert.match(first.stdout, /^https:\/\/8080-[a-z0-9-]+\.preview\.test\/\n$/);
    const opened = json(await project.rlp(['expose', 'web', '8080', '--public', '--json']));
    assert.deepEqual([opened['public'], String(opened['url']) + '\n'], [true, first.stdout]);
    assert.equal(json(await project.rlp(['expose', 'web', '8080', '--json']))['public'], false);
    const { endpoints } = (await project.call('GET', `/vms/${vm.id}/endpoints`)).body;
    assert.deepEqual(
      (endpoints as { id: string }[]).map(({ id }) => id),
      [opened['id']],
    );
    const list = await project.rlp(['expose', 'web']);
    assert.match(list.stdout, /^PORT +VISIBILITY +URL +AGE *\n8080 +private +https:/);
  });

  test('a port that is none is wrong usage; an unknown sandbox an error', async () => {
    const project = await service.project();
    await project.create('web');
    for (const port of ['0', '65536', 'http', '80/tcp']) {
      const wrong = await project.rlp(['expose', 'web', port]);
      assert.equal(wrong.code, 2, port);
      assert.match(wrong.stderr, /a port is a number from 1 to 65535/);
    }
    assert.equal((await project.rlp(['expose', 'nothing', '80'])).code, 4);
  });

  test('rlp unexpose removes the URL', async () => {
    const project = await service.project();
    const vm = await project.create('web');
    await project.rlp(['expose', 'web', '80']);
    assert.equal((await project.rlp(['unexpose', 'web', '80'])).code, 0);
    assert.deepEqual((await project.call('GET', `/vms/${vm.id}/endpoints`)).body, { endpoints: [] });
    const again = await project.rlp(['unexpose', 'web', '80']);
    assert.deepEqual([again.code, again.stderr], [1, 'rlp: port 80 of web is not exposed\n']);
  });
});

describe('rlp preview', () => {
  test('prints a signed URL, or its token; the port is private', async () => {
    const project = await service.project();
    const vm = await project.create('web');
    const shown = await project.rlp(['preview', 'web', '3000']);
    assert.match(shown.stdout, /^https:\/\/3000-[^/]+\.preview\.test\/\?rlp_token=rlpp_[0-9A-Za-z]{43}\n$/);
    const token = await project.rlp(['preview', 'web', '3000', '--token']);
    assert.ok(shown.stdout.endsWith(token.stdout));
    const { endpoints } = (await project.call('GET', `/vms/${vm.id}/endpoints`)).body;
    assert.deepEqual(
      (endpoints as { port: number; public: boolean }[]).map((one) => [one.port, one.public]),
      [[3000, false]],
    );
    const short = json(await project.rlp(['preview', 'web', '3000', '--expires', '5m', '--json']));
    assert.notEqual(String(short['token']) + '\n', token.stdout);
    assert.ok(Date.parse(String(short['expires_at'])) > Date.now());
    assert.equal((await project.rlp(['preview', 'web', '3000', '--expires', 'soon'])).code, 2);
  });
});
