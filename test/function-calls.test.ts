/** Calls of functions whose handlers run in micro-VMs, at the base URL and at a gateway, also when handlers misbehave. */
import assert from 'node:assert/strict';
import { once } from 'node:events';
import { type IncomingMessage, request } from 'node:http';
import { join } from 'node:path';
import { text } from 'node:stream/consumers';
import { after, before, test } from 'node:test';
import { eventually } from '@releap/testing/eventually';
import type { Service } from '@releap/testing/service';
import { sharedService } from '@releap/testing/shared-service';

const NAME = 'calls';
/** The web server of busybox starts it for each request; what it does is said by the query. */
const PROGRAM = `#!/bin/sh
case "$QUERY_STRING" in
  mode=die) killall -9 httpd ;;
  mode=hang) exec sleep 3600 ;;
  mode=headers) printf 'Content-Type: text/plain\\r\\n\\r\\n'; exec env ;;
  mode=date) printf 'Content-Type: text/plain\\r\\n\\r\\n'; exec date +%s ;;
  mode=events) printf 'Content-Type: text/event-stream\\r\\n\\r\\ndata: one\\n\\n'; exec printf 'data: two\\n\\n' ;;
esac
printf 'Status: 201 Created\\r\\nContent-Type: text/plain\\r\\n\\r\\n'
exec head -c "\${CONTENT_LENGTH:-0}"
`;
const START = `mkdir -p /tmp/www/cgi-bin && printf '%s' "$PROGRAM" > /tmp/www/cgi-bin/index.cgi &&
  chmod +x /tmp/www/cgi-bin/index.cgi && exec httpd -f -p "$RLP_FN_PORT" -h /tmp/www`;

let service: Service;
before(async () => {
  service = await sharedService();
  const { status, body } = await service.call('POST', '/fns', {
    name: NAME,
    image: 'busybox',
    handler: ['sh', '-c', START],
    env: { PROGRAM },
    mem_mib: 128,
    scratch_mib: 64,
    max_instances: 1,
    max_concurrency: 8,
  });
  assert.equal(status, 200, JSON.stringify(body));
  await eventually('a version that can serve', async () => {
    const { body: found } = await service.call<{
      current_version: { template_state: string; template_error?: string };
    }>('GET', `/fns/${NAME}`);
    const { template_state: state } = found.current_version;
    assert.notEqual(state, 'failed', JSON.stringify(found));
    return state === 'published';
  });
});
after(async () => {
  await service?.call('DELETE', `/fns/${NAME}`);
  await service?.[Symbol.asyncDispose]();
});

interface Init {
  mode?: string;
  body?: RequestInit['body'];
  /** Base URL of a gateway. */
  at?: string;
}

/** A busy machine may take longer to start an instance than a call waits. */
async function invoke({
  mode = 'echo',
  body = '',
  at = service.bootstrap.base_url,
}: Init): Promise<Response> {
  return await eventually('a call that finds capacity', async () => {
    const response = await fetch(`${at}/fns/${NAME}/invoke?mode=${mode}`, {
      method: 'POST',
      headers: { authorization: `Bearer ${service.bootstrap.api_key}` },
      body,
    });
    if (response.status !== 429) return response;
    assert.equal(response.headers.get('retry-after'), '5');
    await response.text();
    return false;
  });
}

async function gatewayUrl(): Promise<string> {
  const { body } = await service.call<{ toolbox_proxy_url: string }[]>('GET', '/regions');
  return body[0]?.toolbox_proxy_url.replace(/\/toolbox$/, '') ?? '';
}

test('a call starts an instance, the next one uses it, at the base URL and at a gateway', async () => {
  const cold = await invoke({ body: 'hello' });
  assert.deepEqual(
    [cold.status, cold.headers.get('x-rlp-fn-status'), await cold.text()],
    [200, '201', 'hello'],
  );
  for (const at of [service.bootstrap.base_url, await gatewayUrl()]) {
    const warm = await invoke({ body: 'again', at });
    assert.deepEqual([warm.headers.get('x-rlp-cold'), await warm.text()], ['0', 'again']);
  }
  const { body } = await service.call<{ vms: unknown[] }>('GET', '/vms');
  assert.deepEqual(body.vms, [], 'tenants do not see instances');
});

