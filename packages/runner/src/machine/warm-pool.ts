import { randomBytes } from 'node:crypto';
import { availableParallelism } from 'node:os';
import type { Logger } from 'pino';
import { availableMemory, proportionalMemory } from '../memory/available-memory.ts';
import { isAlive } from '../vmm/process-identity.ts';
import type { Vm } from '../vmm/driver.ts';
import { Demand } from './demand.ts';

const MIB = 2 ** 20;
const RETRY_MIN_MS = 1_000;
const RETRY_MAX_MS = 60_000;
const TEND_MS = 5_000;
/** Assumed memory of a recipe's VMs until one was measured: an emulated one of a template. */
const FIRST_GUESS_MIB = 96;
/** With less available memory the pools make no VMs, and remove waiting ones. */
const PRESSURE_BYTES = 1024 * MIB;
/** After the host needed the memory of a waiting VM, none is made in its place for this long. */
const RELEASED_PAUSE_MS = 60_000;
/** Most recipes with a pool. */
const RECIPES_MAX = 16;

/** A VM that was made ahead of time. Its name and its folder begin with `warm-`. */
export interface WaitingVm {
  id: string;
  vm: Vm;
}

/** A kind of waiting VMs, and how to make them. */
export interface Recipe<W extends WaitingVm> {
  /** Names it in logs and metrics, such as `template 2x1024`. */
  name: string;
  /** How many wait without requests; 0 for VMs that are made only on demand. */
  least: number;
  /**
   * Makes one that waits without using CPU time. If it throws, `remove` removes what is left.
   * @param signal aborted when the pools are closed
   */
  make: (id: string, signal: AbortSignal) => Promise<W>;
  /** @param made absent when `make` has thrown */
  remove: (id: string, made: W | undefined) => Promise<void>;
}

export interface WarmPoolsOptions {
  /** Host memory for all waiting VMs together, MiB, as proportional set size. 0 disables the pools. */
  budgetMib: number;
  /** How many are made concurrently. Default: half of the cores. */
  parallel?: number;
  /** Resolves when a core is free for making VMs ahead of time. Default: at once. */
  idleCapacity?: (signal: AbortSignal) => Promise<void>;
  /** Memory that is available on the host, and memory of a process, in bytes. Default: what the kernel says. */
  available?: () => Promise<number>;
  memoryOf?: (pid: number) => Promise<number>;
  log: Logger;
}

/** How a recipe's pool is doing. */
export interface WarmPoolStats {
  recipe: string;
  waiting: number;
  wanted: number;
  mib: number;
  /** Requests since the start for which one waited, and for which none did. */
  hits: number;
  misses: number;
}

interface Pool<W extends WaitingVm = WaitingVm> {
  recipe: Recipe<W>;
  demand: Demand;
  waiting: { made: W; mib: number }[];
  making: number;
  /** Memory of the last one. */
  mib: number;
  hits: number;
  misses: number;
  retryMs: number;
  /** None is made before this time, after one could not be made. */
  notBefore: number;
}

/**
 * VMs that wait for a sandbox, by recipe, under one memory budget. They are made in the background while a core is idle, as
 * many as the demand requires.
 */
export class WarmPools {
  readonly #options: WarmPoolsOptions;
  readonly #parallel: number;
  readonly #pools = new Map<string, Pool>();
  readonly #closed = new AbortController();
  readonly #tending: NodeJS.Timeout;
  /** VMs that are being made or removed. */
  readonly #work = new Set<Promise<void>>();
  #isStarted = false;

  constructor(options: WarmPoolsOptions) {
    this.#options = options;
    this.#parallel = options.parallel ?? Math.max(1, Math.floor(availableParallelism() / 2));
    this.#tending = setInterval(() => this.#track(this.#tend()), TEND_MS).unref();
  }

  /** Adds a recipe, of which VMs wait from now on. */
  add<W extends WaitingVm>(recipe: Recipe<W>): void {
    this.#poolOf(recipe.name, () => recipe);
    this.#fill();
  }

  /** Begins to make VMs. */
  start(): void {
    this.#isStarted = true;
    this.#fill();
  }

