import assert from 'node:assert/strict';
import { it, mock } from 'node:test';
import { setImmediate as turn } from 'node:timers/promises';
import { pino } from 'pino';
import { freeForDisksMib } from '../src/disk/check-space.ts';
import { hasFewInodes, lookAfterMs, lowBytes, SpaceWatch } from '../src/disk/space-watch.ts';

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
      return { freeBytes, totalBytes: 1_000_000 * MIB, freeInodes: 1_000_000, totalInodes: 10_000_000 };
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
    freeBytes = 12_000 * MIB;
    await pass(1_000);
    looks = 0;
    await pass(3_000);
    assert.ok(looks > farLooks * 2);
    assert.deepEqual({ told, isShort: watch.isShort }, { told: 0, isShort: false });
    freeBytes = 100 * MIB;
    await pass(500);
    assert.equal(watch.isShort, true);
    assert.ok(told > 1, 'what has begun since must be paused, too');
    freeBytes = 10_000 * MIB;
    await pass(500);
    assert.equal(watch.isShort, true);
    freeBytes = 13_000 * MIB;
    await pass(500);
    assert.equal(watch.isShort, false);
  } finally {
    watch.close();
    mock.timers.reset();
  }
});

it('guests are paused at 2 %, at least 1 GiB and at most 8 GiB, of a small file system at 5 %', () => {
  const gib = 2 ** 30;
  assert.deepEqual(
    [1, 10, 30, 100, 1_000].map((size) => lowBytes(size * gib) / gib),
    [0.05, 0.5, 1, 2, 8],
  );
});

it('free space is read again before writers of 8 GiB per second could have used what is above the limit', () => {
  const gib = 2 ** 30;
  for (const size of [20, 50, 100, 500, 10_000])
    for (let free = 1; free < size; free += 0.5) {
      const low = lowBytes(size * gib);
      const after = lookAfterMs(free * gib, low);
      assert.ok(after >= 100 && after <= 1_000, `${after}`);
      if (after > 100) assert.ok(8 * gib * (after / 1000) <= free * gib - low + 1, `${size} ${free}`);
    }
});

it('guests are paused when 1 % of the inodes are free, and 20,000 of a large file system', () => {
  const low = (freeInodes: number, totalInodes: number, factor?: number): boolean =>
    hasFewInodes({ freeBytes: 0, totalBytes: 0, freeInodes, totalInodes }, factor);
  assert.deepEqual([low(655, 65_536), low(656, 65_536)], [true, false]);
  assert.deepEqual([low(19_999, 16_000_000), low(20_000, 16_000_000)], [true, false]);
  assert.equal(low(20_000, 16_000_000, 1.5), true);
  assert.equal(low(0, 0), false, 'btrfs makes them as needed');
});

it('new disks may take what is free above the reserve, and nothing without inodes', () => {
  const gib = 2 ** 30;
  const space = { freeBytes: 20 * gib, totalBytes: 100 * gib, freeInodes: 1_000_000, totalInodes: 6_000_000 };
  assert.equal(freeForDisksMib(space), 20 * 1024 - 1.25 * 2 * 1024);
  assert.equal(freeForDisksMib({ ...space, freeBytes: gib }), 0);
  assert.equal(freeForDisksMib({ ...space, freeInodes: 20_000 }), 0);
});
