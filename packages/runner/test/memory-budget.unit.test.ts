import assert from 'node:assert/strict';
import { it } from 'node:test';
import { InsufficientMemoryError } from '../src/memory/available-memory.ts';
import { MemoryBudget } from '../src/memory/memory-budget.ts';

const MIB = 2 ** 20;
const refused = { name: InsufficientMemoryError.name };

it('memory that is granted and not written yet is not granted twice', async () => {
  let available = 1_000 * MIB;
  const budget = new MemoryBudget({ maxBytes: 10_000 * MIB, available: async () => available });
  const first = await budget.admit('a fork', 'a', 500 * MIB);
  await assert.rejects(budget.admit('a fork', 'b', 300 * MIB), refused);
  // Also two concurrent requests.
  const both = await Promise.allSettled([
    budget.admit('a fork', 'c', 200 * MIB),
    budget.admit('a fork', 'd', 200 * MIB),
  ]);
  assert.deepEqual(both.map(({ status }) => status).toSorted(), ['fulfilled', 'rejected']);
  first.used();
  available -= 500 * MIB;
  await assert.rejects(budget.admit('a fork', 'b', 100 * MIB), refused);
  first[Symbol.dispose]();
  available += 500 * MIB;
  using _second = await budget.admit('a fork', 'b', 300 * MIB);
});

it('what is held for forks and snapshots is bounded for the host and for each origin', async () => {
  const budget = new MemoryBudget({ maxBytes: 1_000 * MIB, available: async () => 64_000 * MIB });
  using _a = await budget.admit('a fork', 'a', 400 * MIB);
  await assert.rejects(budget.admit('a fork', 'a', 200 * MIB), /of the same origin, of at most 500 MiB/);
  using _b = await budget.admit('a fork', 'b', 400 * MIB);
  await assert.rejects(budget.admit('a fork', 'c', 300 * MIB), /holds 800 MiB .* of at most 1000 MiB/);
  assert.equal(budget.heldBytes, 800 * MIB);
  assert.equal(budget.heldBy('a'), 400 * MIB);
});

it('spare memory is evicted for what is needed, that of the largest owner first', async () => {
  const budget = new MemoryBudget({ maxBytes: 1_000 * MIB, available: async () => 64_000 * MIB });
  const released: string[] = [];
  for (const [owner, mib] of [
    ['small', 100],
    ['large', 300],
    ['large', 150],
    ['needed', 300],
  ] as const) {
    const grant = await budget.admit('a fork', owner, mib * MIB);
    grant.used();
    if (owner !== 'needed') grant.isSpare(() => released.push(`${owner} ${mib}`));
  }
  using _next = await budget.admit('a fork', 'next', 400 * MIB);
  assert.deepEqual(released, ['large 300']);
  await assert.rejects(budget.admit('a fork', 'last', 700 * MIB), refused);
  assert.deepEqual(released, ['large 300', 'large 150', 'small 100']);
});
