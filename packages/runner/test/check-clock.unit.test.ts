import assert from 'node:assert/strict';
import { it } from 'node:test';
import { checkClock } from '../src/reconcile/check-clock.ts';

/** What is done about a guest's clock that is so far behind, in milliseconds. */
async function done(behind: number): Promise<string[]> {
  const actions: string[] = [];
  const guest = {
    clockBehind: async () => behind,
    slewClock: async (ms: number) => {
      actions.push(`slewed ${ms}`);
    },
  };
  await checkClock(guest, 1_000, () => actions.push('set'));
  return actions;
}

it("a guest's clock that is hours off is set, a small difference is slewed, and a smaller one is left", async () => {
  for (const off of [3_600_000, -3_600_000, 1_001, -1_001]) assert.deepEqual(await done(off), ['set']);
  for (const off of [1_000, -1_000, 101, -101]) assert.deepEqual(await done(off), [`slewed ${off}`]);
  for (const off of [100, -100, 0]) assert.deepEqual(await done(off), []);
});
