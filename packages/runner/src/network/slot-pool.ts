import { setTimeout as sleep } from 'node:timers/promises';
import { ADDRESS_WITHHELD_MS } from '@releap/contract';
import type { Logger } from 'pino';
import type { HostdService } from '../host/hostd-service.ts';
import { type AddressPlan, indexInName, netnsPrefix, vethPrefix } from './address-plan.ts';
import type { EgressPolicy } from '@releap/contract/netd';
import { listLinks, listNetns } from './host-state.ts';
import { createSlots, describeSlot, destroySlots, type Slot, slotLayout } from './slot.ts';
import type { SlotHolder, SlotStore } from './slot-store.ts';

export interface SlotPoolOptions {
  plan: AddressPlan;
  store: SlotStore;
  hostd: HostdService;
  /** Spare slots to keep ready. */
  ahead: number;
  /** Resolves when a core is free for making spares. Default: at once. */
  idleCapacity?: (signal: AbortSignal) => Promise<void>;
  /** How long the number of a released slot is not used again, in milliseconds. Default `ADDRESS_WITHHELD_MS`. */
  withholdMs?: number;
  log: Logger;
}

interface Held {
  slot: Slot;
  egress?: EgressPolicy;
  intercept?: boolean;
  /** Resolves when the assignment is on disk. */
  saved: Promise<void>;
  releasing?: Promise<void>;
}

interface Waiter {
  resolve: (slot: Slot) => void;
  reject: (error: Error) => void;
}

/** What a sandbox's network enforces beyond the rules for all. */
export interface TakeOptions {
  egress?: EgressPolicy | undefined;
  /** Its connections are led through the egress proxy, also without a policy: secrets may be put into them. */
  intercept?: boolean | undefined;
}

/** How many slots one round makes, so that the first of a big refill is there soon. */
const MAKE_BATCH = 4;
const RETRY_MS = { first: 200, most: 10_000 };
/** A caller waits this long for a slot that is being made. */
const TAKE_DEADLINE_MS = 30_000;

/**
 * The slots of one service. Spares are made in the background; a slot serves one sandbox, is destroyed and made
 * anew, so that nothing of a tenant (rules, connections, frames on the tap) meets the next one.
 */
export class SlotPool {
  readonly #plan: AddressPlan;
  readonly #store: SlotStore;
  readonly #hostd: HostdService;
  readonly #ahead: number;
  readonly #log: Logger;
  readonly #layout: string;
  readonly #held = new Map<string, Held>();
  readonly #waiters = new Set<Waiter>();
  readonly #stop = new AbortController();
  readonly #idleCapacity: (signal: AbortSignal) => Promise<void>;
  /** Called when a caller waits for a slot, and spares are not made for want of a core. */
  #skipWait: () => void = () => undefined;
  #ready: Slot[] = [];
  /** Numbers with no slot. */
  #free: number[] = [];
  /** Released numbers: a program that was told their address may still open connections to it. */
  readonly #withheld = new Map<number, NodeJS.Timeout>();
  readonly #withholdMs: number;
  #filling: Promise<void> | undefined;
  /** Why slots could not be made last time; absent when they could. */
  #lastFailure: string | undefined;

  private constructor(options: SlotPoolOptions) {
    this.#plan = options.plan;
    this.#store = options.store;
    this.#hostd = options.hostd;
    this.#ahead = Math.min(options.ahead, options.plan.slots);
    this.#idleCapacity = options.idleCapacity ?? (() => Promise.resolve());
    this.#withholdMs = options.withholdMs ?? ADDRESS_WITHHELD_MS;
    this.#log = options.log;
    this.#layout = slotLayout(options.plan);
  }

  /**
   * Finds the slots of an earlier run: what is whole is kept with its holder, half-made ones are removed. Then
   * begins to make spares.
   */
  static async open(options: SlotPoolOptions): Promise<SlotPool> {
    const pool = new SlotPool(options);
    await pool.#recover();
    pool.#refill();
    return pool;
  }

  /** Slots by state. Those that are being made or removed are in none. */
  get counts(): { ready: number; held: number; withheld: number; free: number } {
    return {
      ready: this.#ready.length,
      held: this.#held.size,
      withheld: this.#withheld.size,
      free: this.#free.length,
    };
  }

