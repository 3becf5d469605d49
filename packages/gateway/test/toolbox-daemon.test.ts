/** The toolbox daemon of a real agent, as clients reach it: through the gateway, a runner's data server and the agent. */
import assert from 'node:assert/strict';
import { randomBytes } from 'node:crypto';
import { once } from 'node:events';
import { lstat, mkdir, readdir, readFile, rm, stat, symlink, writeFile } from 'node:fs/promises';
import { request as httpRequest } from 'node:http';
import { createServer, type AddressInfo } from 'node:net';
import { join } from 'node:path';
import { after, before, test } from 'node:test';
import { newToken, newUuid } from '@releap/contract';
import { registerPortStreams, registerToolbox, startDataServer } from '@releap/runner/data';
import { until } from '@releap/testing/eventually';
import { log, startAgent, type TestAgent } from '@releap/testing/guest-agent';
import { childrenOf } from '@releap/testing/processes';
import { temporaryFolder } from '@releap/testing/temporary-folder';
import { WebSocket } from 'ws';
import { type Gateway, startGateway } from '../src/index.ts';
import { toolbox } from '../src/targets/toolbox.ts';
import { startFakeControl } from './support/fake-control.ts';

const CREDENTIAL = 'gateway-credential';
const DATA_TOKEN = 'data-token';
const key = newToken('apiKey');
const box = newUuid();

const stack = new AsyncDisposableStack();
let agent: TestAgent;
let gateway: Gateway;
/** Where the files of a test are. */
let folder: string;

before(async () => {
  agent = stack.use(await startAgent());
  const guest = await agent.connect();
  await guest.configure({
    hostname: 'box',
    machineId: '0'.repeat(32),
    env: { GREETING: 'hello' },
    workingDir: agent.folder,
    user: '0',
  });
  folder = await temporaryFolder('releap-toolbox-');
  stack.defer(() => rm(folder, { recursive: true, force: true }));
  const data = await startDataServer({
    socketPath: join(folder, 'data.sock'),
    verify: async (token) => token === DATA_TOKEN,
    register: async (app) => {
      registerPortStreams(app, (id) =>
        id === box ? { address: '127.0.0.2', guest: async () => guest } : undefined,
      );
      await registerToolbox(app, { lookup: (id) => (id === box ? guest : undefined), log });
    },
    log,
  });
  stack.defer(() => data.close());
  const control = stack.use(await startFakeControl(CREDENTIAL, DATA_TOKEN));
  control.decide = ({ target: { sandbox }, token }) => {
    if (token !== key) return { status: 401, error: 'invalid credentials' };
    return sandbox === box
      ? { vm_id: box, data_url: data.url }
      : { status: 404, error: `sandbox "${sandbox}" not found` };
  };
  gateway = await startGateway({
    listen: { host: '127.0.0.1', port: 0 },
    controlUrl: control.url,
    credential: async () => CREDENTIAL,
    log,
    limits: { graceMs: 100 },
  });
  stack.defer(() => gateway.close());
});
after(() => stack.disposeAsync());

const url = (tail: string, sandbox = box): string =>
  `http://127.0.0.1:${gateway.port}/toolbox/${sandbox}/${tail}`;
const authorization = { authorization: `Bearer ${key}` };

interface Answer<T> {
  status: number;
  body: T;
  text: string;
}

async function call<T = Record<string, unknown>>(
  method: string,
  tail: string,
  body?: FormData | object,
): Promise<Answer<T>> {
  const form = body instanceof FormData;
  const response = await fetch(url(tail), {
    method,
    headers: {
      ...authorization,
      // As SDKs send a request without a body.
      ...(form ? {} : { 'content-type': body ? 'application/json' : 'application/x-www-form-urlencoded' }),
    },
    ...(body === undefined ? {} : { body: form ? body : JSON.stringify(body) }),
  });
  const text = await response.text();
  const isJson = response.headers.get('content-type')?.startsWith('application/json') === true;
  return { status: response.status, body: (isJson ? JSON.parse(text) : {}) as T, text };
}

