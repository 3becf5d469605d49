/** `rlp fn schedule` and `rlp fn invoke`. */
import assert from 'node:assert/strict';
import { once } from 'node:events';
import { createServer } from 'node:http';
import type { AddressInfo } from 'node:net';
import { text } from 'node:stream/consumers';
import { describe, test } from 'node:test';
import { newUuid } from '@releap/contract';
import { service } from '../support/function-world.ts';
import { json, rlpHere } from '../rlp.ts';

describe('rlp fn schedule', () => {
  test('adds, lists and deletes schedules', async () => {
    const project = await service.project();
    await project.rlp(['fn', 'deploy', 'hello', '--image', 'busybox', '--no-wait']);
    const schedule = (...args: string[]) => project.rlp(['fn', 'schedule', ...args]);
    const id = (await schedule('add', 'hello', '0 3 * * 1', '{"n":1}')).stdout.trim();
    const off = json(await schedule('add', 'hello', '*/5 * * * *', '--disabled', '--json'));
    assert.deepEqual([off['enabled'], off['next_run_at']], [false, null]);
    const list = (await schedule('ls', 'hello')).stdout;
    assert.match(list, new RegExp(`\n${id} +0 3 \\* \\* 1 +yes +\\d{4}-\\d\\d-\\d\\d 03:00 +- +{"n":1}\n$`));
    assert.match(list, /\*\/5 \* \* \* \* +no +- +- +null\n/);
    const never = await schedule('add', 'hello', '0 0 31 2 *');
    assert.equal(never.code, 1, never.stdout);
    assert.equal((await schedule('add', 'hello', '* * * * *', 'no json')).code, 2);
    assert.match(
      (await schedule('set', 'hello', id, '--cron', '30 3 1 1 *')).stdout,
      /fires next at .*-01-01T03:30:00/,
    );
    assert.equal((await schedule('set', 'hello', id, '--disable')).stdout, `${id} does not fire\n`);
    assert.equal((await schedule('set', 'hello', id)).code, 2);
    assert.deepEqual((await schedule('rm', 'hello', id, newUuid())).stdout, `${id}\n`);
    assert.deepEqual(
      (JSON.parse((await schedule('ls', 'hello', '--json')).stdout) as { id: string }[]).map((one) => one.id),
      [off['id']],
    );
    assert.equal((await schedule('ls', 'nothing')).code, 4);
  });
});

describe('rlp fn invoke', () => {
  test('prints the answer, with -i its headers, and fails with the status of the handler', async () => {
    // In place of a service: what the handler got is in its answer.
    const server = createServer((request, response) => {
      void text(request).then((body) => {
        if (request.url === '/fns/missing/invoke') {
          response
            .writeHead(404, { 'content-type': 'application/json' })
            .end('{"error":"function \\"missing\\" not found"}');
          return;
        }
        const headers = {
          'x-rlp-fn-status': request.url === '/fns/bad/invoke' ? '500' : '201',
          'x-rlp-cold': '1',
        };
        const { 'content-type': type, 'x-own': own, authorization } = request.headers;
        response.writeHead(200, { ...headers, 'x-rlp-invocation-id': 'i-1' });
        response.end([request.method, type, own, authorization, body].join('|'));
      });
    });
    await once(server.listen(0, '127.0.0.1'), 'listening');
    const target = { url: `http://127.0.0.1:${(server.address() as AddressInfo).port}`, key: 'rlp_key' };
    const invoke = (args: string[], input = '') => rlpHere(target, ['fn', 'invoke', ...args], { input });
    try {
      const done = await invoke(['good', '{"n":1}', '-H', 'X-Own: yes']);
      assert.deepEqual(done, {
        code: 0,
        stdout: 'POST|application/json|yes|Bearer rlp_key|{"n":1}',
        stderr: '',
      });
      assert.equal(
        (await invoke(['good', '-'], '\u00e9')).stdout,
        'POST|text/plain; charset=utf-8||Bearer rlp_key|\u00e9',
      );
      const failed = await invoke(['bad', '-i']);
      assert.deepEqual([failed.code, failed.stderr], [1, 'rlp: the handler answered 500\n']);
      assert.match(failed.stdout, /^x-rlp-fn-status: 500$/m);
      assert.match(failed.stdout, /\n\nPOST\|/);
      const document = json(await invoke(['bad', '--json']));
      assert.deepEqual([document['status'], document['cold'], document['invocation_id']], [500, true, 'i-1']);
      assert.deepEqual(await invoke(['missing']), {
        code: 4,
        stdout: '',
        stderr: 'rlp: function "missing" not found\n',
      });
    } finally {
      server.close();
    }
  });
});
