import assert from 'node:assert/strict';
import { randomBytes } from 'node:crypto';
import { getEventListeners, once } from 'node:events';
import { request as httpRequest, type IncomingMessage } from 'node:http';
import { Readable } from 'node:stream';
import { after, before, describe, it } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import { badRequest, type Operation } from '@releap/contract';
import { quiet } from '@releap/testing/postgres';
import { until } from '@releap/testing/world';
import { Type } from 'typebox';
import type { Idempotency } from '../src/platform/idempotency/idempotency.ts';
import type { BodyLimits } from '../src/platform/http/body-deadline.ts';
import { createPlane, type Plane } from '../src/platform/http/plane.ts';
import { createHttpServer, type HttpServer } from '../src/platform/http/server.ts';

const Received = Type.Object({ bytes: Type.Integer(), names: Type.Array(Type.String()) });
const operation = {
  method: 'POST',
  tag: 'Test',
  summary: '',
  security: 'public',
  success: { status: 200, response: { description: '', schema: Received } },
  errors: {},
} as const;

/** Operations of this test alone. */
const table = {
  raw: { ...operation, path: '/raw', consumes: ['application/octet-stream'], upload: { bytes: 100_000 } },
  anything: { ...operation, path: '/anything', consumes: ['*/*'] },
  form: {
    ...operation,
    path: '/form',
    consumes: ['multipart/form-data'],
    upload: { bytes: 100_000, files: 2, fields: 2, fieldBytes: 100 },
  },
  both: {
    ...operation,
    path: '/both',
    consumes: ['application/json', 'multipart/form-data'],
    body: Type.Object({ name: Type.String() }),
  },
  json: { ...operation, path: '/json', body: Type.Object({ name: Type.String() }) },
  bytes: {
    ...operation,
    method: 'GET',
    path: '/bytes',
    success: {
      status: 200,
      response: { description: '', schema: Type.String(), contentType: 'application/octet-stream' },
    },
  },
  wait: {
    ...operation,
    method: 'GET',
    path: '/wait',
    success: { status: 204, response: { description: '' } },
  },
} as const satisfies Record<string, Operation>;
const facade = { ...table.json, path: '/facade/json' } as const satisfies Operation;

const never: Idempotency = {
  run: () => Promise.reject(new Error('not used')),
  sweep: async () => undefined,
};

async function count(stream: Readable): Promise<number> {
  let bytes = 0;
  for await (const chunk of stream) bytes += (chunk as Buffer).length;
  return bytes;
}

function serve(plane: Plane<'public'>, aborted: string[]): void {
  plane.operation(table.raw, async ({ upload }) => {
    if (upload?.kind !== 'raw') throw badRequest('no body');
    return { bytes: await count(upload.stream), names: [upload.contentType] };
  });
  plane.operation(table.anything, async ({ upload }) => {
    if (upload?.kind !== 'raw') throw badRequest('no body');
    return { bytes: await count(upload.stream), names: [upload.contentType] };
  });
  plane.operation(table.form, async ({ upload }) => {
    if (upload?.kind !== 'form') throw badRequest('no form');
    let bytes = 0;
    const names: string[] = [];
    for await (const part of upload.parts()) {
      names.push(`${part.kind} ${part.name}`);
      if (part.kind === 'file') bytes += await count(part.stream);
    }
    return { bytes, names };
  });
  plane.operation(table.both, async ({ body, upload }) => {
    if (upload === null) return { bytes: 0, names: [body?.name ?? ''] };
    return { bytes: 0, names: [upload.kind] };
  });
  plane.operation(table.json, async ({ body }) => ({ bytes: 0, names: [body.name] }));
  plane.operation(table.bytes, () => Readable.from([Buffer.from('ab'), Buffer.from('cd')]));
  plane.operation(table.wait, ({ abortSignal }) => {
    const signal = abortSignal();
    return new Promise((resolve) => {
      signal.addEventListener('abort', () => {
        aborted.push((signal.reason as Error).message);
        resolve();
      });
    });
  });
}

