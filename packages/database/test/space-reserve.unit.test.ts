import assert from 'node:assert/strict';
import { mkdtemp, rm, stat } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { test } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import { pino } from 'pino';
import { SpaceReserve } from '../src/instance/space-reserve.ts';

const GIB = 2 ** 30;

test('the reserve is made where there is space, released when there is none, and made again', async () => {
  const dir = await mkdtemp(join(tmpdir(), 'releap-reserve-'));
  let free = 10 * GIB;
  const options = { dir, log: pino({ enabled: false }), read: async () => free, everyMs: 5 };
  const reserve = await SpaceReserve.open(options);
  const bytes = async (): Promise<number> => (await stat(reserve.path).catch(() => ({ size: 0 }))).size;
  const until = async (isReached: (size: number) => boolean): Promise<void> => {
    while (!isReached(await bytes())) await sleep(5);
  };
  try {
    await until((size) => size === 64 * 2 ** 20);
    free = 2 ** 20;
    await until((size) => size === 0);
    // Not from the space that it has just given back.
    free = 100 * 2 ** 20;
    await sleep(50);
    assert.equal(await bytes(), 0);
    free = 10 * GIB;
    await until((size) => size === 64 * 2 ** 20);
    await reserve[Symbol.asyncDispose]();
    free = 0;
    await sleep(50);
    assert.equal(await bytes(), 64 * 2 ** 20, 'it is left for when a server starts on a full disk');
    await using _next = await SpaceReserve.open(options);
    assert.equal(await bytes(), 0);
  } finally {
    await reserve[Symbol.asyncDispose]();
    await rm(dir, { recursive: true, force: true });
  }
});
