import assert from 'node:assert/strict';
import { afterEach, it, mock } from 'node:test';
import { ClockStepDetector } from '../src/reconcile/clock-step-detector.ts';

const LOOK_MS = 5_000;
const HOUR_MS = 3_600_000;

afterEach(() => {
  mock.timers.reset();
  mock.restoreAll();
});

it("a host's clock that is set forward or back, and one that is suspended, is noticed once", () => {
  mock.timers.enable({ apis: ['setInterval'] });
  const { now } = Date;
  let steps = 0;
  const watch = new ClockStepDetector(() => (steps += 1));
  mock.timers.tick(LOOK_MS);
  assert.equal(steps, 0);
  for (const [at, offset] of [HOUR_MS, -HOUR_MS].entries()) {
    mock.method(Date, 'now', () => now() + offset);
    mock.timers.tick(LOOK_MS);
    mock.timers.tick(LOOK_MS);
    assert.equal(steps, at + 1);
  }
  watch.close();
  mock.restoreAll();
  mock.timers.tick(LOOK_MS);
  assert.equal(steps, 2);
});