function form(
  files: readonly (readonly [path: string, content: string | Uint8Array<ArrayBuffer>])[],
): FormData {
  const data = new FormData();
  for (const [index, [path, content]] of files.entries()) {
    data.append(`files[${index}].path`, path);
    data.append(`files[${index}].file`, new Blob([content]), 'name');
  }
  return data;
}

/** The processes of the daemon: one, or none. */
async function daemons(): Promise<number[]> {
  const children = await childrenOf(agent.pid);
  const names = await Promise.all(
    children.map((pid) => readFile(`/proc/${pid}/comm`, 'utf8').catch(() => '')),
  );
  return children.filter((_, index) => names[index]?.trim() === 'toolboxd');
}

test('no credential enters the guest, and errors have the forms of both protocols', async () => {
  const route = toolbox.route({
    method: 'GET',
    url: `/toolbox/${box}/work-dir`,
    headers: { ...authorization, cookie: 'a=b', 'x-api-key': key, 'x-daytona-sdk-version': '0.190.1' },
    hosts: 1,
    address: '127.0.0.1',
  });
  assert.equal(route?.service, 'toolbox');
  const sent = route?.headers.request({ ...authorization, cookie: 'a=b', 'x-kept': '1' }, DATA_TOKEN, 'id');
  assert.deepEqual(Object.keys(sent ?? {}).sort(), ['x-kept', 'x-request-id']);

  for (const [method, tail, status, text] of [
    ['POST', 'lsp/start', 501, /POST \/lsp\/start/],
    ['GET', 'computeruse/process-status', 501, /computeruse\/process-status/],
    ['GET', 'no/such', 404, /no such path|not found/i],
    ['GET', 'git/no-such', 404, /not found/],
    ['PATCH', 'files/move', 405, /not allowed/],
    ['GET', 'files/search?path=%00&pattern=x', 400, /NUL/],
    ['GET', `files/search?path=${folder}/none&pattern=x`, 404, /not found/],
    ['GET', 'port/70000/in-use', 400, /1 to 65535/],
  ] as const) {
    const { body, text: raw, ...answer } = await call(method, tail);
    assert.equal(answer.status, status, `${method} ${tail}: ${raw}`);
    assert.match(String(body['message'] ?? body['error']), text);
    assert.equal(typeof body['error'], 'string', tail);
  }
  const refused = await fetch(url('work-dir', newUuid()), { headers: authorization });
  assert.equal(refused.status, 404);
  const body = (await refused.json()) as Record<string, unknown>;
  assert.deepEqual([body['error'], body['statusCode']], [body['message'], 404]);
  assert.equal((await fetch(url('work-dir'))).status, 401);
});

test('the daemon knows folders and ports of the sandbox, and is started again after its end', async () => {
  assert.deepEqual((await call('GET', 'work-dir')).body, { dir: agent.folder });
  assert.deepEqual((await call('GET', 'user-home-dir')).body, { dir: '/root' });
  const server = createServer().listen(0, '127.0.0.1');
  await once(server, 'listening');
  const { port } = server.address() as AddressInfo;
  assert.deepEqual((await call('GET', `port/${port}/in-use`)).body, { isInUse: true });
  assert.ok((await call<{ ports: number[] }>('GET', 'port')).body.ports.includes(port));
  server.close();
  await once(server, 'close');
  assert.deepEqual((await call('GET', `port/${port}/in-use`)).body, { isInUse: false });

  const [first] = await daemons();
  assert.ok(first !== undefined);
  process.kill(first, 'SIGKILL');
  await until(async () => (await call('GET', 'version')).status === 200);
  const again = await daemons();
  assert.equal(again.length, 1);
  assert.notEqual(again[0], first);
});

