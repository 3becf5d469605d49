import assert from 'node:assert/strict';
import { EventEmitter, once } from 'node:events';
import { readFile, writeFile } from 'node:fs/promises';
import type { AddressInfo } from 'node:net';
import path from 'node:path';
import { test } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import Fastify from 'fastify';
import type { FastifyReply } from 'fastify';
import { WebSocket } from 'ws';
import { registerToolbox } from '../src/toolbox/index.ts';
import { log, startAgent } from '@releap/testing/guest-agent';

const TOKEN = 'internal';

/**
 * The toolbox of one real agent, `box`, behind a server that authenticates as the data server does.
 * @param found resolves when the way to the agent is there
 */
async function startToolbox(
  found: (reply: FastifyReply | undefined) => Promise<unknown> = async () => undefined,
) {
  const agent = await startAgent();
  const client = await agent.connect();
  const app = Fastify();
  let last: FastifyReply | undefined;
  app.addHook('onRequest', async (request, reply) => {
    last = reply;
    if (request.headers.authorization !== `Bearer ${TOKEN}`) await reply.code(401).send({ error: 'no' });
  });
  app.setErrorHandler<Error & { statusCode?: number }>((error, _request, reply) =>
    reply.code(error.statusCode ?? 500).send({ error: error.message }),
  );
  await registerToolbox(app, {
    lookup: (id) => (id === 'box' ? found(last).then(() => client) : undefined),
    entrypointLog: () => undefined,
    log,
  });
  await app.listen({ host: '127.0.0.1', port: 0 });
  const origin = `127.0.0.1:${(app.server.address() as AddressInfo).port}`;
  const base = `http://${origin}/vms/box/toolbox`;
  return {
    agent,
    client,
    base,
    folder: agent.folder,
    call: (
      method: string,
      tail: string,
      body?: string | FormData | Uint8Array<ArrayBuffer>,
      headers: Record<string, string> = {},
    ) =>
      fetch(`${base}/${tail}`, {
        method,
        headers: { authorization: `Bearer ${TOKEN}`, ...headers },
        ...(body === undefined ? {} : { body }),
      }),
    execute(body: unknown) {
      return this.call('POST', 'process/execute', JSON.stringify(body), {
        'content-type': 'application/json',
      });
    },
    socket: (token = TOKEN, vm = 'box') =>
      new WebSocket(`ws://${origin}/vms/${vm}/toolbox/process/stream`, {
        headers: { authorization: `Bearer ${token}` },
      }),
    async [Symbol.asyncDispose]() {
      await app.close();
      await agent[Symbol.asyncDispose]();
    },
  };
}

interface Collected {
  stdout: string;
  stderr: string;
  messages: Record<string, unknown>[];
  code: number;
}

/** Gathers all that comes until the server closes. */
async function collect(ws: WebSocket): Promise<Collected> {
  const all: Collected = { stdout: '', stderr: '', messages: [], code: 0 };
  ws.on('message', (data: Buffer, binary) => {
    if (!binary) all.messages.push(JSON.parse(String(data)) as Record<string, unknown>);
    else if (data[0] === 1) all.stdout += data.subarray(1).toString();
    else if (data[0] === 2) all.stderr += data.subarray(1).toString();
  });
  const [code] = (await once(ws, 'close')) as [number];
  all.code = code;
  return all;
}

const start = (ws: WebSocket, message: Record<string, unknown>): void => {
  ws.once('open', () => ws.send(JSON.stringify({ type: 'start', ...message })));
};

test('execute answers exit code and output in the compatibility protocol', async () => {
  await using box = await startToolbox();
  const response = await box.execute({
    command: 'echo $A; pwd; echo oops >&2; exit 4',
    cwd: box.folder,
    env: { A: 'b' },
    timeout: 60,
  });
  assert.equal(response.status, 200);
  const { exitCode, result } = (await response.json()) as { exitCode: number; result: string };
  assert.equal(exitCode, 4);
  assert.deepEqual(result.trim().split('\n').sort(), [box.folder, 'b', 'oops'].sort());
});

