/** What the facade does not have, and what the deployment does not allow. These tests restart it with other settings. */
import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { COMPAT_PREFIX, UNSUPPORTED_OPERATIONS } from '@releap/contract';
import { sdk, type Untyped } from '@releap/testing/daytona';
import { refused } from '../support/compat.ts';
import { call, world } from '../support/compat-sandboxes.ts';

describe('what the facade does not have', () => {
  it('answers 501 with the name of the operation, also for unlisted routes and other methods', async () => {
    for (const { method, path, name } of UNSUPPORTED_OPERATIONS) {
      const message = await refused(call(method, path.replaceAll(/:\w+/g, '1')), 501);
      assert.ok(message.startsWith(`${name} is not supported`), message);
    }
    for (const [method, path] of [
      ['GET', '/'],
      ['PUT', '/sandbox'],
      ['PATCH', '/snapshots/x'],
      ['GET', '/config'],
    ] as const)
      assert.match(await refused(call(method, path), 501), new RegExp(`^${method} ${path}`));
    assert.match(await refused(call('GET', '//sandbox'), 501), /slash at the end of apiUrl/);
    assert.match(await refused(call('GET', '/sandbox/%ff'), 400), /not a valid URL path/);
  });

  it('needs an API key of a project', async () => {
    for (const key of [undefined, 'rlp_x'])
      for (const path of ['/sandbox', '/volumes', '/snapshots/x'])
        await refused(
          call('GET', path, undefined, {
            headers: { authorization: key === undefined ? '' : `Bearer ${key}` },
          }),
          401,
        );
  });
});

it('refuses creates without credits with 402, and a full queue with 429, as errors of the SDK with headers', async () => {
  const thrown = async (): Promise<Untyped> => {
    const client = new sdk.Daytona({ apiKey: call.key, apiUrl: world.url + COMPAT_PREFIX });
    return await client.create({ snapshot: 'busybox' }).then(assert.fail, (error: unknown) => error);
  };
  await world.restart({ billing: { mode: 'enforce' } });
  const poor = await thrown();
  assert.deepEqual(
    [poor.constructor, poor.statusCode, poor.errorCode],
    [sdk.DaytonaError, 402, 'PAYMENT_REQUIRED'],
  );
  assert.match(poor.message, /out of credits/);
  assert.ok(poor.headers['x-request-id']);

  await world.restart({ limits: { createQueue: 0 } });
  const busy = await thrown();
  assert.deepEqual(
    [busy.constructor, busy.statusCode, busy.errorCode, busy.headers['retry-after']],
    [sdk.DaytonaRateLimitError, 429, 'TOO_MANY_REQUESTS', '2'],
  );
  const { headers, body } = await call('POST', '/sandbox', {});
  assert.deepEqual([headers.get('retry-after'), body.retry_after_secs], ['2', 2]);
  await world.restart();
});

it('refuses a create without a source when the deployment has no default', async () => {
  await world.restart({ compatSnapshot: undefined });
  assert.match(await refused(call('POST', '/sandbox', {}), 400), /snapshot or image is required/);
});
