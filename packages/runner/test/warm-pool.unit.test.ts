import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { after, test } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import { eventually } from '@releap/testing/eventually';
import { Admission } from '../src/machine/admission.ts';
import { Demand } from '../src/machine/demand.ts';
import { WarmPools } from '../src/machine/warm-pool.ts';
import type { Recipe, WaitingVm, WarmPoolsOptions } from '../src/machine/warm-pool.ts';
import { startMetrics } from '../src/metrics/start-metrics.ts';
import { identifyProcess } from '../src/vmm/process-identity.ts';
import type { Vm } from '../src/vmm/driver.ts';
import { quiet as log } from '@releap/testing/logging';

/** A recipe whose VMs are only names, with the memory of one small process and whatever they are said to hold besides. */
class FakeRecipe implements Recipe<WaitingVm> {
  readonly name: string;
  readonly least: number;
  made = 0;
  removed = 0;
  making = 0;
  most = 0;
  failures = 0;
  /** Whether the process of the next ones is gone. */
  isDead = false;
  readonly #ends: (() => void)[] = [];

  constructor(name: string, least: number) {
    this.name = name;
    this.least = least;
  }

  make = async (id: string): Promise<WaitingVm> => {
    this.making += 1;
    this.most = Math.max(this.most, this.making);
    await sleep(1);
    this.making -= 1;
    if (this.failures-- > 0) throw new Error('no VM');
    this.made += 1;
    const vm = {
      exited: false,
      identity: this.isDead ? { ...identity, startTicks: -1 } : identity,
      onExit: (listener: () => void) => this.#ends.push(listener),
      detach: () => undefined,
    };
    return { id, vm: vm as unknown as Vm };
  };

  remove = async (): Promise<void> => {
    this.removed += 1;
  };