test('execute ends a command at its timeout with 408 and what it wrote', async () => {
  await using box = await startToolbox();
  const inTime = async (timeout: number): Promise<{ error: string; result: string }> => {
    const response = await box.execute({ command: 'echo so far; sleep 1000', timeout });
    assert.equal(response.status, 408);
    const ended = (await response.json()) as { error: string; result: string };
    assert.ok(ended.error.includes(`timeout of ${timeout} s`), ended.error);
    // Its time was over before it had started, on a machine that was suspended.
    return ended.result === '' && timeout < 60 ? await inTime(4 * timeout) : ended;
  };
  const body = await inTime(0.5);
  assert.equal(body.result, 'so far\n');
});

test('execute cuts output beyond its limit and says so', async () => {
  await using box = await startToolbox();
  const response = await box.execute({ command: 'head -c 9000000 /dev/zero | tr "\\0" x' });
  const body = (await response.json()) as { exitCode: number; result: string; truncated: boolean };
  assert.deepEqual([body.exitCode, body.result.length, body.truncated], [0, 8 * 1024 * 1024, true]);
});

test('execute refuses bad bodies with 400, an unknown sandbox with 404, a missing token with 401', async () => {
  await using box = await startToolbox();
  for (const body of [{}, { command: [] }, { command: 'x', timeout: -1 }, { command: 'x', env: { A: {} } }]) {
    const response = await box.execute(body);
    assert.equal(response.status, 400, JSON.stringify(body));
    assert.equal(typeof ((await response.json()) as { error: unknown }).error, 'string');
  }
  const base = box.base.replace('/box/', '/other/');
  const headers = { authorization: `Bearer ${TOKEN}`, 'content-type': 'application/json' };
  const unknown = await fetch(`${base}/process/execute`, {
    method: 'POST',
    headers,
    body: '{"command":"true"}',
  });
  assert.equal(unknown.status, 404);
  assert.equal((await fetch(`${box.base}/files?path=/`)).status, 401);
  const missing = await box.execute({ command: 'true', cwd: '/no/such' });
  assert.equal(missing.status, 404);
});

test('a command is ended when the client of execute goes', async () => {
  await using box = await startToolbox();
  const controller = new AbortController();
  const request = fetch(`${box.base}/process/execute`, {
    method: 'POST',
    headers: { authorization: `Bearer ${TOKEN}`, 'content-type': 'application/json' },
    body: JSON.stringify({ command: 'sleep 1000' }),
    signal: controller.signal,
  });
  while ((await box.client.status()).execs === 0) await sleep(10);
  controller.abort();
  await assert.rejects(request);
  while ((await box.client.status()).execs !== 0) await sleep(10);
});

test('files go up raw and as multipart, and come down again', async () => {
  await using box = await startToolbox();
  const target = path.join(box.folder, 'deep/raw');
  const content = Buffer.alloc(2_000_000, 'content ');
  const raw = await box.call('POST', `files/upload?path=${target}&mode=700`, new Uint8Array(content));
  assert.deepEqual([raw.status, await raw.json()], [200, { path: target, bytes: content.length }]);
  assert.deepEqual(await readFile(target), content);

  const form = new FormData();
  form.append('note', 'ignored');
  form.append('file', new Blob([new Uint8Array(content)]), 'name');
  const other = path.join(box.folder, 'by form');
  const multi = await box.call('POST', `files/upload?path=${encodeURIComponent(other)}`, form);
  assert.equal(multi.status, 200);
  assert.deepEqual(await readFile(other), content);

  const json = await box.call('POST', `files/upload?path=${other}`, '{"kept": "as it is"}', {
    'content-type': 'application/json',
  });
  assert.equal(json.status, 200);
  assert.equal(await readFile(other, 'utf8'), '{"kept": "as it is"}');

  const down = await box.call('GET', `files/download?path=${target}`);
  assert.equal(down.headers.get('content-length'), String(content.length));
  assert.deepEqual(Buffer.from(await down.arrayBuffer()), content);
  const empty = path.join(box.folder, 'empty');
  assert.equal((await box.call('POST', `files/upload?path=${empty}`)).status, 200);
  assert.equal(await (await box.call('GET', `files/download?path=${empty}`)).text(), '');
  assert.match(await (await box.call('GET', 'files/download?path=/proc/self/status')).text(), /^Name:/);
});

