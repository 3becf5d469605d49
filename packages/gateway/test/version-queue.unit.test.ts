/** Which instance serves which request: under any order of arrivals, starts, failures and ends. */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { badGateway, NotTriedYet, overloaded } from '@releap/contract';
import { propertyRuns } from '@releap/testing/repetitions';
import * as fc from 'fast-check';
import { type InstanceFailure, type RequestEnd, VersionQueue } from '../src/functions/version-queue.ts';

const RETRY: InstanceFailure = { error: badGateway('it ended'), kind: 'retry' };
const FULL: InstanceFailure = { error: overloaded('no host has capacity'), kind: 'capacity' };
const UNTRIED: InstanceFailure = { error: new NotTriedYet('its image is being made'), kind: 'untried' };
const FINAL: InstanceFailure = { error: badGateway('the handler ended with status 1'), kind: 'final' };

interface Running {
  state: 'starting' | 'ready' | 'checked' | 'frozen' | 'thawing';
  requests: Map<number, { sentAt: number }>;
}

/** A queue, and instances that do what a test says. */
class World {
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

test('a request waits for the instance that it starts, and is cold; the next one is warm', () => {
  const world = new World();
  const first = world.submit();
  assert.equal(world.starts, 1);
  world.ready();
  world.done(first);
  world.submit();
  assert.deepEqual(
    world.sent.map(({ instance, isCold }) => [instance, isCold]),
    [
      [1, true],
      [1, false],
    ],
  );
  assert.equal(world.starts, 1);
});

test('requests that wait are served by whichever instance comes first', () => {
  const world = new World();
  const requests = [world.submit(), world.submit(), world.submit()];
  assert.equal(world.starts, 2, 'two starts while none runs');
  world.ready();
  for (const request of requests.slice(0, 2)) world.done(request);
  assert.deepEqual(
    world.sent.map(({ request }) => request),
    requests,
  );
});

test('the least loaded instance is preferred, and then the one that served last', () => {
  const world = new World({ concurrency: 2 });
  for (let count = 0; count < 4; count++) world.submit();
  world.ready(1);
  world.ready(2);
  world.pass(1);
  world.done(1);
  world.pass(1);
  world.done(3);
  world.done(4);
  assert.equal(world.sent.length, 4);
  world.submit();
  assert.equal(world.sent.at(-1)?.instance, 2);
  world.submit();
  world.submit();
  assert.deepEqual(
    [...world.instances.values()].map(({ requests }) => requests.size),
    [2, 2],
  );
});

test('a request that waits too long is given up, a patient one only while there is no instance', () => {
  const world = new World({ maxInstances: 1 });
  const served = world.submit();
  world.ready();
  const patient = world.submit(true);
  const usual = world.submit();
  world.pass(29_000);
  assert.equal(world.waiting.size, 2);
  world.pass(1_000);
  assert.deepEqual([[...world.expired.keys()], [...world.waiting.keys()]], [[usual], [patient]]);
  world.pass(100_000);
  world.done(served);
  assert.equal(world.sent.at(-1)?.request, patient);
  world.queue.failed(1, world.now, RETRY);
  const last = world.submit(true);
  world.fail(FULL);
  world.pass(30_100);
  assert.deepEqual(world.expired.get(last), FULL);
});

test('while the version is tried a patient request waits, and others are told', () => {
  const world = new World();
  const [patient, usual] = [world.submit(true), world.submit()];
  for (let round = 0; round < 1_000; round++) {
    if (world.first('starting') !== 0) world.fail(UNTRIED);
    world.pass(100);
  }
  assert.deepEqual([...world.expired], [[usual, UNTRIED]]);
  assert.deepEqual([...world.waiting.keys()], [patient]);
  assert.deepEqual(world.refused.size, 0);
  while (world.first('starting') === 0) world.pass(100);
  world.ready();
  assert.equal(world.sent[0]?.request, patient);
});

test('without capacity it tries again, ever less often', () => {
  const world = new World();
  const request = world.submit();
  for (let round = 0; round < 40; round++) {
    if (world.first('starting') !== 0) world.fail(FULL);
    world.pass(100);
  }
  assert.ok(world.starts > 2 && world.starts < 20, `${world.starts} starts`);
  while (world.first('starting') === 0) world.pass(100);
  world.ready();
  assert.equal(world.sent[0]?.request, request);
});

test('a handler that does not start refuses what waits for it, but not while another instance serves', () => {
  const world = new World();
  const lost = world.submit();
  world.fail(FINAL);
  assert.equal(world.refused.get(lost), FINAL.error.message);
  world.pass(5_000);
  const first = world.submit();
  world.ready();
  const second = world.submit();
  world.fail(FINAL);
  assert.equal(world.refused.size, 1);
  world.done(first);
  assert.equal(world.sent.at(-1)?.request, second);
});

test('an instance that loses a connection gets no request until it is known to serve', () => {
  const world = new World({ concurrency: 2, maxInstances: 1 });
  const first = world.submit();
  world.submit();
  world.ready();
  world.done(first, 'broken');
  const next = world.submit();
  assert.equal(
    world.sent.some(({ request }) => request === next),
    false,
  );
  world.ready(world.first('checked'));
  assert.equal(world.sent.at(-1)?.request, next);
  assert.equal(world.sent.at(-1)?.isCold, false);
});

test('an instance that hangs is discarded, one that answers others is not', () => {
  const world = new World({ concurrency: 2, maxInstances: 1 });
  const slow = world.submit();
  const other = world.submit();
  world.pass(10);
  world.ready();
  world.pass(10);
  world.done(other);
  world.done(slow, 'hung');
  assert.equal(world.stopped.length, 0);
  const hanging = world.submit();
  world.pass(10);
  world.done(hanging, 'hung');
  assert.deepEqual(world.stopped, [{ instance: 1, discard: true }]);
});

test('idle instances end after their time, at pressure and with a newer version', () => {
  const world = new World();
  for (let count = 0; count < 2; count++) world.submit();
  world.ready();
  world.ready();
  world.done(1);
  world.queue.giveUpIdle(world.now);
  assert.equal(world.stopped.length, 1);
  world.pass(1_000);
  world.done(2);
  world.pass(1_999);
  assert.equal(world.stopped.length, 1);
  world.pass(1);
  assert.deepEqual(world.stopped, [
    { instance: 1, discard: false },
    { instance: 2, discard: false },
  ]);
  const old = world.submit();
  world.ready();
  world.queue.supersede(world.now);
  assert.equal(world.instances.size, 1);
  world.done(old);
  assert.equal(world.queue.isEmpty, true);
});

test('an instance that served nothing for the grace is frozen, and thawed for the next request', () => {
  const world = new World({ graceMs: 1_000, maxInstances: 1 });
  const first = world.submit();
  world.ready();
  world.pass(5_000);
  assert.equal(world.first('ready'), 1, 'one with a request runs on');
  world.done(first, 'cancelled');
  world.pass(900);
  const busy = world.submit();
  assert.equal(world.sent.at(-1)?.request, busy);
  world.done(busy);
  world.pass(1_000);
  assert.equal(world.first('frozen'), 1);
  assert.deepEqual(world.queue.load().instances, { starting: 0, serving: 0, frozen: 1, ending: 0 });
  const next = world.submit();
  assert.equal(world.first('thawing'), 1);
  assert.deepEqual([world.sent.length, world.starts], [2, 1]);
  world.ready(1);
  assert.deepEqual([world.sent.at(-1)?.request, world.sent.at(-1)?.isCold], [next, false]);
  world.done(next);
  world.pass(1_000);
  world.pass(1_000);
  assert.deepEqual(world.stopped, [{ instance: 1, discard: false }], 'its time passes while it is frozen');
});

test('the grace is ten times what the last request is charged, a moment at least', () => {
  for (const [servedMs, graceMs] of [
    [0, 20],
    [1, 20],
    [5, 50],
    [60, 600],
    [100, 1_000],
    [3_600_000, 1_000],
  ] as const) {
    const world = new World({ graceMs: 1_000, maxInstances: 1 });
    world.submit();
    world.ready();
    world.now += servedMs;
    world.done(1);
    const at = world.now + graceMs;
    assert.equal(world.queue.freezeAt(1), at);
    assert.equal(world.queue.freezeIdle(at - 1), at);
    assert.equal(world.first('frozen'), 0);
    assert.equal(world.queue.freezeIdle(at), Infinity);
    assert.equal(world.first('frozen'), 1);
    assert.equal(world.queue.freezeAt(1), Infinity);
  }
});

test('an instance that is thawed for a request that is gone is frozen again in a moment', () => {
  const world = new World({ graceMs: 1_000, maxInstances: 1 });
  world.submit();
  world.ready();
  world.now += 5_000;
  world.done(1);
  world.pass(1_000);
  const gone = world.submit();
  world.cancel(gone);
  world.ready(1);
  assert.equal(world.queue.freezeAt(1), world.now + 20);
});

test('requests thaw as many instances as they need, and one that cannot be thawed is replaced', () => {
  const world = new World({ graceMs: 100, concurrency: 2 });
  const requests = Array.from({ length: 6 }, () => world.submit());
  for (const _ of [1, 2, 3]) world.ready();
  for (const request of requests) world.done(request);
  world.pass(100);
  const states = () => [...world.instances.values()].map(({ state }) => state).toSorted();
  assert.deepEqual(states(), ['frozen', 'frozen', 'frozen']);
  for (let count = 0; count < 3; count++) world.submit();
  assert.deepEqual(states(), ['frozen', 'thawing', 'thawing']);
  world.fail(RETRY, world.first('thawing'));
  assert.deepEqual(states(), ['thawing', 'thawing'], 'another one is thawed instead');
  world.fail(RETRY, world.first('thawing'));
  assert.deepEqual(states(), ['starting', 'thawing']);
  world.ready(world.first('thawing'));
  world.ready();
  assert.equal(world.sent.length, 9);
  assert.equal(
    world.stopped.every(({ discard }) => discard),
    true,
  );
});

test('a frozen instance is given up for others, and for a newer version', () => {
  for (const giveUp of ['giveUpIdle', 'supersede'] as const) {
    const world = new World({ graceMs: 100 });
    const request = world.submit();
    world.ready();
    world.done(request);
    world.pass(100);
    world.queue[giveUp](world.now);
    assert.deepEqual(world.stopped, [{ instance: 1, discard: false }]);
  }
});

test('many requests at once start a quarter of the instances that they need', () => {
  const world = new World({ concurrency: 5 });
  for (let count = 0; count < 200; count++) world.submit();
  assert.equal(world.starts, 10);
});

test('an instance that is given up gets no further request, and ends with its last one', () => {
  const world = new World({ concurrency: 2 });
  const served = world.submit();
  world.ready();
  world.queue.retire(1, world.now);
  const next = world.submit();
  assert.equal(world.stopped.length, 0);
  world.ready();
  assert.deepEqual(
    world.sent.map(({ request, instance }) => [request, instance]),
    [
      [served, 1],
      [next, 2],
    ],
  );
  assert.deepEqual(world.queue.load(), {
    served: 2,
    instances: { starting: 0, serving: 1, frozen: 0, ending: 1 },
  });
  world.done(served);
  assert.deepEqual(world.stopped, [{ instance: 1, discard: true }]);
  world.done(next);
  world.queue.retire(2, world.now);
  world.queue.retire(2, world.now);
  assert.deepEqual(world.stopped[1], { instance: 2, discard: true });
  assert.equal(world.queue.isEmpty, true);
});

test('whatever happens: no instance is overloaded, the order is kept, and nothing is lost or left', () => {
  const end = fc.constantFrom<RequestEnd>('good', 'good', 'good', 'cancelled', 'broken', 'hung');
  const step = fc.oneof(
    { weight: 6, arbitrary: fc.record({ do: fc.constant('submit' as const), patient: fc.boolean() }) },
    { weight: 5, arbitrary: fc.record({ do: fc.constant('done' as const), at: fc.nat(20), end }) },
    { weight: 4, arbitrary: fc.record({ do: fc.constant('ready' as const), at: fc.nat(20) }) },
    { weight: 2, arbitrary: fc.record({ do: fc.constant('pass' as const), ms: fc.nat(4_000) }) },
    { weight: 1, arbitrary: fc.record({ do: fc.constant('cancel' as const), at: fc.nat(20) }) },
    {
      weight: 1,
      arbitrary: fc.record({
        do: fc.constant('fail' as const),
        at: fc.nat(20),
        how: fc.constantFrom(RETRY, FULL, UNTRIED, FINAL),
      }),
    },
    { weight: 1, arbitrary: fc.record({ do: fc.constant('usable' as const), at: fc.nat(20) }) },
    {
      weight: 1,
      arbitrary: fc.constantFrom({ do: 'pressure' as const }, { do: 'supersede' as const }),
    },
  );
  const shape = fc.record({
    concurrency: fc.integer({ min: 1, max: 3 }),
    maxInstances: fc.constantFrom(null, 1, 2, 5),
    graceMs: fc.constantFrom(0, 500, Infinity),
  });
  fc.assert(
    fc.property(shape, fc.array(step, { maxLength: 80, size: 'max' }), (config, steps) => {
      const world = new World(config);
      const submitted: number[] = [];
      const cancelled = new Set<number>();
      const pick = (ids: number[], at: number): number | undefined => ids[at % Math.max(1, ids.length)];
      const running = (): number[] =>
        [...world.instances.values()].flatMap(({ requests }) => [...requests.keys()]);
      for (const one of steps) {
        const ids = [...world.instances.keys()];
        switch (one.do) {
          case 'submit':
            submitted.push(world.submit(one.patient));
            break;
          case 'done': {
            const request = pick(running(), one.at);
            if (request !== undefined) world.done(request, one.end);
            break;
          }
          case 'ready': {
            const id = pick(
              ids.filter((key) => !['ready', 'frozen'].includes(world.instances.get(key)?.state ?? '')),
              one.at,
            );
            if (id !== undefined) world.ready(id);
            break;
          }
          case 'fail': {
            const id = pick(ids, one.at);
            if (id !== undefined) world.fail(one.how, id);
            break;
          }
          case 'cancel': {
            const request = pick([...world.waiting.keys()], one.at);
            if (request === undefined) break;
            cancelled.add(request);
            world.cancel(request);
            break;
          }
          case 'usable': {
            const id = pick(ids, one.at);
            if (id === undefined) break;
            if (!world.unusable.delete(id)) world.unusable.add(id);
            break;
          }
          case 'pass':
            world.pass(one.ms);
            break;
          case 'pressure':
            world.queue.giveUpIdle(world.now);
            break;
          case 'supersede':
            world.queue.supersede(world.now);
        }
      }
      // From now on all starts succeed and all requests end: everything empties by itself.
      world.unusable.clear();
      for (let round = 0; round < 300 && !world.queue.isEmpty; round++) {
        for (const [id, { state }] of world.instances)
          if (state !== 'ready' && state !== 'frozen') world.ready(id);
        for (const request of running()) world.done(request);
        world.pass(1_000);
      }
      assert.ok(world.queue.isEmpty, 'something is left');
      assert.equal(world.instances.size, 0, 'an instance is left');
      const ends = [
        ...world.sent.map(({ request }) => request),
        ...world.refused.keys(),
        ...world.expired.keys(),
        ...cancelled,
      ];
      assert.deepEqual(
        ends.toSorted((a, b) => a - b),
        submitted,
        'each ends once',
      );
    }),
    { numRuns: propertyRuns(3_000) },
  );
});
