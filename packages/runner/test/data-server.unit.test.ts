import assert from 'node:assert/strict';
import { mkdtemp, rm } from 'node:fs/promises';
import http, { type IncomingMessage } from 'node:http';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { test } from 'node:test';
import pino from 'pino';
import { Registry } from 'prom-client';
import { startDataServer } from '../src/data/data-server.ts';

test('the data server asks for a token for the sandbox in the path, and echoes and logs the id of a request', async () => {
  const folder = await mkdtemp(join(tmpdir(), 'releap-data-'));
  const lines: Record<string, unknown>[] = [];
  const socketPath = join(folder, 'data.sock');
  const server = await startDataServer({
    socketPath,
    verify: async (token) => token === 'right',
    register(app) {
      app.get('/vms/:id/broken', () => {
        throw new Error('broken');
      });
    },
    metrics: new Registry(),
    log: pino({ level: 'info' }, { write: (line: string) => void lines.push(JSON.parse(line)) }),
  });
  const get = (token: string, id: string, path = '/vms/1/broken'): Promise<IncomingMessage> =>
    new Promise((resolve, reject) => {
      const headers = { authorization: `Bearer ${token}`, 'x-request-id': id };
      http
        .get({ socketPath, path, headers, agent: false }, (answer) => {
          answer.resume();
          answer.on('end', () => resolve(answer));
        })
        .on('error', reject);
    });
  try {
    const failed = await get('right', 'abc-1');
    assert.deepEqual([failed.statusCode, failed.headers['x-request-id']], [500, 'abc-1']);
    assert.ok(lines.some(({ reqId, msg }) => reqId === 'abc-1' && msg === 'request failed'));
    const refused = await get('wrong', 'abc-2');
    assert.deepEqual([refused.statusCode, refused.headers['x-request-id']], [401, 'abc-2']);
    for (const path of ['/vms/1/no/such/thing', '/vms/1/']) {
      assert.equal((await get('right', 'abc-3', path)).statusCode, 404, path);
      assert.equal((await get('wrong', 'abc-3', path)).statusCode, 401, path);
    }
    for (const path of ['/', '/vms/1', '/vms//x', '/vms/%31/broken'])
      assert.equal((await get('right', 'abc-4', path)).statusCode, 401, path);
    assert.equal((await get('wrong', 'abc-5', '/metrics')).statusCode, 200);
    for (const path of ['/metrics/', '/metrics?x', '//metrics'])
      assert.equal((await get('right', 'abc-6', path)).statusCode, 401, path);
    assert.match(String((await get('right', '<b>')).headers['x-request-id']), /^[A-Za-z0-9._-]{1,100}$/);
  } finally {
    await server.close();
    await rm(folder, { recursive: true, force: true });
  }
});
