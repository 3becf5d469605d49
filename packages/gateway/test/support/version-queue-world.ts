/** A queue of a version, with instances that a test starts, ends and breaks; every call of the queue is checked against them. */
import assert from 'node:assert/strict';
import { badGateway, NotTriedYet, overloaded } from '@releap/contract';
import { type InstanceFailure, type RequestEnd, VersionQueue } from '../../src/functions/version-queue.ts';

export const RETRY: InstanceFailure = { error: badGateway('it ended'), kind: 'retry' };
export const FULL: InstanceFailure = { error: overloaded('no host has capacity'), kind: 'capacity' };
export const UNTRIED: InstanceFailure = {
  error: new NotTriedYet('its image is being made'),
  kind: 'untried',
};
export const FINAL: InstanceFailure = { error: badGateway('the handler ended with status 1'), kind: 'final' };

interface Running {
  state: 'starting' | 'ready' | 'checked' | 'frozen' | 'thawing';
  requests: Map<number, { sentAt: number }>;
}

/** A queue, and instances that do what a test says. */
export class World {
  now = 1_000;
  readonly config;
  readonly queue: VersionQueue<number>;
  readonly instances = new Map<number, Running>();
  readonly unusable = new Set<number>();
  /** Requests in the order in which they were sent. */
  readonly sent: { request: number; instance: number; isCold: boolean; at: number }[] = [];
  readonly refused = new Map<number, string>();
  readonly expired = new Map<number, InstanceFailure | undefined>();
  readonly stopped: { instance: number; discard: boolean }[] = [];
  /** Those that wait, in order. */
  readonly waiting = new Map<number, number>();
  starts = 0;
  #next = 1;

  constructor(config: { concurrency?: number; maxInstances?: number | null; graceMs?: number } = {}) {
    const usual = { concurrency: 1, maxInstances: null, idleMs: 2_000, graceMs: Infinity, queueMs: 30_000 };
    this.config = { ...usual, ...config };
    this.queue = new VersionQueue<number>(
      this.config,
      {
        start: (id) => {
          this.starts++;
          this.instances.set(id, { state: 'starting', requests: new Map() });
          const { maxInstances, concurrency } = this.config;
          assert.ok(this.instances.size <= (maxInstances ?? Infinity), 'more instances than allowed');
          const starting = [...this.instances.values()].filter(({ state }) => state === 'starting').length;
          const wanted = Math.ceil(this.queue.waiting / concurrency);
          assert.ok(starting <= wanted, 'more starts than are wanted');
          const most = Math.max(2, this.instances.size - starting, Math.ceil(wanted / 4));
          assert.ok(starting <= most, 'too many starts at a time');
          const isLeft = [...this.instances].some(
            ([key, { state }]) => state === 'frozen' && !this.unusable.has(key),
          );
          assert.equal(isLeft, false, 'an instance starts while a frozen one is left');
        },
        send: (request, id, isCold) => {
          const instance = this.instances.get(id);
          assert.equal(instance?.state, 'ready');
          assert.equal(this.unusable.has(id), false);
          assert.equal([...this.waiting.keys()][0], request, 'not the oldest one');
          this.waiting.delete(request);
          instance?.requests.set(request, { sentAt: this.now });
          assert.ok((instance?.requests.size ?? 0) <= this.config.concurrency, 'more than it takes');
          this.sent.push({ request, instance: id, isCold, at: this.now });
        },
        refuse: (request, error) => {
          assert.ok(this.waiting.delete(request));
          this.refused.set(request, error.message);
        },
        expire: (request, failure) => {
          assert.ok(this.waiting.delete(request));
          this.expired.set(request, failure);
        },
        stop: (id, discard) => {
          assert.ok(this.instances.delete(id), 'stopped twice');
          this.stopped.push({ instance: id, discard });
        },
        check: (id) => {
          const instance = this.instances.get(id);
          assert.ok(instance);
          instance.state = 'checked';
        },
        freeze: (id) => {
          const instance = this.instances.get(id);
          assert.deepEqual([instance?.state, instance?.requests.size], ['ready', 0]);
          if (instance !== undefined) instance.state = 'frozen';
        },
        thaw: (id) => {
          const instance = this.instances.get(id);
          assert.equal(instance?.state, 'frozen');
          if (instance !== undefined) instance.state = 'thawing';
        },
      },
      (id) => !this.unusable.has(id),
    );
  }

  submit(isPatient = false): number {
    const request = this.#next++;
    this.waiting.set(request, this.now);
    this.#tickets.set(request, this.queue.submit(request, this.now, isPatient));
    return request;
  }
  readonly #tickets = new Map<number, number>();

  cancel(request: number): void {
    this.waiting.delete(request);
    this.queue.cancel(this.#tickets.get(request) ?? 0);
  }

  ready(id = this.first('starting')): void {
    const instance = this.instances.get(id);
    assert.ok(instance);
    instance.state = 'ready';
    this.queue.ready(id, this.now);
  }

  fail(failure: InstanceFailure, id = this.first('starting')): void {
    this.queue.failed(id, this.now, failure);
  }

  done(request: number, end: RequestEnd = 'good'): void {
    for (const [id, { requests }] of this.instances) {
      const found = requests.get(request);
      if (found === undefined) continue;
      requests.delete(request);
      this.queue.done(id, this.now, end, this.now - found.sentAt, found.sentAt);
    }
  }

  pass(ms: number): void {
    this.now += ms;
    this.queue.tick(this.now);
  }

  first(state: Running['state']): number {
    for (const [id, instance] of this.instances) if (instance.state === state) return id;
    return 0;
  }

  get isBusy(): boolean {
    return [...this.instances.values()].some(({ requests }) => requests.size > 0);
  }
}