  /**
   * Takes a waiting VM of a recipe; undefined when none waits. Both count as demand.
   * @param recipe creates the recipe if none of this name is known
   */
  take<W extends WaitingVm>(name: string, recipe: () => Recipe<W>): W | undefined {
    if (this.#closed.signal.aborted || this.#options.budgetMib === 0) return undefined;
    const pool = this.#poolOf(name, recipe);
    if (pool === undefined) return undefined;
    pool.demand.arrived();
    const taken = this.#takeLiving(pool);
    if (taken === undefined) pool.misses += 1;
    else pool.hits += 1;
    // Deferred: the caller first begins a start, which has priority over making VMs.
    setImmediate(() => this.#fill());
    return taken;
  }

  #takeLiving<W extends WaitingVm>(pool: Pool<W>): W | undefined {
    for (;;) {
      const made = pool.waiting.shift()?.made;
      if (made === undefined || isAlive(made.vm.identity)) return made;
      // Its end has not been reported yet.
      this.#track(this.#remove(pool, made.id, made));
    }
  }

  /** Of each recipe. */
  get stats(): WarmPoolStats[] {
    return [...this.#pools.values()].map(({ recipe, demand, waiting, hits, misses }) => ({
      recipe: recipe.name,
      waiting: waiting.length,
      wanted: demand.wanted,
      mib: waiting.reduce((sum, { mib }) => sum + mib, 0),
      hits,
      misses,
    }));
  }

  /** Memory of all waiting VMs, MiB. */
  get mib(): number {
    return Math.ceil(this.stats.reduce((sum, { mib }) => sum + mib, 0));
  }

  /** Removes a waiting VM because the host needs its memory. @returns false when none waits */
  async release(): Promise<boolean> {
    const mibOf = ({ waiting }: Pool): number => waiting.reduce((sum, { mib }) => sum + mib, 0);
    const [largest] = [...this.#pools.values()].toSorted((a, b) => mibOf(b) - mibOf(a));
    if (largest === undefined || largest.waiting.length === 0) return false;
    largest.notBefore = performance.now() + RELEASED_PAUSE_MS;
    this.#options.log.info(
      { recipe: largest.recipe.name },
      'removing a waiting VM: the host needs its memory',
    );
    await this.#dismiss(largest);
    return true;
  }

  /** Stops making VMs and removes those that wait. */
  async close(): Promise<void> {
    this.#closed.abort(new Error('the pool is closed'));
    clearInterval(this.#tending);
    for (const pool of this.#pools.values()) {
      while (pool.waiting.length > 0) this.#track(this.#dismiss(pool));
    }
    await Promise.all(this.#work);
  }

  #poolOf<W extends WaitingVm>(name: string, recipe: () => Recipe<W>): Pool<W> | undefined {
    const known = this.#pools.get(name);
    // A name identifies one recipe, and so one type.
    if (known !== undefined) return known as unknown as Pool<W>;
    if (this.#pools.size >= RECIPES_MAX) this.#forgetOne();
    if (this.#pools.size >= RECIPES_MAX) return undefined;
    const made = recipe();
    const pool: Pool<W> = {
      recipe: made,
      demand: new Demand(made.least),
      waiting: [],
      making: 0,
      mib: FIRST_GUESS_MIB,
      hits: 0,
      misses: 0,
      retryMs: RETRY_MIN_MS,
      notBefore: 0,
    };
    this.#pools.set(name, pool as unknown as Pool);
    return pool;
  }

  #forgetOne(): void {
    for (const [name, { demand, waiting, making }] of this.#pools) {
      if (!demand.isOver || waiting.length + making > 0) continue;
      this.#pools.delete(name);
      return;
    }
  }

  /** Starts to make as many VMs as are allowed now. */
  #fill(): void {
    if (!this.#isStarted) return;
    for (;;) {
      if (this.#closed.signal.aborted) return;
      const making = [...this.#pools.values()].reduce((sum, pool) => sum + pool.making, 0);
      const pool = making < this.#parallel ? this.#mostWanted() : undefined;
      if (pool === undefined) return;
      pool.making += 1;
      this.#track(this.#make(pool).finally(() => this.#fill()));
    }
  }

  /** The recipe with the smallest share of its wanted VMs, of those whose VMs fit the budget. */
  #mostWanted(): Pool | undefined {
    const used = [...this.#pools.values()].reduce(
      (sum, { waiting, making, mib }) => sum + making * mib + waiting.reduce((all, one) => all + one.mib, 0),
      0,
    );
    const now = performance.now();
    let [best, share]: [Pool | undefined, number] = [undefined, 1];
    for (const pool of this.#pools.values()) {
      const has = (pool.waiting.length + pool.making) / pool.demand.wanted;
      if (!(has < share) || now < pool.notBefore || used + pool.mib > this.#options.budgetMib) continue;
      [best, share] = [pool, has];
    }
    return best;
  }

  /** @param pool has counted this one in `making` already */
  async #make(pool: Pool): Promise<void> {
    const { idleCapacity, memoryOf = proportionalMemory, log } = this.#options;
    const { signal } = this.#closed;
    const { recipe } = pool;
    const id = `warm-${randomBytes(8).toString('hex')}`;
    let made: WaitingVm | undefined;
    try {
      await idleCapacity?.(signal);
      if (await this.#isShortOfMemory()) {
        pool.notBefore = performance.now() + RETRY_MIN_MS;
        return;
      }
      const began = performance.now();
      made = await recipe.make(id, signal);
      pool.demand.made(performance.now() - began);
      const mib = (await memoryOf(made.vm.identity.pid)) / MIB;
      signal.throwIfAborted();
      if (made.vm.exited) throw new Error('it ended at once');
      pool.mib = mib;
      pool.retryMs = RETRY_MIN_MS;
      pool.waiting.push({ made, mib });
      this.#dismissWhenItEnds(pool, made);
      log.debug({ vm: id, recipe: recipe.name, mib: Math.round(mib) }, 'a micro-VM waits');
    } catch (error) {
      await this.#remove(pool, id, made);
      if (signal.aborted) return;
      log.warn({ err: error, recipe: recipe.name, retry_ms: pool.retryMs }, 'a waiting VM could not be made');
      pool.notBefore = performance.now() + pool.retryMs;
      setTimeout(() => this.#fill(), pool.retryMs).unref();
      pool.retryMs = Math.min(pool.retryMs * 2, RETRY_MAX_MS);
    } finally {
      pool.making -= 1;
    }
  }

  #dismissWhenItEnds(pool: Pool, made: WaitingVm): void {
    made.vm.onExit(() => {
      const at = pool.waiting.findIndex((one) => one.made === made);
      if (at < 0) return;
      pool.waiting.splice(at, 1);
      this.#track(this.#remove(pool, made.id, made).finally(() => this.#fill()));
    });
  }

  /** Removes VMs that are not wanted any more, or whose memory the host needs. */
  async #tend(): Promise<void> {
    let isShort: boolean;
    try {
      isShort = await this.#isShortOfMemory();
    } catch (error) {
      // Not awaited by a caller: a rejection would end the runner.
      this.#options.log.warn(
        { err: error },
        'the available memory cannot be read; the pools stay as they are',
      );
      return;
    }
    for (const pool of this.#pools.values()) {
      if (pool.waiting.length > 0 && (isShort || pool.waiting.length > pool.demand.wanted)) {
        this.#options.log.debug({ recipe: pool.recipe.name, short: isShort }, 'removing a waiting VM');
        await this.#dismiss(pool);
      }
    }
    this.#fill();
  }

  async #isShortOfMemory(): Promise<boolean> {
    return (await (this.#options.available ?? availableMemory)()) < PRESSURE_BYTES;
  }

  async #dismiss(pool: Pool): Promise<void> {
    const one = pool.waiting.pop();
    if (one !== undefined) await this.#remove(pool, one.made.id, one.made);
  }

  async #remove<W extends WaitingVm>(pool: Pool<W>, id: string, made: W | undefined): Promise<void> {
    try {
      made?.vm.detach();
      await pool.recipe.remove(id, made);
    } catch (error) {
      // The next start of the service removes it.
      this.#options.log.error({ err: error, vm: id }, 'a waiting VM could not be removed');
    }
  }

  #track(work: Promise<void>): void {
    const tracked = work.finally(() => this.#work.delete(tracked));
    this.#work.add(tracked);
  }
}