test('many files go up and come down in one request each', async () => {
  const content = new Uint8Array(randomBytes(3_000_000));
  const names = Array.from({ length: 300 }, (_, index) => `${folder}/bulk/${index % 7}/file ${index}`);
  const odd = `${folder}/bulk/ünï "quoted" 100%.txt`;
  const files = [...names.map((name) => [name, name] as const), [odd, content] as const];
  const up = await call('POST', 'files/bulk-upload', form([...files, ['relative', '']]));
  assert.equal(up.status, 200, up.text);
  assert.equal(await readFile(join(agent.folder, 'relative'), 'utf8'), '');
  assert.deepEqual(new Uint8Array(await readFile(odd)), content);
  for (const name of names) assert.equal(await readFile(name, 'utf8'), name);

  const wanted = [names[0] ?? '', odd, `${folder}/none`, `${folder}/bulk`];
  const response = await fetch(url('files/bulk-download'), {
    method: 'POST',
    headers: { ...authorization, 'content-type': 'application/json' },
    body: JSON.stringify({ paths: wanted }),
  });
  const bytes = Buffer.from(await response.arrayBuffer());
  assert.match(response.headers.get('content-type') ?? '', /^multipart\/form-data; boundary=/);
  const text = bytes.toString('latin1');
  assert.ok(text.includes(`name="file"; filename="${names[0]}"`), text.slice(0, 400));
  assert.ok(text.includes(`name="file"; filename*=UTF-8''${encodeURIComponent(odd)}`));
  assert.ok(text.includes('Content-Length: 3000000'));
  assert.ok(bytes.includes(Buffer.from(content)));
  assert.match(text, /name="error"; filename="[^"]+\/none"[\s\S]*?"statusCode":404/);
  assert.match(text, /name="error"; filename="[^"]+\/bulk"[\s\S]*?"statusCode":400/);

  // One file that cannot be written does not keep the others from it.
  const some = await call(
    'POST',
    'files/bulk-upload',
    form([
      [`${folder}/bulk`, 'x'],
      [`${folder}/after`, 'y'],
    ]),
  );
  assert.equal(some.status, 400);
  assert.equal(await readFile(`${folder}/after`, 'utf8'), 'y');
});

test('an upload keeps links, modes and owners, and one that is cut off leaves nothing', async () => {
  const target = join(folder, 'kept');
  await writeFile(target, 'old', { mode: 0o640 });
  await symlink(target, join(folder, 'link'));
  assert.equal((await call('POST', 'files/bulk-upload', form([[join(folder, 'link'), 'new']]))).status, 200);
  assert.equal(await readFile(target, 'utf8'), 'new');
  assert.equal((await stat(target)).mode & 0o777, 0o640);
  assert.ok((await lstat(join(folder, 'link'))).isSymbolicLink());

  const before = await readdir(folder);
  const request = httpRequest(url('files/bulk-upload'), {
    method: 'POST',
    headers: { ...authorization, 'content-type': 'multipart/form-data; boundary=cut' },
  });
  request.on('error', () => undefined);
  request.write(`--cut\r\ncontent-disposition: form-data; name="files[0].path"\r\n\r\n${target}\r\n`);
  request.write('--cut\r\ncontent-disposition: form-data; name="files[0].file"; filename="x"\r\n\r\n');
  request.write(Buffer.alloc(4_000_000, 'half'));
  await until(async () => (await readdir(folder)).some((name) => name.startsWith('.releap-')));
  request.destroy();
  await until(async () => (await readdir(folder)).length === before.length);
  assert.equal(await readFile(target, 'utf8'), 'new');

  for (const [bad, text] of [
    [form([['', 'x']]), /path/],
    [new FormData(), /has no file/],
  ] as const) {
    const refused = await call('POST', 'files/bulk-upload', bad);
    assert.equal(refused.status, 400);
    assert.match(refused.text, text);
  }
});

