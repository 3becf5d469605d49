import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { ImageError } from '../src/image/image-error.ts';
import { PullQueue } from '../src/image/pull-queue.ts';

const LIMITS = { total: 4, perProject: 2, perHost: 3, waiting: 6, waitingPerProject: 4 };
const settle = (): Promise<void> => new Promise((resolve) => setImmediate(resolve));

/** Enters for each, and says in which order they were let in. */
function enterAll(
  queue: PullQueue,
  owners: readonly string[],
): { entered: string[]; leave: (who: string) => void } {
  const entered: string[] = [];
  const places = new Map<string, Disposable>();
  for (const [index, text] of owners.entries()) {
    const [project = '', host = ''] = text.split('@');
    void queue.acquire({ project, host }).then((place) => {
      const who = `${text}#${index}`;
      entered.push(who);
      places.set(who, place);
    });
  }
  return { entered, leave: (who) => places.get(who)?.[Symbol.dispose]() };
}

describe('the queue of pulls', () => {
  it('gives a project its share, and lets another project past those that wait', async () => {
    const queue = new PullQueue(LIMITS);
    const { entered, leave } = enterAll(queue, ['a@slow', 'a@slow', 'a@slow', 'b@fast']);
    await settle();
    assert.deepEqual(entered, ['a@slow#0', 'a@slow#1', 'b@fast#3']);
    leave('a@slow#0');
    leave('a@slow#0');
    await settle();
    assert.deepEqual(entered.slice(3), ['a@slow#2']);
    assert.equal(queue.running, 3);
  });

  it('gives a registry its share, for all projects together', async () => {
    const queue = new PullQueue(LIMITS);
    const { entered } = enterAll(queue, ['a@slow', 'b@slow', 'c@slow', 'd@slow', 'd@fast']);
    await settle();
    assert.deepEqual(entered, ['a@slow#0', 'b@slow#1', 'c@slow#2', 'd@fast#4']);
  });

  it('prefers the project with the fewest pulls when a place becomes free', async () => {
    const queue = new PullQueue(LIMITS);
    const { entered, leave } = enterAll(queue, ['a@1', 'a@2', 'b@3', 'b@4', 'a@5', 'c@6']);
    await settle();
    leave('a@1#0');
    await settle();
    assert.deepEqual(entered.slice(4), ['c@6#5']);
  });

  it('refuses a project that has too many waiting, and everybody when the queue is full', async () => {
    const queue = new PullQueue(LIMITS);
    enterAll(
      queue,
      Array.from({ length: 6 }, () => 'a@x'),
    );
    await assert.rejects(queue.acquire({ project: 'a', host: 'x' }), (error: unknown) => {
      assert.ok(error instanceof ImageError);
      assert.equal(error.code, 'busy');
      assert.ok(error.retryable);
      assert.match(error.message, /^4 pulls of the project wait already on this host/);
      return true;
    });
    enterAll(
      queue,
      Array.from({ length: 4 }, () => 'b@y'),
    );
    await assert.rejects(queue.acquire({ project: 'c', host: 'z' }), /^ImageError: 6 pulls wait already/);
  });

  it('forgets a pull that is cancelled while it waits', async () => {
    const queue = new PullQueue({ ...LIMITS, total: 1 });
    const { leave } = enterAll(queue, ['a@x']);
    await settle();
    const stop = new AbortController();
    const waiting = queue.acquire({ project: 'b', host: 'x' }, stop.signal);
    stop.abort(new Error('no longer wanted'));
    await assert.rejects(waiting, /no longer wanted/);
    assert.equal(queue.waiting, 0);
    leave('a@x#0');
    assert.equal(queue.running, 0);
  });
});
