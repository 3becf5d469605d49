import assert from 'node:assert/strict';
import { test } from 'node:test';
import { until } from '@releap/testing/eventually';
import { createWriteQueue, type WriteQueueOptions } from '../src/platform/work/write-queue.ts';

type Entry = readonly [name: string, value: number];

/** A queue whose writes end when they are told to. */
function world(options: Partial<WriteQueueOptions<Entry>> = {}) {
  const writes: (PromiseWithResolvers<void> & { batch: readonly Entry[] })[] = [];
  const errors: [message: string, waiting: number][] = [];
  const queue = createWriteQueue<Entry>({
    async write(batch) {
      const write = { ...Promise.withResolvers<void>(), batch };
      writes.push(write);
      await write.promise;
    },
    batch: 3,
    most: 5,
    retryMs: 1,
    onError: (error, waiting) => errors.push([(error as Error).message, waiting]),
    ...options,
  });
  const end = async (nth: number, error?: Error): Promise<void> => {
    await until(() => writes.length > nth);
    if (error === undefined) writes[nth]?.resolve();
    else writes[nth]?.reject(error);
  };
  const batches = () => writes.map(({ batch }) => batch.map(([name, value]) => `${name}${value}`).join(' '));
  return { queue, errors, end, batches };
}

test('what is added while a batch is written is in the next one', async () => {
  const { queue, end, batches } = world();
  queue.add([['a', 1]]);
  queue.kick();
  queue.add([
    ['b', 1],
    ['c', 1],
  ]);
  queue.kick();
  const flushed = queue.flush();
  await end(0);
  await end(1);
  await flushed;
  assert.deepEqual(batches(), ['a1', 'b1 c1']);
});

test('a batch has no more entries than it may, and no more wait than may', async () => {
  const { queue, end, batches } = world();
  const refused = queue.add(['a', 'b', 'c', 'd', 'e', 'f', 'g'].map((name) => [name, 1] as const));
  assert.equal(refused, 2);
  const flushed = queue.flush();
  await end(0);
  await end(1);
  await flushed;
  assert.deepEqual(batches(), ['a1 b1 c1', 'd1 e1']);
  assert.equal(queue.add([['h', 1]]), 0);
});

test('what cannot be written waits, is written again, and is told', async () => {
  const { queue, errors, end, batches } = world();
  queue.add([['a', 1]]);
  queue.kick();
  await end(0, new Error('no database'));
  await until(() => batches().length === 2);
  assert.deepEqual(errors, [['no database', 1]]);
  await end(1);
  await queue.flush();
  assert.deepEqual(batches(), ['a1', 'a1']);
});

test('a flush throws what its write has thrown, and the entries wait for the next one', async () => {
  const { queue, errors, end, batches } = world();
  queue.add([['a', 1]]);
  const failed = queue.flush();
  await end(0, new Error('no database'));
  await assert.rejects(failed, /no database/);
  const flushed = queue.flush();
  await end(1);
  await flushed;
  assert.deepEqual([batches(), errors], [['a1', 'a1'], []]);
});

test('of entries with one key the newest is written, also when it comes while the one before is', async () => {
  const { queue, end, batches } = world({ key: ([name]) => name });
  queue.add([
    ['a', 1],
    ['b', 1],
    ['a', 2],
  ]);
  const flushed = queue.flush();
  await until(() => batches().length === 1);
  queue.add([['b', 2]]);
  await end(0);
  await end(1);
  await flushed;
  assert.deepEqual(batches(), ['a2 b1', 'b2']);
});

test('a closed queue repeats nothing', async () => {
  const { queue, end, batches } = world({ retryMs: 1_000_000 });
  queue.add([['a', 1]]);
  queue.kick();
  await end(0, new Error('no database'));
  await queue.close();
  queue.kick();
  await queue.flush();
  assert.deepEqual(batches(), ['a1']);
});
