import assert from 'node:assert/strict';
import { it, mock } from 'node:test';
import { IntakeBudget } from '../src/budget/intake-budget.ts';

function budget(onExcess?: () => void) {
  mock.timers.enable({ apis: ['setTimeout'] });
  let now = 0;
  const calls: string[] = [];
  const made = new IntakeBudget({
    perSecond: 100,
    burst: 200,
    patienceMs: 10_000,
    pause: () => calls.push('pause'),
    resume: () => calls.push('resume'),
    ...(onExcess && { onExcess }),
    now: () => now,
  });
  const pass = (ms: number): void => {
    now += ms;
    mock.timers.tick(ms);
  };
  return { made, calls, pass, [Symbol.dispose]: () => mock.timers.reset() };
}

it('a burst within the budget is read at once', () => {
  using it = budget();
  for (let n = 0; n < 200; n++) it.made.take(1);
  assert.deepEqual(it.calls, []);
});

it('what is above the budget waits until half of it is there again', () => {
  using it = budget();
  it.made.take(250);
  it.made.take(1);
  assert.deepEqual(it.calls, ['pause']);
  it.pass(1_400);
  assert.deepEqual(it.calls, ['pause']);
  it.pass(200);
  assert.deepEqual(it.calls, ['pause', 'resume']);
});

it('a peer that never releases its place is disconnected, and one that pauses in between is not', () => {
  let cuts = 0;
  using steady = budget(() => {
    cuts += 1;
  });
  for (let second = 0; second < 9; second++) {
    steady.made.take(1_000);
    steady.pass(15_000);
  }
  assert.equal(cuts, 0);
  for (let n = 0; n < 100; n++) {
    steady.made.take(100);
    steady.pass(500);
  }
  assert.equal(cuts, 1);
});