test('a form without the field, a folder, a missing file and a missing path are told apart', async () => {
  await using box = await startToolbox();
  const form = new FormData();
  form.append('other', 'x');
  const noField = await box.call('POST', `files/upload?path=${box.folder}/x`, form);
  assert.equal(noField.status, 400);
  assert.match(((await noField.json()) as { error: string }).error, /'file'/);
  assert.equal((await box.call('POST', `files/upload?path=${box.folder}`, 'x')).status, 400);
  assert.equal((await box.call('GET', `files/download?path=${box.folder}`)).status, 400);
  assert.equal((await box.call('GET', `files/download?path=${box.folder}/none`)).status, 404);
  assert.equal((await box.call('GET', 'files/download')).status, 400);
});

test('files are listed, described, and removed', async () => {
  await using box = await startToolbox();
  assert.equal((await box.call('POST', `files/folder?path=${box.folder}/d/e&mode=755`)).status, 201);
  await writeFile(path.join(box.folder, 'd/f'), 'four', { mode: 0o640 });
  const list = (await (await box.call('GET', `files?path=${box.folder}/d`)).json()) as Record<
    string,
    unknown
  >[];
  assert.deepEqual(list.map(({ name, isDir, size }) => [name, isDir, size]).slice(1), [['f', false, 4]]);
  const info = (await (await box.call('GET', `files/info?path=${box.folder}/d/f`)).json()) as Record<
    string,
    unknown
  >;
  assert.deepEqual([info['mode'], info['permissions'], info['type']], ['-rw-r-----', '0640', 'file']);
  assert.ok(!Number.isNaN(Date.parse(String(info['modTime']))));
  assert.equal((await box.call('DELETE', `files?path=${box.folder}/d`)).status, 409);
  assert.equal((await box.call('DELETE', `files?path=${box.folder}/d&recursive=true`)).status, 204);
  assert.equal((await box.call('GET', `files/info?path=${box.folder}/d`)).status, 404);
});

test('a stream carries input, both outputs and the exit', async () => {
  await using box = await startToolbox();
  const ws = box.socket();
  start(ws, { command: 'cat; echo err >&2; exit 6', stdin: true });
  ws.once('open', () => {
    ws.send(Buffer.from('\0hello '));
    ws.send(Buffer.from('\0world'));
    ws.send(JSON.stringify({ type: 'stdin-end' }));
  });
  const all = await collect(ws);
  assert.deepEqual(all, {
    stdout: 'hello world',
    stderr: 'err\n',
    messages: [{ type: 'exit', exit_code: 6, timed_out: false }],
    code: 1000,
  });
});

test('a stream passes megabytes with back-pressure', async () => {
  await using box = await startToolbox();
  const ws = box.socket();
  start(ws, { argv: ['cat'], stdin: true });
  ws.once('open', () => {
    for (let index = 0; index < 40; index += 1)
      ws.send(Buffer.concat([Buffer.of(0), Buffer.alloc(100_000, 'x')]));
    ws.send(JSON.stringify({ type: 'stdin-end' }));
  });
  const all = await collect(ws);
  assert.equal(all.stdout.length, 4_000_000);
});

