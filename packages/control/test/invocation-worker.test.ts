/**
 * "each is run at least once, recorded exactly once": workers that share a queue, and die at any point. All of these tests share
 * a queue and a gateway.
 */
import assert from 'node:assert/strict';
import { once } from 'node:events';
import { describe, it } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import { propertyRuns } from '@releap/testing/repetitions';
import { until } from '@releap/testing/world';
import * as fc from 'fast-check';
import './invocation-worker/sharing.ts';
import './invocation-worker/functions.ts';
import { handled } from './support/scripted-gateway.ts';
import {
  assertEndedOnce,
  gateway,
  newCalled,
  rowsOf,
  spawnMany,
  startChild,
  startWorker,
} from './support/invocation-workers.ts';

describe('a worker that is killed', () => {
  for (const [crash, when] of [
    ['leased', 'after it has leased them'],
    ['answered', 'before it records what it was answered'],
    ['recording', 'while it records'],
  ] as const) {
    it(`${when} leaves invocations that another one ends, once each`, async () => {
      const fn = await newCalled();
      const ids = await spawnMany(fn, 20);
      const child = await startChild(crash);
      if (child.exitCode === null && child.signalCode === null) await once(child, 'exit');
      assert.equal(child.signalCode, 'SIGKILL');
      await using _worker = startWorker();
      await assertEndedOnce(fn, ids);
    });
  }

  it('while handlers run leaves invocations that another one ends, once each', async () => {
    const fn = await newCalled();
    const ids = await spawnMany(fn, 20);
    // None of the child's calls is answered. On a busy machine its own leases may end, and it calls some again.
    gateway.answer = () => undefined;
    const child = await startChild('none');
    await until(() => ids.every((id) => gateway.callsOf(id).length > 0));
    child.kill('SIGKILL');
    await once(child, 'exit');
    gateway.answer = (call) => handled(call);
    await using _worker = startWorker();
    await assertEndedOnce(fn, ids);
    for (const { attempt } of await rowsOf(ids)) assert.ok(attempt > 1);
  });

  it('at any time, beside another one and a gateway that breaks connections, loses none and records none twice', async () => {
    const step = fc.record({
      spawns: fc.integer({ min: 1, max: 60 }),
      pauseMs: fc.integer({ min: 0, max: 150 }),
    });
    await fc.assert(
      fc.asyncProperty(
        fc.array(step, { minLength: 2, maxLength: 4 }),
        fc.boolean(),
        async (steps, isBroken) => {
          const fn = await newCalled();
          let calls = 0;
          gateway.answer = async (call) => {
            if (isBroken && ++calls % 17 === 0) call.response.destroy();
            else {
              await sleep(calls % 20);
              handled(call);
            }
          };
          const ids: string[] = [];
          await using _worker = startWorker();
          for (const { spawns, pauseMs } of steps) {
            const child = await startChild('none');
            ids.push(...(await spawnMany(fn, spawns)));
            await sleep(pauseMs);
            child.kill('SIGKILL');
            await once(child, 'exit');
          }
          await assertEndedOnce(fn, ids);
        },
      ),
      { numRuns: propertyRuns(20, 2) },
    );
  });
});