test('files are moved, given permissions, found and changed', async () => {
  const root = join(folder, 'tree');
  await mkdir(join(root, 'sub'), { recursive: true });
  await writeFile(join(root, 'a.txt'), 'one\ntwo three\n');
  await writeFile(join(root, 'sub/b.txt'), 'three (literal\n');
  await writeFile(join(root, 'binary'), Buffer.from('three\0three'));
  await symlink('/', join(root, 'sub/loop'));

  const found = await call<object[]>('GET', `files/find?path=${root}&pattern=thr.e`);
  assert.deepEqual(found.body, [
    { file: join(root, 'a.txt'), line: 2, content: 'two three' },
    { file: join(root, 'sub/b.txt'), line: 1, content: 'three (literal' },
  ]);
  assert.equal((await call<object[]>('GET', `files/find?path=${root}&pattern=(lit`)).body.length, 1);
  assert.deepEqual((await call('GET', `files/search?path=${root}&pattern=*.txt`)).body, {
    files: [join(root, 'a.txt'), join(root, 'sub/b.txt')],
  });
  const replaced = await call('POST', 'files/replace', {
    files: [join(root, 'a.txt'), join(root, 'none')],
    pattern: 'two',
    newValue: '$1 2',
  });
  assert.deepEqual(replaced.body, [
    { file: join(root, 'a.txt'), success: true },
    { file: join(root, 'none'), success: false, error: `${join(root, 'none')}: not found` },
  ]);
  assert.equal(await readFile(join(root, 'a.txt'), 'utf8'), 'one\n$1 2 three\n');

  const move = (source: string, destination: string): Promise<Answer<unknown>> =>
    call('POST', `files/move?source=${join(root, source)}&destination=${join(root, destination)}`);
  assert.equal((await move('a.txt', 'c.txt')).status, 200);
  assert.equal((await move('c.txt', 'sub')).status, 200);
  assert.equal((await move('sub/c.txt', 'binary')).status, 409);
  assert.equal((await move('none', 'x')).status, 404);

  const permissions = (query: string): Promise<Answer<unknown>> =>
    call('POST', `files/permissions?path=${join(root, 'sub/c.txt')}&${query}`);
  assert.equal((await permissions('mode=600&owner=12&group=34')).status, 200);
  const { mode, uid, gid } = await stat(join(root, 'sub/c.txt'));
  assert.deepEqual([mode & 0o777, uid, gid], [0o600, 12, 34]);
  assert.equal((await permissions('mode=rw')).status, 400);
  assert.equal((await permissions('owner=no-such-user')).status, 404);
});

test('a session keeps its state, and its log is followed over a WebSocket', async () => {
  assert.equal((await call('POST', 'process/session', { sessionId: 's' })).status, 201);
  const run = (command: string, async = false): Promise<Answer<Record<string, unknown>>> =>
    call('POST', 'process/session/s/exec', { command, runAsync: async });
  await run('cd /proc; X=$GREETING');
  const { body } = await run('echo $X $PWD; echo wrong >&2; false');
  assert.deepEqual([body['exitCode'], body['stdout'], body['stderr']], [1, 'hello /proc\n', 'wrong\n']);
  const started = await run('read line; echo $line; echo $line >&2', true);
  assert.equal(started.status, 202);
  const command = `process/session/s/command/${String(started.body['cmdId'])}`;
  const socket = new WebSocket(url(`${command}/logs?follow=true`).replace('http', 'ws'), ['X-Version~1'], {
    headers: authorization,
  });
  const received: Buffer[] = [];
  socket.on('message', (data: Buffer) => received.push(data));
  await once(socket, 'open');
  assert.equal(socket.protocol, 'X-Version~1');
  assert.equal((await call('POST', `${command}/input`, { data: 'word\n' })).status, 204);
  const [code] = (await once(socket, 'close')) as [number];
  assert.equal(code, 1000);
  const sent = Buffer.concat(received).toString('latin1');
  assert.deepEqual(sent.split('\n').sort(), ['', '\u0001\u0001\u0001word', '\u0002\u0002\u0002word']);
  const older = await fetch(url(`${command}/logs`), {
    headers: { ...authorization, 'x-daytona-sdk-version': '0.166.0' },
  });
  assert.equal(await older.text(), 'word\nword\n');
  assert.deepEqual((await call('GET', `${command}/logs`)).body, {
    output: 'word\nword\n',
    stdout: 'word\n',
    stderr: 'word\n',
  });
  assert.equal((await call('DELETE', 'process/session/s')).status, 204);
});

