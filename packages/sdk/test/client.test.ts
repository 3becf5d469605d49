/** The client against a real control plane and a runner that follows a script. */
import assert from 'node:assert/strict';
import { createServer } from 'node:http';
import { test } from 'node:test';
import { IDEMPOTENCY_HEADER, parseSandboxId } from '@releap/contract';
import { startWorld } from '@releap/testing/world';
import {
  client,
  findSandbox,
  openService,
  operations,
  type RawAnswer,
  ReleapError,
  waitUntilDeleted,
  waitUntilRunning,
} from '../src/index.ts';

const world = await startWorld();
const runner = await world.runner();

function connect(options: Partial<Parameters<typeof client>[1]> = {}) {
  return client(operations, { baseUrl: world.url, credential: world.call.key, ...options });
}

test('a sandbox is created, awaited, listed and deleted, with the types of the schemas', async () => {
  const api = connect();
  const created = await api.createSandbox({ body: { image: 'busybox', name: 'from the client' } });
  const running = await api.getSandbox({
    params: { id: created.vm_id },
    query: { wait: 'running', timeout_ms: 20_000 },
  });
  assert.equal(running.status satisfies string, 'running');
  const { vms, next_cursor: cursor } = await api.listSandboxes({ query: { limit: 1, cursor: undefined } });
  assert.deepEqual([vms.map(({ id }) => id), cursor], [[created.vm_id], null]);
  // @ts-expect-error -- the contract has no such status
  await assert.rejects(api.getSandbox({ params: { id: created.vm_id }, query: { wait: 'asleep' } }), {
    status: 400,
  });
  assert.equal((await api.deleteSandbox({ params: { id: created.vm_id } })).vm_id, created.vm_id);
});

test('a sandbox is found by its name and awaited; what does not come is pending, and what is missing says what it is', async () => {
  const stop = new AbortController();
  const service = openService({ url: world.url, apiKey: world.call.key, signal: stop.signal });
  const { vm_id: id } = await service.api.createSandbox({ body: { image: 'busybox', name: 'awaited' } });
  const seen: string[] = [];
  const running = await waitUntilRunning(service, id, {
    deadlineMs: 20_000,
    onStatus: (status) => seen.push(status),
  });
  assert.deepEqual([running.status, seen.at(-1)], ['running', 'running']);
  assert.equal((await findSandbox(service, 'awaited')).id, id);
  await assert.rejects(waitUntilDeleted(service, id, { deadlineMs: 0 }), { kind: 'pending' });
  await service.api.deleteSandbox({ params: { id } });
  await waitUntilDeleted(service, id, { deadlineMs: 20_000 });
  const missing = { name: 'ReleapError', kind: 'missing', status: 404, resource: 'sandbox' };
  await assert.rejects(findSandbox(service, 'awaited'), missing);
  stop.abort();
  await assert.rejects(findSandbox(service, 'awaited'), { kind: 'aborted' });
  await assert.rejects(findSandbox(service.withSignal(AbortSignal.timeout(20_000)), 'awaited'), missing);
});

test('an answer without a body is undefined; names in a path are escaped', async () => {
  const api = connect();
  const answer: undefined = await api.deleteRegistry({ params: { host: 'registry.example.com:5000' } });
  assert.equal(answer, undefined);
  await assert.rejects(api.getSecret({ params: { name: 'a/b?c' } }), { status: 404, kind: 'refused' });
});

test('a refusal is a ReleapError with the status and the sentence of the service', async () => {
  const refused = await connect()
    .getSandbox({ params: { id: 'none' } })
    .catch((error: unknown) => error);
  assert.ok(refused instanceof ReleapError);
  assert.deepEqual(
    [refused.kind, refused.status, refused.message],
    ['refused', 404, 'sandbox "none" not found'],
  );
  await assert.rejects(connect({ credential: 'rlp_no' }).listSandboxes(), { status: 401 });
  await assert.rejects(connect({ credential: () => Promise.resolve('rlp_no') }).listSandboxes(), {
    status: 401,
  });
});

test('mapError replaces what is thrown', async () => {
  const api = connect({ mapError: ({ status }) => new RangeError(`status ${status}`) });
  await assert.rejects(api.getSandbox({ params: { id: 'none' } }), new RangeError('status 404'));
});