describe('deadlines of request bodies', () => {
  const LONG_MS = 60_000;
  const SHORT_MS = 300;
  /** Longer than the short deadline. */
  const PAUSE_MS = 1_000;

  async function startWith(bodyLimits: BodyLimits): Promise<{ server: HttpServer; url: string }> {
    const plane = createPlane<'public'>({ idempotency: never });
    serve(plane, []);
    const server = createHttpServer({ plugins: [plane.plugin], bodyLimits, log: quiet });
    return { server, url: await server.listen({ host: '127.0.0.1', port: 0 }) };
  }

  /** Sends half of a body, and after `pauseMs` the other half; never if that is undefined. */
  async function halves(
    url: string,
    type: string,
    body: string,
    pauseMs?: number,
  ): Promise<[number, string]> {
    const request = httpRequest(url, {
      method: 'POST',
      headers: { 'content-type': type, 'content-length': body.length },
    });
    const answered = once(request, 'response') as Promise<[IncomingMessage]>;
    request.write(body.slice(0, body.length / 2));
    if (pauseMs !== undefined) {
      await sleep(pauseMs);
      request.end(body.slice(body.length / 2));
    }
    const [response] = await answered;
    const text = (await response.toArray()).join('');
    request.destroy();
    return [response.statusCode ?? 0, text];
  }

  const BYTES = 'application/octet-stream';

  it('bound the whole time of a parsed body, and not that of a streamed one', async () => {
    const { server, url } = await startWith({ totalMs: SHORT_MS, idleMs: LONG_MS });
    const [status, text] = await halves(`${url}/json`, 'application/json', '{"name":"a"}');
    assert.equal(status, 408);
    assert.match(text, /the request body did not arrive within 300 ms/);
    assert.deepEqual((await halves(`${url}/raw`, BYTES, 'x'.repeat(1_000), PAUSE_MS))[0], 200);
    assert.deepEqual([server.server.requestTimeout, server.server.headersTimeout], [0, 60_000]);
    await server.close();
  });

  it('bound the time without a byte of a streamed body, and not that of a parsed one', async () => {
    const { server, url } = await startWith({ totalMs: LONG_MS, idleMs: SHORT_MS });
    for (const path of ['/raw', '/form']) {
      const type = path === '/raw' ? BYTES : 'multipart/form-data; boundary=b';
      const [status, text] = await halves(
        url + path,
        type,
        '--b\r\ncontent-disposition: form-data; name="n"\r\n\r\nv',
      );
      assert.equal(status, 408, text);
      assert.match(text, /no byte of the request body arrived for 300 ms/);
    }
    assert.deepEqual((await halves(`${url}/json`, 'application/json', '{"name":"a"}', PAUSE_MS))[0], 200);
    await server.close();
  });
});

