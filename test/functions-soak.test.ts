/** "0 of 10,000 spawns lost or recorded twice while every process is killed in turn". Only in the nightly run. */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { leftovers } from '@releap/testing/leftovers';
import { isNightly } from '@releap/testing/repetitions';
import { Service } from '@releap/testing/service';
import { soakFunctions } from './soak/functions-soak.ts';

const SPAWNS = Number(process.env['RELEAP_TEST_SPAWNS'] ?? 10_000);

test(`${SPAWNS} invocations end once each while every process is killed in turn`, {
  skip: !isNightly(),
}, async (t) => {
  await using service = await Service.start();
  const killed = await soakFunctions(service, {
    name: 'soak',
    spawns: SPAWNS,
    kills: ['control', 'gateway', 'runner', 'postgres'],
    rounds: 5,
    // The supervisor waits longer before each restart of a part that ends often.
    pauseMs: 20_000,
    onProgress: (line) => t.diagnostic(line),
  });
  t.diagnostic(`${killed} processes were killed`);
  assert.ok(killed > 0);
  assert.equal(await service.stop(), 0, service.lastWords);
  assert.deepEqual(await leftovers(service.home), []);
});
