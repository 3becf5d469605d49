import assert from 'node:assert/strict';
import { it } from 'node:test';
import { InsufficientMemoryError } from '../src/memory/available-memory.ts';
import { MemoryBudget } from '../src/memory/memory-budget.ts';

const MIB = 2 ** 20;
const refused = { name: InsufficientMemoryError.name };

it('memory that is granted and not written yet is not granted twice', async () => {
  let available = 1_000 * MIB;
  const budget = new MemoryBudget({ maxBytes: 10_000 * MIB, available: async () => available });
  const first = await budget.admit('a fork', { origin: 'a' }, 500 * MIB);
  await assert.rejects(budget.admit('a fork', { origin: 'b' }, 300 * MIB), refused);
  // Also two concurrent requests.
  const both = await Promise.allSettled([
    budget.admit('a fork', { origin: 'c' }, 200 * MIB),
    budget.admit('a fork', { origin: 'd' }, 200 * MIB),
  ]);
  assert.deepEqual(both.map(({ status }) => status).toSorted(), ['fulfilled', 'rejected']);
  first.used();
  available -= 500 * MIB;
  await assert.rejects(budget.admit('a fork', { origin: 'b' }, 100 * MIB), refused);
  first[Symbol.dispose]();
  available += 500 * MIB;
  using _second = await budget.admit('a fork', { origin: 'b' }, 300 * MIB);
});

it('what is held for forks and snapshots is bounded for the host and for each origin', async () => {
  const budget = new MemoryBudget({ maxBytes: 1_000 * MIB, available: async () => 64_000 * MIB });
  using _a = await budget.admit('a fork', { origin: 'a' }, 400 * MIB);
  await assert.rejects(
    budget.admit('a fork', { origin: 'a' }, 200 * MIB),
    /of the same origin, of at most 500 MiB/,
  );
  using _b = await budget.admit('a fork', { origin: 'b' }, 400 * MIB);
  await assert.rejects(
    budget.admit('a fork', { origin: 'c' }, 300 * MIB),
    /800 MiB are held .* on this host, of at most 1000 MiB/,
  );
  assert.deepEqual(budget.held, { mem_mib: 800, reclaimable_mib: 0 });
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
    const grant = await budget.admit('a fork', { origin: owner }, mib * MIB);
    grant.used();
    if (owner !== 'needed') grant.isSpare(() => released.push(`${owner} ${mib}`));
  }
  using _next = await budget.admit('a fork', { origin: 'next' }, 400 * MIB);
  assert.deepEqual(released, ['large 300']);
  await assert.rejects(budget.admit('a fork', { origin: 'last' }, 700 * MIB), refused);
  assert.deepEqual(released, ['large 300', 'large 150', 'small 100']);
});

it('one project cannot hold what others need, however many origins it has', async () => {
  const budget = new MemoryBudget({ maxBytes: 1_000 * MIB, available: async () => 64_000 * MIB });
  const mine = (origin: string) => ({ origin, project: 'mine' });
  using _a = await budget.admit('a fork', mine('a'), 400 * MIB);
  using _b = await budget.admit('a fork', mine('b'), 300 * MIB);
  await assert.rejects(
    budget.admit('a fork', mine('c'), 100 * MIB),
    /700 MiB are held .* of the same project, of at most 750 MiB/,
  );
  using _other = await budget.admit('a fork', { origin: 'd', project: 'other' }, 300 * MIB);
});

it('a project over its share gives up memory of its own, and none of others', async () => {
  const budget = new MemoryBudget({ maxBytes: 1_000 * MIB, available: async () => 64_000 * MIB });
  const released: string[] = [];
  for (const [origin, project, mib] of [
    ['old', 'other', 200],
    ['a', 'mine', 300],
    ['b', 'mine', 400],
  ] as const) {
    const grant = await budget.admit('a fork', { origin, project }, mib * MIB);
    grant.used();
    grant.isSpare(() => released.push(origin));
  }
  using _next = await budget.admit('a fork', { origin: 'c', project: 'mine' }, 100 * MIB);
  assert.deepEqual(released, ['b']);
  // What is spare of others does not make room in its own share.
  await assert.rejects(budget.admit('a fork', { origin: 'c', project: 'mine' }, 700 * MIB), refused);
  assert.deepEqual(released, ['b', 'a']);
  assert.deepEqual(budget.held, { mem_mib: 300, reclaimable_mib: 200 });
});

it('a host that is short of memory gets back what is spare, some at a time', async () => {
  let available = 64_000 * MIB;
  const budget = new MemoryBudget({ maxBytes: 1_000 * MIB, available: async () => available });
  const released: string[] = [];
  for (const origin of ['a', 'b', 'in use']) {
    const grant = await budget.admit('a fork', { origin }, 100 * MIB);
    grant.used();
    if (origin !== 'in use') grant.isSpare(() => released.push(origin));
  }
  await budget.relieve();
  assert.deepEqual(released, []);
  available = 100 * MIB;
  await budget.relieve();
  assert.deepEqual(released, ['a']);
  await budget.relieve();
  await budget.relieve();
  assert.deepEqual(released, ['a', 'b']);
  assert.deepEqual(budget.held, { mem_mib: 100, reclaimable_mib: 0 });
});

it('a host that is short of memory gets other memory back before it refuses, but not for a share that is used up', async () => {
  let available = 500 * MIB;
  let waiting = 2;
  const budget = new MemoryBudget({ maxBytes: 10_000 * MIB, available: async () => available });
  budget.alsoRelease(async () => {
    if (waiting === 0) return false;
    waiting -= 1;
    available += 100 * MIB;
    return true;
  });
  using grant = await budget.admit('a fork', { origin: 'a' }, 300 * MIB);
  assert.equal(waiting, 1);
  grant.used();
  available -= 300 * MIB;
  await assert.rejects(budget.admit('a fork', { origin: 'b' }, 300 * MIB), refused);
  assert.equal(waiting, 0);
  available = 64_000 * MIB;
  waiting = 1;
  await assert.rejects(budget.admit('a fork', { origin: 'a' }, 6_000 * MIB), /of the same origin/);
  assert.equal(waiting, 1);
});