  async #recover(): Promise<void> {
    const { tag } = this.#plan;
    const [records, links, spaces] = await Promise.all([this.#store.load(), listLinks(), listNetns()]);
    const withLink = indexesIn(vethPrefix(tag), links);
    const withSpace = indexesIn(netnsPrefix(tag), spaces);
    const leftovers = new Set([...withLink, ...withSpace]);
    const used = new Set<number>();
    for (const { index, layout, holder, released } of records) {
      const whole = withLink.has(index) && withSpace.has(index) && index < this.#plan.slots;
      // A slot that had a holder: the run before ended while it released it, or within the time afterwards.
      if (index < this.#plan.slots && (released === true || (holder !== undefined && !whole))) {
        await this.#store.save({ index, layout, released: true });
        this.#withhold(index);
        continue;
      }
      if (!whole || (holder === undefined && layout !== this.#layout)) {
        await this.#store.remove(index);
        continue;
      }
      leftovers.delete(index);
      used.add(index);
      const slot = describeSlot(this.#plan, index);
      if (holder === undefined) this.#ready.push(slot);
      else this.#held.set(holder.vmId, { slot, saved: Promise.resolve(), ...policyOf(holder) });
    }
    await destroySlots(this.#hostd, this.#plan, [...leftovers]);
    this.#free = Array.from({ length: this.#plan.slots }, (_, index) => index).filter(
      (index) => !used.has(index) && !this.#withheld.has(index),
    );
    const found = { ready: this.#ready.length, held: this.#held.size, removed: leftovers.size };
    if (found.ready + found.held + found.removed > 0) this.#log.info(found, 'found slots of an earlier run');
  }

  get isUnused(): boolean {
    return this.#held.size === 0;
  }

  /** Sandboxes that hold a slot, with their policy. */
  *holders(): Generator<SlotHolder & { slot: Slot }> {
    for (const [vmId, held] of this.#held) {
      yield { vmId, slot: held.slot, ...policyOf(held) };
    }
  }

  /**
   * Gives a sandbox a slot; the same one when it has one already. Waits for one to be made when no spare is left,
   * rejects when all are taken. The assignment is on disk when it resolves.
   */
  async take(vmId: string, options: TakeOptions = {}): Promise<Slot> {
    const known = this.#held.get(vmId);
    if (known?.releasing !== undefined) {
      await known.releasing;
      return await this.take(vmId, options);
    }
    if (known !== undefined) {
      await known.saved;
      return known.slot;
    }
    const slot = this.#ready.shift() ?? (await this.#waitForSlot());
    // Another caller may have asked for the same sandbox meanwhile.
    if (this.#held.has(vmId)) {
      this.#giveBack(slot);
      return await this.take(vmId, options);
    }
    const holder: SlotHolder = { vmId, ...policyOf(options) };
    const saved = this.#store.save({ index: slot.index, layout: this.#layout, holder });
    this.#held.set(vmId, { slot, saved, ...policyOf(holder) });
    this.#refill();
    try {
      await saved;
    } catch (error) {
      this.#held.delete(vmId);
      this.#giveBack(slot);
      throw error;
    }
    return slot;
  }

  /**
   * Gives the slot that `from` holds to `to`, who has none. On disk when it resolves; a crash leaves it with one
   * of the two. Nothing may have used the slot yet.
   */
  async transfer(from: string, to: string, options: TakeOptions = {}): Promise<Slot> {
    const held = this.#held.get(from);
    if (held === undefined || held.releasing !== undefined) throw new Error(`${from} holds no network slot`);
    if (this.#held.has(to)) throw new Error(`${to} holds a network slot already`);
    const { slot } = held;
    const holder: SlotHolder = { vmId: to, ...policyOf(options) };
    const saved = held.saved.then(() =>
      this.#store.save({ index: slot.index, layout: this.#layout, holder }),
    );
    this.#held.delete(from);
    this.#held.set(to, { slot, saved, ...policyOf(holder) });
    await saved;
    return slot;
  }

  /** The slot that a sandbox holds, by this run or an earlier one. */
  adopt(vmId: string): Slot | undefined {
    const held = this.#held.get(vmId);
    return held?.releasing === undefined ? held?.slot : undefined;
  }

  /**
   * Destroys the slot of a sandbox; its number is used again after `withholdMs`. The VMM must have ended. Does nothing for a
   * sandbox without one; when it rejects, the slot is still held and the call may be repeated. `afterDestroy` runs when no
   * packet can leave the slot any more, and before its number can serve another sandbox.
   */
  async release(vmId: string, afterDestroy?: (slot: Slot) => Promise<void>): Promise<void> {
    const held = this.#held.get(vmId);
    if (held === undefined) return;
    held.releasing ??= this.#destroyHeld(vmId, held, afterDestroy).finally(() => delete held.releasing);
    await held.releasing;
  }

  async #destroyHeld(vmId: string, held: Held, afterDestroy?: (slot: Slot) => Promise<void>): Promise<void> {
    await held.saved.catch(() => {});
    const { index } = held.slot;
    await destroySlots(this.#hostd, this.#plan, [index]);
    await afterDestroy?.(held.slot);
    await this.#store.save({ index, layout: this.#layout, released: true });
    this.#held.delete(vmId);
    this.#withhold(index);
  }

  #withhold(index: number): void {
    const end = async (): Promise<void> => {
      await this.#store
        .remove(index)
        .catch((error: unknown) => this.#log.warn({ err: error, index }, 'a slot record cannot be removed'));
      this.#withheld.delete(index);
      this.#free.push(index);
      this.#refill();
    };
    this.#withheld.set(index, setTimeout(() => void end(), this.#withholdMs).unref());
  }

  /** Stops making slots and leaves all as it is, for the next run to find. */
  async detach(): Promise<void> {
    this.#stop.abort();
    for (const waiter of this.#waiters) waiter.reject(new Error('the network is shutting down'));
    this.#waiters.clear();
    // Their records remain: the next run withholds them.
    for (const timer of this.#withheld.values()) clearTimeout(timer);
    await this.#filling;
  }

  /** Removes every slot, held ones too. */
  async close(): Promise<void> {
    await this.detach();
    await Promise.allSettled([...this.#held.values()].flatMap((held) => held.releasing ?? []));
    const slots = [...this.#ready, ...[...this.#held.values()].map((held) => held.slot)];
    await destroySlots(
      this.#hostd,
      this.#plan,
      slots.map((slot) => slot.index),
    );
    this.#ready = [];
    this.#held.clear();
    await this.#store.clear();
  }

  #giveBack(slot: Slot): void {
    const [waiter] = this.#waiters;
    if (waiter === undefined) {
      this.#ready.push(slot);
    } else {
      this.#waiters.delete(waiter);
      waiter.resolve(slot);
    }
  }

  async #waitForSlot(): Promise<Slot> {
    if (this.#stop.signal.aborted) throw new Error('the network is shutting down');
    if (this.#isExhausted() && this.#filling === undefined) throw this.#exhausted();
    const { promise, resolve, reject } = Promise.withResolvers<Slot>();
    const waiter: Waiter = { resolve, reject };
    this.#waiters.add(waiter);
    this.#skipWait();
    const timer = setTimeout(() => {
      const why = this.#lastFailure === undefined ? '' : `: ${this.#lastFailure}`;
      reject(new Error(`no network slot became ready within ${TAKE_DEADLINE_MS} ms${why}`));
    }, TAKE_DEADLINE_MS);
    this.#refill();
    try {
      return await promise;
    } finally {
      clearTimeout(timer);
      this.#waiters.delete(waiter);
    }
  }

  #refill(): void {
    if (this.#filling !== undefined || this.#stop.signal.aborted) return;
    if (this.#missing() === 0) return;
    this.#filling = this.#fill().finally(() => {
      this.#filling = undefined;
      this.#rejectHopeless();
      this.#refill();
    });
  }

  #missing(): number {
    const wanted = this.#ahead + this.#waiters.size - this.#ready.length;
    return Math.min(Math.max(wanted, 0), this.#free.length);
  }

  async #fill(): Promise<void> {
    let delay = RETRY_MS.first;
    while (this.#missing() > 0 && !this.#stop.signal.aborted) {
      await this.#untilDue();
      if (this.#stop.signal.aborted) return;
      const indexes = this.#free.splice(0, Math.min(this.#missing(), MAKE_BATCH));
      try {
        await createSlots(this.#hostd, this.#plan, indexes);
        for (const index of indexes) await this.#store.save({ index, layout: this.#layout });
        for (const index of indexes) this.#giveBack(describeSlot(this.#plan, index));
        delay = RETRY_MS.first;
        this.#lastFailure = undefined;
      } catch (error) {
        this.#lastFailure = error instanceof Error ? error.message : String(error);
        this.#log.error({ err: error, indexes }, 'could not make network slots');
        await this.#discard(indexes);
        this.#free.push(...indexes);
        await sleep(delay, undefined, { signal: this.#stop.signal }).catch(() => {});
        delay = Math.min(delay * 2, RETRY_MS.most);
      }
    }
  }

  /** Starts of VMs need the cores more than spares do, unless one of them waits for a slot. */
  async #untilDue(): Promise<void> {
    if (this.#waiters.size > 0) return;
    const { promise, resolve } = Promise.withResolvers<void>();
    this.#skipWait = resolve;
    const over = new AbortController();
    const signal = AbortSignal.any([this.#stop.signal, over.signal]);
    await Promise.race([promise, this.#idleCapacity(signal).catch(() => undefined)]);
    over.abort();
  }

  async #discard(indexes: readonly number[]): Promise<void> {
    try {
      for (const index of indexes) await this.#store.remove(index);
      await destroySlots(this.#hostd, this.#plan, indexes);
    } catch (error) {
      // The next attempt on these numbers begins with the same error, and start-up removes what is half made.
      this.#log.error({ err: error, indexes }, 'could not remove half-made network slots');
    }
  }

  /** With no slot left to make, waiting callers would wait for ever. */
  #rejectHopeless(): void {
    if (!this.#isExhausted()) return;
    for (const waiter of this.#waiters) waiter.reject(this.#exhausted());
    this.#waiters.clear();
  }

  /** No number is free, and none is about to be. */
  #isExhausted(): boolean {
    if (this.#free.length + this.#withheld.size > 0) return false;
    return ![...this.#held.values()].some((held) => held.releasing !== undefined);
  }

  #exhausted(): Error {
    return new Error(`no free network slot: all ${this.#plan.slots} are taken`);
  }
}

/** What is stored of it. */
function policyOf({ egress, intercept }: TakeOptions): Pick<SlotHolder, 'egress' | 'intercept'> {
  return { ...(egress === undefined ? {} : { egress }), ...(intercept === true ? { intercept } : {}) };
}

function indexesIn(prefix: string, names: readonly string[]): Set<number> {
  return new Set(names.flatMap((name) => indexInName(prefix, name) ?? []));
}