test('large bodies pass, larger ones are refused, events are streamed, credentials stay outside', async () => {
  const large = Buffer.alloc(6 * 1024 * 1024, 'x');
  const echoed = await invoke({ body: large });
  assert.equal((await echoed.arrayBuffer()).byteLength, large.length);
  assert.equal((await invoke({ body: Buffer.alloc(large.length + 1) })).status, 400);
  const events = await invoke({ mode: 'events' });
  assert.equal(events.headers.get('content-type'), 'text/event-stream');
  assert.equal(await events.text(), 'data: one\n\ndata: two\n\n');
  const headers = await (await invoke({ mode: 'headers' })).text();
  assert.equal(headers.includes(service.bootstrap.api_key), false, headers);
  assert.match(headers, /HTTP_X_RLP_INVOCATION_ID=[0-9a-f-]{36}/);
});

test('a handler that dies or hangs fails its own calls only', async () => {
  const failed = await invoke({ mode: 'die', body: 'x' });
  assert.equal(failed.status, 502);
  assert.match(((await failed.json()) as { error: string }).error, /closed the connection/);
  // Until its end is noticed, calls may still be sent to it.
  await eventually(
    'another instance',
    async () => (await (await invoke({ body: 'next' })).text()) === 'next',
  );
  const config = await service.call('PATCH', `/fns/${NAME}/config`, { timeout_s: 2 });
  assert.equal(config.status, 200, JSON.stringify(config.body));
  await eventually('the new bound', async () => (await invoke({ mode: 'hang', body: 'x' })).status === 504);
  await service.call('PATCH', `/fns/${NAME}/config`, { timeout_s: 300 });
  assert.equal(await (await invoke({ body: 'next' })).text(), 'next');
  await eventually('all calls in the log', async () => {
    const { body } = await service.call<{ invocations: { status: string }[] }>(
      'GET',
      `/fns/${NAME}/invocations`,
    );
    const statuses = new Set(body.invocations.map(({ status }) => status));
    return ['succeeded', 'failed', 'timeout'].every((status) => statuses.has(status));
  });
});

test('a public endpoint is open to its token alone, until that is replaced', async () => {
  const enable = async (enabled: boolean): Promise<{ url: string; token: string }> => {
    const { status, body } = await service.call<{ url: string; token: string }>(
      'POST',
      `/fns/${NAME}/public`,
      {
        enabled,
        require_token: true,
      },
    );
    assert.equal(status, 200, JSON.stringify(body));
    return body;
  };
  const { url, token } = await enable(true);
  const address = new URL(url, service.bootstrap.base_url);
  const open = (given?: string): Promise<Response> =>
    fetch(address, {
      method: 'POST',
      headers: { ...(given !== undefined && { authorization: `Bearer ${given}` }) },
      body: 'public',
    });
  const statusWith = (expected: number, given?: string): Promise<Response> =>
    eventually(`status ${expected}`, async () => {
      const response = await open(given);
      return response.status === expected && response;
    });
  assert.equal(await (await statusWith(201, token)).text(), 'public');
  assert.equal((await open()).status, 401);
  await enable(false);
  await statusWith(404, token);
  const { token: newer } = await enable(true);
  await statusWith(201, newer);
  assert.equal((await open(token)).status, 401);
  const preflight = await fetch(address, { method: 'OPTIONS' });
  assert.deepEqual([preflight.status, preflight.headers.get('access-control-allow-origin')], [204, '*']);
});

test('an idle instance is frozen; the next call finds it with the right time', async () => {
  await (await invoke({ body: 'x' })).text();
  const frozen = /^releap_function_instances\{state="frozen"\} [1-9]/m;
  await eventually('a frozen instance', async () => frozen.test(await gatewayMetrics()));
  const before = Date.now();
  const answer = await invoke({ mode: 'date' });
  const seconds = Number(await answer.text());
  assert.equal(answer.headers.get('x-rlp-cold'), '0');
  // The guest's clock was stopped; whole seconds are rounded down.
  assert.ok(seconds > before / 1000 - 2 && seconds < Date.now() / 1000 + 2, `${seconds} at ${before / 1000}`);
});

async function gatewayMetrics(): Promise<string> {
  const asked = request({ socketPath: join(service.home, 'run/gateway.sock'), path: '/metrics' }).end();
  const [answer] = (await once(asked, 'response')) as [IncomingMessage];
  return await text(answer);
}