describe('planes', () => {
  const servers: HttpServer[] = [];
  const aborted: string[] = [];
  let urls: string[] = [];
  let base = '';
  before(async () => {
    const plane = createPlane<'public'>({ idempotency: never });
    serve(plane, aborted);
    const other = createPlane<'public'>({
      idempotency: never,
      prefix: '/facade',
      answerError: (error, _request, reply) => {
        void reply.code(418).send({ fault: { detail: (error as Error).message } });
      },
      answerNotFound: (_request, reply) => {
        void reply.code(410).send({ fault: { detail: 'nothing here' } });
      },
    });
    other.operation(facade, async ({ body }) => ({ bytes: 0, names: [body.name] }));
    // The same planes on two servers.
    for (let n = 0; n < 2; n++)
      servers.push(createHttpServer({ plugins: [plane.plugin, other.plugin], log: quiet }));
    urls = await Promise.all(servers.map((server) => server.listen({ host: '127.0.0.1', port: 0 })));
    base = urls[0] ?? '';
  });
  after(() => Promise.all(servers.map((server) => server.close())));

  const post = async (
    path: string,
    body: RequestInit['body'],
    type?: string,
    // oxlint-disable-next-line typescript/no-explicit-any -- the test reads arbitrary bodies
  ): Promise<{ status: number; body: any }> => {
    const response = await fetch(base + path, {
      method: 'POST',
      body: body ?? null,
      ...(type === undefined ? {} : { headers: { 'content-type': type } }),
      ...(body instanceof ReadableStream ? { duplex: 'half' } : {}),
    });
    return { status: response.status, body: await response.json() };
  };
  const form = (...files: number[]): FormData => {
    const data = new FormData();
    data.set('note', 'hello');
    files.forEach((bytes, index) => data.set(`file${index}`, new Blob([randomBytes(bytes)]), 'name.bin'));
    return data;
  };

  it('stream raw bodies to their handler', async () => {
    const { status, body } = await post('/raw', randomBytes(90_000), 'application/octet-stream');
    assert.deepEqual([status, body], [200, { bytes: 90_000, names: ['application/octet-stream'] }]);
    const any = await post('/anything', randomBytes(1_000), 'image/png');
    assert.deepEqual(any.body, { bytes: 1_000, names: ['image/png'] });
  });

  it('refuse a raw body above the limit, whether or not its length is told before', async () => {
    const told = await post('/raw', randomBytes(100_001), 'application/octet-stream');
    assert.equal(told.status, 400);
    assert.match(told.body.error, /too large: at most 100000 bytes/);
    const chunks = Readable.toWeb(Readable.from(Array.from({ length: 4 }, () => randomBytes(30_000))));
    const untold = await post('/raw', chunks as ReadableStream<Uint8Array>, 'application/octet-stream');
    assert.equal(untold.status, 400);
    assert.match(untold.body.error, /too large: at most 100000 bytes/);
  });

  it('stream forms part by part', async () => {
    const { status, body } = await post('/form', form(60_000, 70_000));
    assert.deepEqual(
      [status, body],
      [200, { bytes: 130_000, names: ['field note', 'file file0', 'file file1'] }],
    );
  });

  it('refuse forms above a limit: a file, the number of files, a field', async () => {
    for (const data of [form(100_001), form(1, 1, 1)]) {
      const { status, body } = await post('/form', data);
      assert.deepEqual([status, Object.keys(body)], [400, ['error', 'code', 'retryable', 'request_id']]);
    }
    const long = form();
    long.set('note', 'x'.repeat(101));
    const { status, body } = await post('/form', long);
    assert.equal(status, 400);
    assert.match(body.error, /"note" is too large/);
    const cut = await post('/form', '--b\r\nnot a form', 'multipart/form-data; boundary=b');
    assert.equal(cut.status, 400);
  });

  it('take JSON or a form where both are consumed, and validate the JSON', async () => {
    assert.deepEqual((await post('/both', '{"name":"a"}', 'application/json')).body.names, ['a']);
    assert.deepEqual((await post('/both', form(1))).body.names, ['form']);
    const wrong = await post('/both', '{"name":3}', 'application/json');
    assert.equal(wrong.status, 400);
    assert.match(wrong.body.error, /name must be/);
  });

  it('refuse a content type that is not consumed, and a form where JSON is', async () => {
    const text = await post('/raw', 'a', 'text/plain');
    assert.equal(text.status, 400);
    assert.match(text.body.error, /text\/plain/);
    const notJson = await post('/json', form(1));
    assert.equal(notJson.status, 400);
    assert.match(notJson.body.error, /multipart\/form-data is not available yet on this route: send JSON/);
  });

  it('send bytes with their content type', async () => {
    const response = await fetch(`${base}/bytes`);
    assert.deepEqual(
      [response.headers.get('content-type'), await response.text()],
      ['application/octet-stream', 'abcd'],
    );
  });

  it('have their own 404 and error format under a prefix, and share neither', async () => {
    const wrong = await post('/facade/json', '{}', 'application/json');
    assert.equal(wrong.status, 418);
    assert.match(wrong.body.fault.detail, /name is required/);
    const missing = await fetch(`${base}/facade/nothing`);
    assert.deepEqual([missing.status, await missing.json()], [410, { fault: { detail: 'nothing here' } }]);
    const other = await fetch(`${base}/nothing`);
    const refusal = {
      error: 'no such route: GET /nothing',
      code: 'route_not_found',
      retryable: false,
      request_id: other.headers.get('x-request-id'),
    };
    assert.deepEqual([other.status, await other.json()], [404, refusal]);
  });

  it('are served alike by every server that they are mounted on', async () => {
    for (const url of urls) {
      const response = await fetch(`${url}/json`, { method: 'POST', body: '{"name":"here"}' });
      assert.deepEqual(await response.json(), { bytes: 0, names: ['here'] });
    }
  });

  it('abort the signal of a request whose client has gone, and leave no listener behind', async () => {
    const closing = servers[0]?.fastify.closing as AbortSignal;
    const listeners = (): number => getEventListeners(closing, 'abort').length;
    const before = listeners();
    const request = httpRequest(`${base}/wait`).on('error', () => undefined);
    request.end();
    await until(() => listeners() === before + 1);
    request.destroy();
    await until(() => aborted.length === 1 && listeners() === before);
  });

  it('refuse an operation of another base path, and one after they were mounted', () => {
    const plane = createPlane<'public'>({ idempotency: never, prefix: '/facade' });
    assert.throws(() => plane.operation(table.json, async () => ({ bytes: 0, names: [] })), /not below/);
  });
});