test('a stream takes signals, and a terminal its size', async () => {
  await using box = await startToolbox();
  const ws = box.socket();
  start(ws, { command: 'stty size; exec sleep 1000', pty: { rows: 20, cols: 70 } });
  ws.on('message', (data: Buffer, binary) => {
    if (binary && data.includes('20 70')) {
      ws.send(JSON.stringify({ type: 'resize', rows: 21, cols: 71 }));
      ws.send(JSON.stringify({ type: 'signal', signal: 'KILL' }));
    }
  });
  const all = await collect(ws);
  assert.deepEqual(all.messages, [{ type: 'exit', exit_code: 137, timed_out: false, signal: 'SIGKILL' }]);
});

test('a stream whose client goes ends its command', async () => {
  await using box = await startToolbox();
  const ws = box.socket();
  start(ws, { command: 'sleep 1000' });
  await once(ws, 'open');
  while ((await box.client.status()).execs === 0) await sleep(10);
  ws.terminate();
  while ((await box.client.status()).execs !== 0) await sleep(10);
});

test('a stream refuses what it does not understand, and the methods of others', async () => {
  await using box = await startToolbox();
  const refused = async (...messages: (string | Buffer)[]): Promise<Record<string, unknown> | undefined> => {
    const ws = box.socket();
    ws.once('open', () => {
      for (const message of messages) ws.send(message);
    });
    return (await collect(ws)).messages[0];
  };
  assert.equal((await refused('not json'))?.['status'], 400);
  assert.equal((await refused('{"type":"start"}'))?.['status'], 400);
  assert.equal((await refused('{"type":"stdin-end"}'))?.['status'], 400);
  assert.equal((await refused(Buffer.from('\0early')))?.['status'], 400);
  assert.equal((await refused('{"type":"start","command":"true","cwd":"/no/such"}'))?.['status'], 404);
  const sneaky = await refused('{"type":"start","command":"exit 9","method":"shutdown"}');
  assert.equal(sneaky?.['exit_code'], 9);
});

test('an upgrade without the token or for an unknown sandbox gets its status, not a socket', async () => {
  await using box = await startToolbox();
  for (const [token, vm, status] of [
    ['wrong', 'box', 401],
    [TOKEN, 'other', 404],
  ] as const) {
    const [error] = (await once(box.socket(token, vm), 'error')) as [Error];
    assert.match(error.message, new RegExp(String(status)));
  }
  assert.equal((await box.call('GET', 'process/stream')).status, 426);
});

test('a command is not left running for a client that went while its sandbox was looked for', async () => {
  const gone = new AbortController();
  const closed = Promise.withResolvers<void>();
  await using box = await startToolbox(async (reply) => {
    const close = once(reply?.raw ?? new EventEmitter(), 'close');
    gone.abort();
    await close;
    closed.resolve();
  });
  const body = JSON.stringify({ command: `sleep 1; touch ${path.join(box.folder, 'ran')}` });
  const headers = { authorization: `Bearer ${TOKEN}`, 'content-type': 'application/json' };
  const asked = fetch(`${box.base}/process/execute`, { method: 'POST', headers, body, signal: gone.signal });
  await assert.rejects(asked);
  await closed.promise;
  await sleep(1_500);
  await assert.rejects(readFile(path.join(box.folder, 'ran')), { code: 'ENOENT' });
});

test('results that many commands collect at once are truncated, and the next one is whole', async () => {
  await using box = await startToolbox();
  const command = "head -c 8388608 /dev/zero | tr '\\0' x";
  const answers = await Promise.all(
    Array.from({ length: 10 }, async () => (await box.execute({ command })).json()),
  );
  const sizes = (answers as { result: string; truncated?: true }[]).map(({ result }) => result.length);
  assert.ok(
    sizes.every((size) => size <= 8 * 1024 * 1024),
    String(sizes),
  );
  const { result } = (await (await box.execute({ command: 'echo whole' })).json()) as { result: string };
  assert.equal(result, 'whole\n');
});