test('a log is streamed', async () => {
  const api = connect();
  const { vm_id: id } = await api.createSandbox({ body: { image: 'busybox' } });
  await api.getSandbox({ params: { id }, query: { wait: 'running' } });
  const uuid = parseSandboxId(id)?.uuid ?? '';
  runner.logs.set(`/vms/${uuid}/logs/console`, (_request, response) => {
    response.write('line 1\n');
    setTimeout(() => response.end('line 2\n'), 50);
  });
  const answer: RawAnswer = await api.getConsoleLog({ params: { id } });
  assert.equal(await answer.text(), 'line 1\nline 2\n');
});

test('a raw body that stalls is a timeout', async () => {
  const body = new ReadableStream<Uint8Array>({ start: (stream) => stream.enqueue(Buffer.from('begun')) });
  const api = connect({ fetch: () => Promise.resolve(new Response(body)) });
  const answer = await api.getConsoleLog({ params: { id: 'any' } }, { idleMs: 30 });
  await assert.rejects(answer.text(), { name: 'ReleapError', kind: 'timeout' });
});

test('a call that repeats itself after 503 sends one Idempotency-Key, so that one sandbox comes of it', async () => {
  const keys: (string | null)[] = [];
  const refused: string[] = [];
  const api = connect({
    fetch: async (url, init) => {
      keys.push(new Headers(init.headers).get(IDEMPOTENCY_HEADER));
      const answer = await fetch(url, init);
      // The first answer is lost on the way.
      return keys.length === 1
        ? new Response('{"error":"away"}', { status: 503, headers: { 'retry-after': '0.01' } })
        : answer;
    },
  });
  const { vm_id: id } = await api.createSandbox(
    { body: { image: 'busybox', name: 'once' } },
    { retry: { attempts: 3, onRefusal: ({ message }) => refused.push(message) } },
  );
  assert.deepEqual([keys.length, new Set(keys).size, refused], [2, 1, ['away']]);
  const { vms } = await api.listSandboxes().catch((error: unknown) => assert.fail(String(error)));
  assert.deepEqual(
    vms.filter(({ name }) => name === 'once').map((one) => one.id),
    [id],
  );
});

test('a write is not repeated unless it says so, and no more often than it says', async () => {
  let calls = 0;
  const api = connect({
    retryReads: { attempts: 3 },
    fetch: () => {
      calls++;
      return Promise.resolve(
        new Response('{"error":"full"}', {
          status: 429,
          headers: { 'retry-after': '0.001', 'x-request-id': 'r1' },
        }),
      );
    },
  });
  const full = { status: 429, retryAfterSecs: 0.001, requestId: 'r1', message: 'full' };
  await assert.rejects(api.createSandbox({ body: { image: 'busybox' } }), full);
  assert.equal(calls, 1);
  await assert.rejects(api.listSandboxes(), full);
  assert.equal(calls, 4);
});

test('a refusal has its code, and one that says that it is final is not repeated', async () => {
  let calls = 0;
  const body = '{"error":"no more","code":"limit_reached","retryable":false,"request_id":"r2"}';
  const api = connect({
    retryReads: { attempts: 3 },
    fetch: () => {
      calls++;
      return Promise.resolve(new Response(body, { status: 429, headers: { 'retry-after': '0.001' } }));
    },
  });
  const final = { status: 429, code: 'limit_reached', retryable: false, message: 'no more' };
  await assert.rejects(api.listSandboxes(), final);
  assert.equal(calls, 1);
});

test('a deadline, an abort, a dead address and a foreign page are told apart', async () => {
  const silent = createServer(() => undefined);
  await new Promise<void>((resolve) => silent.listen(0, '127.0.0.1', resolve));
  const baseUrl = `http://127.0.0.1:${(silent.address() as { port: number }).port}`;
  await assert.rejects(connect({ baseUrl, timeoutMs: 50 }).listSandboxes(), { kind: 'timeout' });
  const stop = new AbortController();
  const asked = connect({ baseUrl }).listSandboxes({}, { signal: stop.signal });
  stop.abort();
  await assert.rejects(asked, { kind: 'aborted' });
  silent.closeAllConnections();
  silent.close();
  await assert.rejects(connect({ baseUrl: 'http://127.0.0.1:1' }).listSandboxes(), { kind: 'unreachable' });
  const page = () => Promise.resolve(new Response('<html>'));
  await assert.rejects(connect({ fetch: page }).listSandboxes(), { kind: 'malformed' });
});
