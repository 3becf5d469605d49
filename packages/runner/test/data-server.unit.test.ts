import assert from 'node:assert/strict';
import { once } from 'node:events';
import { mkdtemp, rm } from 'node:fs/promises';
import http, { type IncomingMessage } from 'node:http';
import { connect } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { buffer, text } from 'node:stream/consumers';
import { test } from 'node:test';
import pino from 'pino';
import { Registry } from 'prom-client';
import { startDataServer } from '../src/data/data-server.ts';
import { sandboxNotFound } from '@releap/contract';
import { registerToolbox } from '../src/toolbox/index.ts';
import { registerBuildLogs } from '../src/data/log-routes.ts';
import { BuildLog } from '../src/logs/build-log.ts';
import { readLog } from '../src/logs/log-file.ts';

test('the data server asks for a token for the sandbox in the path, and echoes and logs the id of a request', async () => {
  const folder = await mkdtemp(join(tmpdir(), 'releap-data-'));
  const lines: Record<string, unknown>[] = [];
  const socketPath = join(folder, 'data.sock');
  const server = await startDataServer({
    socketPath,
    verify: async (token) => token === 'right',
    register(app) {
      app.get('/vms/:id/broken', () => {
        throw new Error('broken');
      });
    },
    metrics: new Registry(),
    log: pino({ level: 'info' }, { write: (line: string) => void lines.push(JSON.parse(line)) }),
  });
  const get = (token: string, id: string, path = '/vms/1/broken'): Promise<IncomingMessage> =>
    new Promise((resolve, reject) => {
      const headers = { authorization: `Bearer ${token}`, 'x-request-id': id };
      http
        .get({ socketPath, path, headers, agent: false }, (answer) => {
          answer.resume();
          answer.on('end', () => resolve(answer));
        })
        .on('error', reject);
    });
  try {
    const failed = await get('right', 'abc-1');
    assert.deepEqual([failed.statusCode, failed.headers['x-request-id']], [500, 'abc-1']);
    assert.ok(lines.some(({ reqId, msg }) => reqId === 'abc-1' && msg === 'request failed'));
    const refused = await get('wrong', 'abc-2');
    assert.deepEqual([refused.statusCode, refused.headers['x-request-id']], [401, 'abc-2']);
    for (const path of ['/vms/1/no/such/thing', '/vms/1/']) {
      assert.equal((await get('right', 'abc-3', path)).statusCode, 404, path);
      assert.equal((await get('wrong', 'abc-3', path)).statusCode, 401, path);
    }
    for (const path of ['/', '/vms/1', '/vms//x', '/vms/%31/broken'])
      assert.equal((await get('right', 'abc-4', path)).statusCode, 401, path);
    assert.equal((await get('wrong', 'abc-5', '/metrics')).statusCode, 200);
    for (const path of ['/metrics/', '/metrics?x', '//metrics'])
      assert.equal((await get('right', 'abc-6', path)).statusCode, 401, path);
    assert.match(String((await get('right', '<b>')).headers['x-request-id']), /^[A-Za-z0-9._-]{1,100}$/);
  } finally {
    await server.close();
    await rm(folder, { recursive: true, force: true });
  }
});

test('a runner that stops ends what it has begun, and says of what is just arriving when to repeat it', async () => {
  const folder = await mkdtemp(join(tmpdir(), 'releap-data-'));
  const socketPath = join(folder, 'data.sock');
  const [begun, held] = [Promise.withResolvers<void>(), Promise.withResolvers<string>()];
  let served = 0;
  const server = await startDataServer({
    socketPath,
    verify: async () => true,
    register(app) {
      app.get('/vms/:id/thing', () => {
        served += 1;
        begun.resolve();
        return held.promise;
      });
    },
    log: pino({ level: 'silent' }),
  });
  const [start, rest] = ['GET /vms/1/thing HTTP/1.1\r\nhost: runner\r\n', 'authorization: Bearer x\r\n\r\n'];
  const [early, late] = [connect(socketPath), connect(socketPath)];
  const answers = Promise.all([text(early), text(late)]);
  await new Promise((resolve) => late.write(start, resolve));
  early.write(start + rest);
  await begun.promise;
  const closed = server.close();
  late.write(rest);
  await once(late, 'end');
  held.resolve('first');
  await closed;
  const [first, second] = await answers;
  assert.match(first, /^HTTP\/1.1 200 .*connection: close\r\n.*first$/is);
  assert.match(second, /^HTTP\/1.1 503 .*retry-after: 1\r\n/is);
  assert.equal(served, 1);
  await rm(folder, { recursive: true, force: true });
});

