import assert from 'node:assert/strict';
import { test } from 'node:test';
import { Counter, Registry } from 'prom-client';
import { serveMetricsToOthers } from '../src/roles/gateway-metrics.ts';

test('metrics of a gateway are for the token of metrics alone, as it is now', async () => {
  const registry = new Registry();
  new Counter({ name: 'releap_test_total', help: 'A test', registers: [registry] }).inc(3);
  let token = 'a'.repeat(43);
  await using server = await serveMetricsToOthers(
    { host: '127.0.0.1', port: 0 },
    () => Promise.resolve(token),
    registry,
  );
  const get = (path: string, authorization?: string) =>
    fetch(`http://127.0.0.1:${server.port}${path}`, {
      ...(authorization !== undefined && { headers: { authorization } }),
    });
  for (const wrong of [undefined, token, 'Bearer ', `Bearer ${token}x`, `bearer ${token}`])
    assert.equal((await get('/metrics', wrong)).status, 401, wrong);
  assert.equal((await get('/', `Bearer ${token}`)).status, 404);
  const response = await get('/metrics', `Bearer ${token}`);
  assert.match(await response.text(), /^releap_test_total 3$/m);
  const former = token;
  token = 'b'.repeat(43);
  assert.equal((await get('/metrics', `Bearer ${former}`)).status, 401);
  assert.equal((await get('/metrics', `Bearer ${token}`)).status, 200);
});
