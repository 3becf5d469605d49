import assert from 'node:assert/strict';
import { it, mock } from 'node:test';
import { pino } from 'pino';
import type { RunningVm } from '../src/machine/index.ts';
import { MemoryWatch, type MemoryWatchOptions } from '../src/reconcile/memory-watch.ts';

const MIB = 2 ** 20;
const EVERY_MS = 20_000;

/** Why a VM was ended whose VMM had written this much at each look, in MiB; undefined stands for a VMM that has ended. */
async function ended(
  written: readonly (number | undefined)[],
  maxMib: number | undefined,
  shares?: RunningVm['shares'],
): Promise<string[]> {
  mock.timers.enable({ apis: ['setInterval'] });
  const reasons: string[] = [];
  const looks = [...written];
  const watch = new MemoryWatch({
    running: {
      vm: { identity: { pid: 1 }, endGuest: async (reason: string) => void reasons.push(reason) },
      shares,
    } as unknown as MemoryWatchOptions['running'],
    maxMib,
    read: async (_pid, withShared) => {
      assert.equal(withShared, shares !== undefined);
      const mib = looks.shift();
      if (mib === undefined) throw new Error('no such process');
      return mib * MIB;
    },
    log: pino({ enabled: false }),
  });
  try {
    for (const _look of written) {
      mock.timers.tick(EVERY_MS);
      await new Promise(setImmediate);
    }
    return reasons;
  } finally {
    watch.close();
    mock.timers.reset();
  }
}

it('a guest that uses more memory than its sandbox asked for is ended, with the reason', async () => {
  const reasons = ['it used more memory than it has asked for'];
  assert.deepEqual(await ended([100, 201, 202, 203], 200), reasons);
  assert.deepEqual(await ended([201, 201], 200, [{}] as unknown as RunningVm['shares']), reasons);
});

it('one that does so for a moment, or no more than its limit, runs on', async () => {
  assert.deepEqual(await ended([201, 200, 201, undefined, 201, 200], 200), []);
});

it('one whose machine is as large as what it asked for is not watched', async () => {
  assert.deepEqual(await ended([1e6, 1e6], undefined), []);
});
