import assert from 'node:assert/strict';
import { afterEach, beforeEach, it, mock } from 'node:test';
import { BootWatch } from '@releap/contract/boot-watch';

const PATIENCE = { first: 30_000, silence: 90_000, total: 300_000 };

beforeEach(() => mock.timers.enable({ apis: ['setTimeout'] }));
afterEach(() => mock.timers.reset());

const problem = ({ signal }: BootWatch): string => (signal.reason as Error).message;

it('a guest that prints nothing at all hangs', () => {
  using watch = new BootWatch(PATIENCE);
  mock.timers.tick(29_999);
  assert.equal(watch.signal.aborted, false);
  mock.timers.tick(1);
  assert.equal(problem(watch), 'it hangs (nothing from it within 30 s)');
});

it('a guest that continues to print is slow, and one that stops hangs', () => {
  using watch = new BootWatch(PATIENCE);
  for (let lines = 0; lines < 3; lines += 1) {
    watch.add(`line ${lines}\n`);
    mock.timers.tick(60_000);
  }
  assert.equal(watch.signal.aborted, false);
  mock.timers.tick(30_000);
  assert.equal(problem(watch), 'it hangs (nothing from it within 90 s)');
  assert.equal(watch.console, 'line 0\nline 1\nline 2\n');
});

it('a guest that prints for ever does not boot', () => {
  using watch = new BootWatch(PATIENCE);
  for (let at = 0; at < 300_000; at += 20_000) {
    watch.add('again\n');
    mock.timers.tick(20_000);
  }
  assert.equal(problem(watch), 'it takes longer than 300 s');
});

it('a guest that has booted is not waited for', () => {
  const watch = new BootWatch(PATIENCE);
  watch.add('ready\n');
  watch[Symbol.dispose]();
  mock.timers.tick(400_000);
  assert.equal(watch.signal.aborted, false);
});
