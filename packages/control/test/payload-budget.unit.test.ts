import assert from 'node:assert/strict';
import { it } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import { PayloadBudget } from '../src/functions/invocations/payload-budget.ts';

it('large payloads of one function take a share of the memory, and those of all a bounded part', async () => {
  const MIB = 1024 * 1024;
  const budget = new PayloadBudget();
  const end = new AbortController();
  const held = new Map<string, (() => void)[]>();
  const take = (key: string): Promise<void> =>
    budget.take(key, 6 * MIB, end.signal).then((release) => {
      held.set(key, [...(held.get(key) ?? []), release]);
    });
  const names = Array.from({ length: 12 }, (_, n) => `f${n}`);
  const taken = Promise.allSettled(names.flatMap((key) => [take(key), take(key), take(key)]));
  const sizes = (): number[] => names.map((key) => held.get(key)?.length ?? 0);
  await sleep(0);
  assert.deepEqual(
    sizes(),
    [2, 2, 2, 2, 2, 0, 0, 0, 0, 0, 0, 0],
    '12 of 16 MiB each, and 60 of 64 MiB in total',
  );
  const [release] = held.get('f0') ?? [];
  release?.();
  release?.();
  await sleep(0);
  assert.deepEqual(sizes(), [3, 2, 2, 2, 2, 0, 0, 0, 0, 0, 0, 0], 'the one that waits longest is next, once');
  for (const one of held.get('f1') ?? []) one();
  await sleep(0);
  assert.deepEqual(sizes(), [3, 3, 2, 2, 2, 1, 0, 0, 0, 0, 0, 0]);
  end.abort(new Error('stopped'));
  const outcomes = await taken;
  assert.equal(outcomes.filter(({ status }) => status === 'rejected').length, 36 - 13);
});
