import assert from 'node:assert/strict';
import { it, mock } from 'node:test';
import { setImmediate as turn } from 'node:timers/promises';
import { pino } from 'pino';
import { SpaceWatch } from '../src/disk/space-watch.ts';

const MIB = 2 ** 20;

it('a file system that is nearly full is reported until there is enough space again, and checked more often', async () => {
  mock.timers.enable({ apis: ['setTimeout'] });
  let freeBytes = 100_000 * MIB;
  let looks = 0;
  let told = 0;
  const watch = new SpaceWatch({
    folder: '/nowhere',
    onShort: () => (told += 1),
    log: pino({ enabled: false }),
    read: async () => {
      looks += 1;
      return { freeBytes, totalBytes: 1_000_000 * MIB };
    },
  });
  const pass = async (ms: number): Promise<void> => {
    for (let passed = 0; passed < ms; passed += 100) {
      mock.timers.tick(100);
      await turn();
    }
  };
  try {
    await pass(3_000);
    const farLooks = looks;
    freeBytes = 1_000 * MIB;
    await pass(1_000);
    looks = 0;
    await pass(3_000);
    assert.ok(looks > farLooks * 2);
    assert.deepEqual({ told, isShort: watch.isShort }, { told: 0, isShort: false });
    freeBytes = 100 * MIB;
    await pass(500);
    assert.equal(watch.isShort, true);
    assert.ok(told > 1, 'what has begun since must be paused, too');
    freeBytes = 150 * MIB;
    await pass(500);
    assert.equal(watch.isShort, true);
    freeBytes = 200 * MIB;
    await pass(500);
    assert.equal(watch.isShort, false);
  } finally {
    watch.close();
    mock.timers.reset();
  }
});