  /** All VMs of it end by themselves. */
  endAll(): void {
    for (const end of this.#ends.splice(0)) end();
  }
}

const child = spawn('sleep', ['1000'], { stdio: 'ignore' });
after(() => void child.kill('SIGKILL'));
const identity = identifyProcess(child.pid ?? assert.fail());

function open(more: Partial<WarmPoolsOptions> = {}): WarmPools {
  const pools = new WarmPools({
    budgetMib: 1_000_000,
    available: () => Promise.resolve(2 ** 40),
    memoryOf: () => Promise.resolve(96 * 2 ** 20),
    log,
    ...more,
  });
  pools.start();
  return pools;
}

const waiting = (pools: WarmPools, recipe: string): number | undefined =>
  pools.stats.find((one) => one.recipe === recipe)?.waiting;

test('demand is the number of requests while one is made, beside the configured number', () => {
  let now = 0;
  const demand = new Demand(2, () => now);
  assert.equal(demand.wanted, 2);
  demand.made(1_000);
  for (; now < 600_000; now += 225) demand.arrived();
  // More than four a second, and a second to make one.
  assert.equal(demand.wanted, 2 + 4);
  now += 600_000;
  assert.equal(demand.wanted, 2);
});

test('a size that is not configured is kept only where it was asked for repeatedly, and for a while', () => {
  let now = 0;
  const demand = new Demand(0, () => now);
  demand.arrived();
  assert.equal(demand.wanted, 0);
  now += 1_000;
  demand.arrived();
  demand.arrived();
  assert.equal(demand.wanted, 1);
  now += 300_000;
  assert.deepEqual([demand.wanted, demand.isOver], [0, true]);
});

test('a taken VM is replaced, and no two callers get the same', async () => {
  const recipe = new FakeRecipe('a', 2);
  const pools = open({ parallel: 2 });
  pools.add(recipe);
  const take = (): WaitingVm | undefined => pools.take('a', () => recipe);
  await eventually('two that wait', async () => (waiting(pools, 'a') === 2 ? true : undefined));
  const taken = [take(), take(), take()];
  assert.equal(taken[2], undefined);
  assert.notEqual(taken[0]?.id, taken[1]?.id);
  await eventually('two more', async () => (waiting(pools, 'a') === 2 ? true : undefined));
  const [stats] = pools.stats;
  assert.deepEqual([stats?.hits, stats?.misses, recipe.made], [2, 1, 4]);
  await pools.close();
  assert.equal(recipe.removed, 2);
  assert.equal(take(), undefined);
});

test('a bounded number is made at a time, and none while the cores are needed', async () => {
  const recipe = new FakeRecipe('a', 5);
  const gate = Promise.withResolvers<void>();
  const pools = open({ parallel: 2, idleCapacity: () => gate.promise });
  pools.add(recipe);
  await sleep(10);
  assert.equal(recipe.made, 0);
  gate.resolve();
  await eventually('five that wait', async () => (waiting(pools, 'a') === 5 ? true : undefined));
  assert.equal(recipe.most, 2);
  await pools.close();
});

test('all recipes together keep to the memory budget', async () => {
  const [a, b] = [new FakeRecipe('a', 50), new FakeRecipe('b', 50)];
  const budgetMib = 1_000;
  const pools = open({ budgetMib });
  pools.add(a);
  pools.add(b);
  const used = (): number => pools.stats.reduce((sum, { mib }) => sum + mib, 0);
  let last = -1;
  await eventually('no more are made', async () => {
    const before = last;
    last = a.made + b.made;
    return last > 1 && last === before && a.making + b.making === 0 ? true : undefined;
  });
  assert.ok(used() <= budgetMib, `${used()} MiB`);
  assert.ok(a.made > 0 && b.made > 0, 'each has its part');
  assert.ok(a.made + b.made < 100);
  await pools.close();
  assert.equal(a.removed + b.removed, a.made + b.made);
});

test('none is made on a host that is short of memory', async () => {
  const recipe = new FakeRecipe('a', 2);
  const pools = open({ available: () => Promise.resolve(0) });
  pools.add(recipe);
  await sleep(20);
  assert.equal(recipe.made, 0);
  await pools.close();
});

test('one that ends by itself or cannot be made is removed, and another one takes its place', async () => {
  const recipe = new FakeRecipe('a', 1);
  recipe.failures = 1;
  const pools = open();
  pools.add(recipe);
  await eventually('one that waits', async () => (waiting(pools, 'a') === 1 ? true : undefined));
  assert.equal(recipe.removed, 1);
  recipe.endAll();
  await eventually('another one', async () =>
    recipe.made === 2 && waiting(pools, 'a') === 1 ? true : undefined,
  );
  assert.equal(recipe.removed, 2);
  await pools.close();
});

test('one whose process is gone is not given out', async () => {
  const recipe = new FakeRecipe('a', 1);
  recipe.isDead = true;
  const pools = open();
  pools.add(recipe);
  await eventually('one that waits', () => waiting(pools, 'a') === 1);
  recipe.isDead = false;
  assert.equal(
    pools.take('a', () => recipe),
    undefined,
  );
  await eventually('another one', () => recipe.made === 2 && waiting(pools, 'a') === 1);
  assert.equal(recipe.removed, 1);
  assert.notEqual(
    pools.take('a', () => recipe),
    undefined,
  );
  await pools.close();
});

test('the memory of waiting VMs is given back when the host needs it, and not taken again at once', async () => {
  const [a, b] = [new FakeRecipe('a', 1), new FakeRecipe('b', 2)];
  const pools = open();
  pools.add(a);
  pools.add(b);
  await eventually('three that wait', () => waiting(pools, 'a') === 1 && waiting(pools, 'b') === 2);
  const before = pools.mib;
  assert.ok(before > 0);
  assert.equal(await pools.release(), true);
  assert.deepEqual([waiting(pools, 'a'), waiting(pools, 'b')], [1, 1], 'of the recipe that has most');
  assert.ok(pools.mib < before);
  while (await pools.release());
  assert.deepEqual([a.removed, b.removed, pools.mib], [1, 2, 0]);
  pools.take('a', () => a);
  await sleep(20);
  assert.deepEqual([a.made, b.made], [1, 2]);
  await pools.close();
});

test('metrics have, for each recipe, the waiting VMs, their target, and the number of requests', async () => {
  const recipe = new FakeRecipe('template 2x1024', 1);
  const pools = open();
  pools.add(recipe);
  await eventually('one that waits', () => waiting(pools, 'template 2x1024') === 1);
  const images = { count: 2, bytes: 30, mostBytes: 40 };
  const registry = startMetrics(new Admission(), () => pools.stats, {
    stats: () => Promise.resolve({ images, layers: images, pulls: { running: 1, waiting: 0 } }),
  });
  await registry.metrics();
  for (let i = 0; i < 2; i++) pools.take('template 2x1024', () => recipe);
  const text = await registry.metrics();
  for (const line of [
    'releap_warm_vms_wanted{recipe="template 2x1024"} 1',
    'releap_image_cache_bytes{kind="layer"} 30',
    'releap_image_pulls{state="running"} 1',
    'releap_warm_vms_taken_total{recipe="template 2x1024",outcome="hit"} 1',
    'releap_warm_vms_taken_total{recipe="template 2x1024",outcome="miss"} 1',
    'releap_starts_waiting 0',
  ]) {
    assert.ok(text.split('\n').includes(line), `${line}\n${text}`);
  }
  await pools.close();
});
