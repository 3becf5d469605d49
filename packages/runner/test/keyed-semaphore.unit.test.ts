import assert from 'node:assert/strict';
import { test } from 'node:test';
import { KeyedSemaphore } from '../src/budget/keyed-semaphore.ts';

test('one at a time of each key, in order of arrival, and other keys do not wait', async () => {
  const semaphore = new KeyedSemaphore();
  const order: string[] = [];
  const held = await semaphore.acquire('a');
  const waiting = ['first', 'second'].map((name) =>
    semaphore.run('a', async () => {
      order.push(name);
    }),
  );
  await semaphore.run('b', async () => {
    order.push('other key');
  });
  assert.deepEqual(order, ['other key']);
  held[Symbol.dispose]();
  await Promise.all(waiting);
  assert.deepEqual(order, ['other key', 'first', 'second']);
});

test('a key is in use until the last of its users has left', async () => {
  const semaphore = new KeyedSemaphore();
  const first = await semaphore.acquire('a');
  const second = semaphore.acquire('a');
  first[Symbol.dispose]();
  assert.equal(semaphore.has('a'), true);
  const permit = await second;
  first[Symbol.dispose]();
  assert.equal(semaphore.has('a'), true);
  permit[Symbol.dispose]();
  assert.equal(semaphore.has('a'), false);
});

test('one that gives up, or fails, does not keep the key', async () => {
  const semaphore = new KeyedSemaphore();
  await assert.rejects(semaphore.acquire('a', AbortSignal.abort()), { name: 'AbortError' });
  assert.equal(semaphore.has('a'), false);
  const held = await semaphore.acquire('a');
  const abort = new AbortController();
  const waiting = semaphore.acquire('a', abort.signal);
  abort.abort();
  await assert.rejects(waiting, { name: 'AbortError' });
  held[Symbol.dispose]();
  assert.equal(semaphore.has('a'), false);
  const failed = semaphore.run('a', () => Promise.reject(new Error('failed')));
  await assert.rejects(failed, { message: 'failed' });
  assert.equal(semaphore.has('a'), false);
});
