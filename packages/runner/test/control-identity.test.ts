import assert from 'node:assert/strict';
import { randomUUID } from 'node:crypto';
import { once } from 'node:events';
import { createServer } from 'node:http';
import type { AddressInfo } from 'node:net';
import { rm } from 'node:fs/promises';
import { test } from 'node:test';
import { RUNNER_JOIN_PATH } from '@releap/contract';
import { quiet } from '@releap/testing/logging';
import { temporaryFolder } from '@releap/testing/temporary-folder';
import { ControlIdentity } from '../src/identity/control-identity.ts';

test('a machine whose clock is wrong does not join, and is told by how much', async (t) => {
  const folder = await temporaryFolder('releap-identity-');
  let aheadMs = 0;
  const asked: string[] = [];
  // A control plane that knows no credential.
  const control = createServer((request, response) => {
    asked.push(request.url ?? '');
    response.writeHead(401, { date: new Date(Date.now() - aheadMs).toUTCString() }).end('{"error":"no"}');
  });
  control.listen(0, '127.0.0.1');
  await once(control, 'listening');
  t.after(async () => {
    control.close();
    control.closeAllConnections();
    await rm(folder, { recursive: true, force: true });
  });
  const identity = await ControlIdentity.open({
    folder,
    runnerId: randomUUID(),
    controlUrl: `http://127.0.0.1:${(control.address() as AddressInfo).port}`,
    joinToken: async () => 'join-token',
    log: quiet,
  });
  for (const [ms, expected] of [
    [3_600_000, /clock of this machine is 3[56]\d\d s ahead of that/],
    [-3_600_000, /clock of this machine is 3[56]\d\d s behind that/],
  ] as const) {
    aheadMs = ms;
    await assert.rejects(identity.fetchKey(), expected);
  }
  assert.ok(!asked.includes(RUNNER_JOIN_PATH), 'the join token was not sent');
  aheadMs = 0;
  await assert.rejects(identity.fetchKey(), /answered 401: no/);
  assert.ok(asked.includes(RUNNER_JOIN_PATH));
});
