import assert from 'node:assert/strict';
import { test } from 'node:test';
import { setImmediate as turn } from 'node:timers/promises';
import { Admission } from '../src/machine/admission.ts';

/** A start that ends when it is told to. */
class Start {
  readonly #end = Promise.withResolvers<void>();
  begun = false;
  readonly done: Promise<unknown>;

  constructor(admission: Admission, signal?: AbortSignal, guest: 'runs' | 'loads' = 'loads') {
    this.done = admission.run(async (_waitedMs, guestRuns) => {
      this.begun = true;
      if (guest === 'runs') guestRuns();
      await this.#end.promise;
    }, signal);
    this.done.catch(() => undefined);
  }

  async end(): Promise<void> {
    this.#end.resolve();
    await this.done;
    await turn();
  }
}

const begun = (starts: Start[]): boolean[] => starts.map((start) => start.begun);

test('starts run in order of arrival, so many at a time', async () => {
  const admission = new Admission({ most: 2 });
  const starts = Array.from({ length: 4 }, () => new Start(admission));
  await turn();
  assert.deepEqual(begun(starts), [true, true, false, false]);
  assert.equal(admission.waiting, 2);
  await starts[1]?.end();
  assert.deepEqual(begun(starts), [true, true, true, false]);
  await starts[0]?.end();
  assert.deepEqual(begun(starts), [true, true, true, true]);
  await Promise.all([starts[2]?.end(), starts[3]?.end()]);
  assert.equal(admission.waiting, 0);
});

test('a start that is cancelled while it waits leaves the queue, and never runs', async () => {
  const admission = new Admission({ most: 1 });
  const cancelled = new AbortController();
  const [first, second, third] = [
    new Start(admission),
    new Start(admission, cancelled.signal),
    new Start(admission),
  ];
  await turn();
  cancelled.abort(new Error('it is not wanted any more'));
  await assert.rejects(second.done, { message: 'it is not wanted any more' });
  assert.equal(admission.waiting, 1);
  await first.end();
  assert.deepEqual(begun([second, third]), [false, true]);
  await third.end();
  await assert.rejects(new Start(admission, cancelled.signal).done, { message: 'it is not wanted any more' });
});

test('the next start runs after one that fails', async () => {
  const admission = new Admission({ most: 1 });
  await assert.rejects(
    admission.run(() => Promise.reject(new Error('no VM'))),
    { message: 'no VM' },
  );
  assert.equal(await admission.run(() => Promise.resolve('a VM')), 'a VM');
});

test('the next start runs beside one whose guest takes long, once', async () => {
  const admission = new Admission({ most: 1, turnMs: 1 });
  const starts = [new Start(admission, undefined, 'runs'), new Start(admission)];
  while (!starts[1]?.begun) await new Promise((resolve) => setTimeout(resolve, 1));
  const patient = new Admission({ most: 1, turnMs: 60_000 });
  const [slow, next, last] = [new Start(patient, undefined, 'runs'), new Start(patient), new Start(patient)];
  await slow.end();
  assert.deepEqual(begun([next, last]), [true, false]);
  await next.end();
  await Promise.all([last.end(), ...starts.map((start) => start.end())]);
});

test('speculative work waits until a core is left beside the starts', async () => {
  const admission = new Admission({ most: 1 });
  await admission.idleCapacity();
  const start = new Start(admission);
  let isSpare = false;
  const spare = admission.idleCapacity().then(() => (isSpare = true));
  const stop = new AbortController();
  const stopped = admission.idleCapacity(stop.signal);
  await turn();
  assert.equal(isSpare, false);
  stop.abort(new Error('the service stops'));
  await assert.rejects(stopped, { message: 'the service stops' });
  await start.end();
  await spare;
});
