/** Calls of functions that no client waits for, with real instances. */
import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import { eventually } from '@releap/testing/eventually';
import { isNightly } from '@releap/testing/repetitions';
import type { Service } from '@releap/testing/service';
import { sharedService } from '@releap/testing/shared-service';
import { deployEcho, readInvocation } from './support/echo-function.ts';

const NAME = 'echo-async';
let service: Service;
before(async () => {
  service = await sharedService();
  await deployEcho(service, NAME, { max_concurrency: 4, max_instances: 1 });
});
after(async () => {
  await service?.call('DELETE', `/fns/${NAME}`);
  await service?.[Symbol.asyncDispose]();
});

const ended = (id: string) =>
  eventually(`invocation ${id} has ended`, async () => {
    const found = await readInvocation(service, id);
    return found.done && found;
  });

test('a spawn of a function that does not run starts an instance, and has the result of its handler', async () => {
  let spawns = 0;
  const found = await eventually('a spawn that finds capacity in time', async () => {
    spawns += 1;
    const { status, body } = await service.call<{ invocation_id: string }>('POST', `/fns/${NAME}/spawn`, {
      n: 12345,
    });
    assert.equal(status, 200, JSON.stringify(body));
    const one = await ended(body.invocation_id);
    // Emulated guests of a busy machine take longer to start than an invocation waits.
    return one.status !== 'shed' && one;
  });
  assert.deepEqual(
    [found.status, found.result, found.version, found.error],
    ['succeeded', { n: 12345 }, 1, null],
  );
  // What an earlier one has started, and did not wait for, may run by now.
  if (spawns === 1) assert.equal(found.cold, true);
});

test('a map runs each payload once, on an instance that runs already', async () => {
  const payloads = Array.from({ length: 50 }, (_, n) => ({ n }));
  const { status, body } = await service.call<{ invocation_ids: string[] }>('POST', `/fns/${NAME}/map`, {
    payloads,
  });
  assert.equal(status, 200, JSON.stringify(body));
  const all = await Promise.all(body.invocation_ids.map((id) => ended(id)));
  assert.deepEqual(
    all.map(({ result }) => result),
    payloads,
  );
  assert.ok(all.some(({ cold }) => cold === false));
});

test('a schedule calls the function in its minute', { skip: !isNightly() }, async () => {
  const created = await service.call<{ id: string }>('POST', `/fns/${NAME}/schedules`, {
    cron: '* * * * *',
    payload: 'scheduled',
  });
  assert.equal(created.status, 200, JSON.stringify(created.body));
  const [id] = await eventually('a fire', async () => {
    const { body } = await service.call<{ invocations: { id: string; status: string }[] }>(
      'GET',
      `/fns/${NAME}/invocations?limit=60`,
    );
    const known = await Promise.all(body.invocations.map((one) => readInvocation(service, one.id)));
    const fires = body.invocations.filter((_, at) => known[at]?.result === 'scheduled');
    return fires.length > 0 && fires.map((one) => one.id);
  });
  assert.equal((await readInvocation(service, id ?? '')).status, 'succeeded');
  assert.equal((await service.call('DELETE', `/fns/${NAME}/schedules/${created.body.id}`)).status, 204);
});