test('a terminal is carried over a WebSocket, and ends with its exit code', async () => {
  const created = await call('POST', 'process/pty', { id: 'p', cols: 80, rows: 25, lazyStart: true });
  assert.deepEqual([created.status, created.body], [201, { sessionId: 'p' }]);
  const socket = new WebSocket(url('process/pty/p/connect').replace('http', 'ws'), {
    headers: authorization,
  });
  const [first, binary] = (await once(socket, 'message')) as [Buffer, boolean];
  assert.deepEqual([JSON.parse(String(first)), binary], [{ type: 'control', status: 'connected' }, false]);
  let text = '';
  socket.on('message', (data: Buffer) => {
    text += data.toString();
    if (text.includes('25 80')) socket.send(Buffer.from('exit 6\n'));
  });
  socket.send(Buffer.from('stty size\n'));
  const [code, reason] = (await once(socket, 'close')) as [number, Buffer];
  assert.deepEqual([code, String(reason)], [1000, '{"exitCode":6}']);
  const refused = new WebSocket(url('process/pty/none/connect').replace('http', 'ws'), {
    headers: authorization,
  });
  const [told] = (await once(refused, 'message')) as [Buffer];
  assert.match(String(told), /"status":"error","error":"PTY session .*not found/);
  const [stranger] = (await once(
    new WebSocket(url('process/pty/p/connect').replace('http', 'ws')),
    'error',
  )) as [Error];
  assert.match(stranger.message, /401/);
});

test('code, an interpreter and git are reached on the same way', async () => {
  const ran = await call('POST', 'process/code-run', { code: 'console.log(1 + 1)', language: 'javascript' });
  assert.deepEqual(ran.body, { exitCode: 0, result: '2\n' });
  const socket = new WebSocket(url('process/interpreter/execute').replace('http', 'ws'), {
    headers: authorization,
  });
  const texts: Record<string, string> = {};
  socket.on('message', (data: Buffer) => {
    const { type, text } = JSON.parse(String(data)) as { type: string; text: string };
    texts[type] = (texts[type] ?? '') + text;
  });
  socket.once('open', () =>
    socket.send(JSON.stringify({ code: 'import os; print(os.environ["GREETING"])' })),
  );
  const [code] = (await once(socket, 'close')) as [number];
  assert.equal(code, 1000);
  assert.deepEqual(texts, { stdout: 'hello\n', control: 'completed' });
  const missing = await call('GET', `git/status?path=${folder}`);
  assert.equal(missing.status, 404, missing.text);
  assert.equal((await call('DELETE', 'git/branches', { path: folder, name: '-x' })).status, 400);
});

test('the runner serves commands and single files in the same terms', async () => {
  const executed = await call('POST', 'process/execute', {
    command: 'echo $GREETING $A $B',
    env: { A: 'a' },
    envs: { A: 'x', B: 'b' },
  });
  assert.deepEqual(executed.body, { exitCode: 0, result: 'hello a b\n' });
  assert.equal((await call('POST', `files/folder?path=${folder}/new&mode=750`)).status, 201);
  await writeFile(join(folder, 'new/digits'), '0123456789');
  const info = await call('GET', `files/info?path=${folder}/new/digits`);
  assert.equal(info.body['modifiedAt'], info.body['modTime']);
  assert.ok(Array.isArray((await call('GET', 'files')).body));
  const part = async (range: string): Promise<[number, string | null, string]> => {
    const response = await fetch(url(`files/download?path=${folder}/new/digits`), {
      headers: { ...authorization, range },
    });
    const text = await response.text();
    return [response.status, response.headers.get('content-range'), response.ok ? text : ''];
  };
  assert.deepEqual(await part('bytes=2-4'), [206, 'bytes 2-4/10', '234']);
  assert.deepEqual(await part('bytes=7-'), [206, 'bytes 7-9/10', '789']);
  assert.deepEqual(await part('bytes=-3'), [206, 'bytes 7-9/10', '789']);
  assert.deepEqual(await part('bytes=8-99'), [206, 'bytes 8-9/10', '89']);
  assert.deepEqual(await part('bytes=10-'), [416, 'bytes */10', '']);
  assert.deepEqual(await part('bytes=4-2'), [200, null, '0123456789']);
  assert.deepEqual(await part('lines=1-2'), [200, null, '0123456789']);
});
