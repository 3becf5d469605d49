/** Which instance serves which request. */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { FINAL, FULL, RETRY, UNTRIED, World } from './support/version-queue-world.ts';

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
