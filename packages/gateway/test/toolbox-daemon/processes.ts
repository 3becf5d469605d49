/** Sessions, the entrypoint, terminals, code and git. */
import assert from 'node:assert/strict';
import { once } from 'node:events';
import { writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { test } from 'node:test';
import { until } from '@releap/testing/eventually';
import { WebSocket } from 'ws';
import { agent, folder, url, authorization, type Answer, call } from '../support/toolbox-world.ts';

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
  // It may end before the answer to its input has come.
  const closed = once(socket, 'close') as Promise<[number]>;
  assert.equal((await call('POST', `${command}/input`, { data: 'word\n' })).status, 204);
  const [code] = await closed;
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

test('the entrypoint is a session of one command, whose log is followed until it ends', async () => {
  const session = async () =>
    (
      await call<{ sessionId: string; commands: { id: string; command: string; exitCode?: number }[] }>(
        'GET',
        'process/session/entrypoint',
      )
    ).body;
  const running = await session();
  assert.equal(running.sessionId, 'entrypoint');
  assert.deepEqual(
    running.commands.map(({ command, ...rest }) => [command.startsWith('/bin/sh -c echo up;'), rest]),
    [[true, { id: 'entrypoint' }]],
  );
  const logs = async () => (await call('GET', 'process/session/entrypoint/logs')).body;
  await until(async () => (await logs())['output'] === 'up\n');

  const follow = (): WebSocket =>
    new WebSocket(url('process/session/entrypoint/logs?follow=true').replace('http', 'ws'), ['version~1'], {
      headers: authorization,
    });
  let sent = '';
  const socket = follow();
  socket.on('message', (data: Buffer) => (sent += data.toString('latin1')));
  const closed = once(socket, 'close');
  // One that leaves.
  const other = follow();
  await once(other, 'message');
  other.terminate();
  await until(() => sent !== '');
  await writeFile(join(agent.folder, 'end'), '');
  assert.equal(((await closed) as [number])[0], 1000);
  assert.equal(socket.protocol, 'version~1');
  const whole = sent.replaceAll('\u0001\u0001\u0001', '');
  // The two streams are in one log, each in order; the agent adds how it ended.
  assert.deepEqual(whole.split('\n').sort(), ['', 'down', 'releap: the entrypoint exited with code 3', 'up']);
  assert.deepEqual((await session()).commands, [{ id: 'entrypoint', command: '', exitCode: 3 }]);
  assert.deepEqual(await logs(), { output: whole, stdout: whole, stderr: '' });
  // After its end.
  const late = follow();
  const [[first], [code]] = (await Promise.all([once(late, 'message'), once(late, 'close')])) as [
    [Buffer],
    [number],
  ];
  assert.deepEqual([first.subarray(3).toString(), code], [whole, 1000]);
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

test('a terminal is created by its connection, whose subprotocols have its variables and ask for its exit as a message', async () => {
  const exits = 'X-Daytona-Pty-Exit-Control';
  const envs = Buffer.from(JSON.stringify({ GREETING: 'grüezi' })).toString('base64url');
  const connect = (query: string, offers: string[]): WebSocket =>
    new WebSocket(url(`process/pty/create-connect?${query}`).replace('http', 'ws'), offers, {
      headers: authorization,
    });
  const socket = connect('id=once&cols=81&rows=26', [`X-Daytona-Pty-Envs~${envs}`, exits]);
  const [first] = (await once(socket, 'message')) as [Buffer];
  assert.deepEqual(JSON.parse(String(first)), { type: 'control', status: 'connected' });
  // The variables are not echoed.
  assert.equal(socket.protocol, exits);
  let text = '';
  let exit: unknown;
  socket.on('message', (data: Buffer, isBinary: boolean) => {
    if (!isBinary) exit = JSON.parse(String(data));
    else if ((text += data.toString()).includes('26 81 grüezi')) socket.send(Buffer.from('exit 7\n'));
  });
  socket.send(Buffer.from('echo "$(stty size) $GREETING"\n'));
  const [code, reason] = (await once(socket, 'close')) as [number, Buffer];
  assert.deepEqual([code, String(reason)], [1000, '{"exitCode":7}']);
  assert.deepEqual(exit, { type: 'control', status: 'exited', exitCode: 7 });
  const plain = await call('GET', 'process/pty/create-connect?id=none');
  assert.equal(plain.status, 426);
  for (const [query, offers, error] of [
    ['id=', [], /id must/],
    ['id=x&cols=many', [], /cols is \\"many\\", and must be a number/],
    ['id=x', ['X-Daytona-Pty-Envs~bm90IGpzb24'], /base64url of a JSON object/],
  ] as const) {
    const refused = connect(query, [...offers, exits]);
    const [told] = (await once(refused, 'message')) as [Buffer];
    assert.match(String(told), error);
  }
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