test('of what a runner that starts has not found again it says that it is not known yet, and when to ask again', async () => {
  const folder = await mkdtemp(join(tmpdir(), 'releap-data-'));
  const socketPath = join(folder, 'data.sock');
  let known: string[] = [];
  const server = await startDataServer({
    socketPath,
    verify: async (token) => token === 'right',
    isKnown: (id) => known.includes(id),
    register: async (app) => {
      app.get<{ Params: { id: string } }>('/vms/:id/thing', ({ params }) => {
        throw sandboxNotFound(params.id);
      });
      const lookup = (): undefined => undefined;
      await registerToolbox(app, { lookup, entrypointLog: lookup, log: pino({ level: 'silent' }) });
    },
    metrics: new Registry(),
    log: pino({ level: 'silent' }),
  });
  const get = async (path: string, token = 'right'): Promise<[number | undefined, string | undefined]> => {
    const { promise, resolve, reject } = Promise.withResolvers<IncomingMessage>();
    const headers = { authorization: `Bearer ${token}` };
    http.get({ socketPath, path, headers, agent: false }, resolve).on('error', reject);
    const answer = await promise;
    answer.resume();
    return [answer.statusCode, answer.headers['retry-after']];
  };
  const paths = ['/vms/1/thing', '/vms/1/no/such/thing', '/vms/1/toolbox/files?path=/'];
  try {
    for (const path of paths) {
      assert.deepEqual(await get(path), [503, '1'], path);
      assert.deepEqual(await get(path, 'wrong'), [401, undefined], path);
    }
    assert.equal((await get('/metrics'))[0], 200);
    known = ['1'];
    for (const path of paths) assert.deepEqual(await get(path), [404, undefined], path);
    assert.deepEqual(await get('/vms/2/thing'), [503, '1']);
  } finally {
    await server.close();
    await rm(folder, { recursive: true, force: true });
  }
});

test('the log of a build is followed until the build ends, with a token for its job, and is there afterwards', async () => {
  const folder = await mkdtemp(join(tmpdir(), 'releap-data-'));
  const socketPath = join(folder, 'data.sock');
  const log = new BuildLog(join(folder, 'job', 'build.log'));
  let isRunning = true;
  const server = await startDataServer({
    socketPath,
    verify: async (token, id) => token === `for-${id}`,
    register: (app) =>
      registerBuildLogs(app, {
        read: (jobId) => readLog(join(folder, jobId, 'build.log')),
        live: (jobId) => (jobId === 'job' && isRunning ? log.file : undefined),
      }),
    log: pino({ level: 'silent' }),
  });
  const get = (path: string, token = 'for-job'): Promise<IncomingMessage> =>
    new Promise((resolve, reject) => {
      const headers = { authorization: `Bearer ${token}` };
      http.get({ socketPath, path, headers, agent: false }, resolve).on('error', reject);
    });
  const textOf = async (answer: IncomingMessage): Promise<string> => (await buffer(answer)).toString();
  try {
    // The response begins before there is any output.
    const early = textOf(await get('/builds/job/logs?follow=1'));
    log.write(Buffer.from('STEP 1/2\n'));
    const followed = await get('/builds/job/logs?follow=1');
    const text = textOf(followed);
    assert.equal(await textOf(await get('/builds/job/logs')), 'STEP 1/2\n');
    log.write(Buffer.from('STEP 2/2\n'));
    const closing = log.close();
    // A build counts as running until its log is closed.
    const late = textOf(await get('/builds/job/logs?follow=1'));
    await closing;
    isRunning = false;
    assert.equal(await late, 'STEP 1/2\nSTEP 2/2\n');
    assert.equal(await text, 'STEP 1/2\nSTEP 2/2\n');
    assert.equal(await early, 'STEP 1/2\nSTEP 2/2\n');
    assert.equal(await textOf(await get('/builds/job/logs?follow=1')), 'STEP 1/2\nSTEP 2/2\n');
    const [other, none] = [
      await get('/builds/job/logs', 'for-another'),
      await get('/builds/none/logs', 'for-none'),
    ];
    assert.deepEqual([other.statusCode, none.statusCode], [401, 404]);
    other.resume();
    none.resume();
  } finally {
    await server.close();
    await rm(folder, { recursive: true, force: true });
  }
});
