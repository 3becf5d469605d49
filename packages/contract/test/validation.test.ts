import assert from 'node:assert/strict';
import { test } from 'node:test';
import { Type } from 'typebox';
import {
  ApiError,
  clampLimit,
  clampTimeout,
  ImageCreateRequest,
  PageQuery,
  quote,
  requestValidator,
  resolveImageCreate,
  resolveImageFormField,
  SandboxCreateRequest,
  SandboxGetQuery,
  validate,
} from '../src/index.ts';

function message(run: () => unknown): string {
  try {
    run();
  } catch (error) {
    assert.ok(error instanceof ApiError, String(error));
    assert.equal(error.status, 400);
    return error.message;
  }
  return assert.fail('nothing was refused');
}

test('query numbers come as text and are converted', () => {
  assert.deepEqual(validate(PageQuery, 'query', { limit: '25', cursor: 'abc' }), {
    limit: 25,
    cursor: 'abc',
  });
  assert.deepEqual(validate(PageQuery, 'query', {}), {});
  assert.deepEqual(validate(PageQuery, 'query', { limit: '', cursor: '' }), {});
});

test('null for an optional field is its absence, unless the schema gives it a meaning', () => {
  const schema = Type.Object({
    plain: Type.Optional(Type.Integer()),
    nullable: Type.Optional(Type.Union([Type.Integer(), Type.Null()])),
  });
  assert.deepEqual(validate(schema, 'body', { plain: null, nullable: null }), { nullable: null });
  assert.deepEqual(validate(schema, 'body', {}), {});
  assert.match(
    message(() => validate(schema, 'body', { nullable: 'x' })),
    /nullable must be an integer or null, but was "x"/,
  );
});

test('limit is clamped to 1..200 and is 100 when absent', () => {
  const limit = (text: string): number => clampLimit(validate(PageQuery, 'query', { limit: text }).limit);
  assert.deepEqual(['0', '-5', '1', '200', '201', '9'.repeat(300)].map(limit), [1, 1, 1, 200, 200, 200]);
  assert.equal(clampLimit(undefined), 100);
});

test('timeout_ms is clamped to 0..60000 and is 30000 when absent', () => {
  const timeout = (text: string): number =>
    clampTimeout(validate(SandboxGetQuery, 'query', { timeout_ms: text }).timeout_ms);
  assert.deepEqual(['-1', '0', '60000', '60001'].map(timeout), [0, 0, 60_000, 60_000]);
  assert.equal(clampTimeout(undefined), 30_000);
});

test('query values of the wrong form are refused by name', () => {
  for (const limit of ['abc', '1.5', '1e3', '0x10', ' 1', 'NaN'])
    assert.match(
      message(() => validate(PageQuery, 'query', { limit })),
      /^query parameter limit must be an integer, but was/,
    );
  assert.match(
    message(() => validate(PageQuery, 'query', { limit: ['1', '2'] })),
    /given 2 times/,
  );
  assert.match(
    message(() => validate(SandboxGetQuery, 'query', { wait: 'soon' })),
    /wait must be one of "pending".*"soon"/,
  );
});

test('a body that is no object is refused', () => {
  for (const body of [undefined, null, 'x', 5, [], true])
    assert.match(
      message(() => validate(ImageCreateRequest, 'body', body)),
      /^the request body must be a JSON object/,
    );
});

test('a missing body is an empty object where nothing is required', () => {
  assert.deepEqual(validate(Type.Object({ name: Type.Optional(Type.String()) }), 'body', undefined), {});
});

test('the value of a write-only field is never shown', () => {
  const schema = Type.Object({ password: Type.String({ writeOnly: true, maxLength: 3 }) });
  const text = message(() => validate(schema, 'body', { password: 'hunter2' }));
  assert.match(text, /^password must be/);
  assert.doesNotMatch(text, /hunter2/);
});

test('a long value is cut and its control characters are escaped', () => {
  const text = message(() => validate(PageQuery, 'query', { limit: `\n${'x'.repeat(10_000)}` }));
  assert.ok(text.length < 200);
  assert.ok(!text.includes('\n'));
  assert.equal(quote('a'.repeat(81)).length < 90, true);
});

test('the same schema and part give the same validator', () => {
  assert.equal(requestValidator(PageQuery, 'querystring'), requestValidator(PageQuery, 'query'));
  assert.notEqual(requestValidator(PageQuery, 'body'), requestValidator(PageQuery, 'query'));
});

test('a very deep body is no way to end the process', () => {
  let body: unknown = 'x';
  for (let i = 0; i < 5000; i++) body = { type: 'named', name: body };
  assert.match(
    message(() => validate(ImageCreateRequest, 'body', { name: 'a', source: body })),
    /nested too deep/,
  );
});

test('any JSON is taken as it is, up to a thousand levels', () => {
  const schema = Type.Object({ any: Type.Optional(Type.Unknown()) });
  const nested = (levels: number): unknown => JSON.parse(`${'['.repeat(levels)}${']'.repeat(levels)}`);
  for (const any of ['a\0b', '\ud800', { '\0': ['\0'] }, nested(1_000)])
    assert.deepEqual(validate(schema, 'body', { any }), { any });
  assert.match(
    message(() => validate(schema, 'body', { any: nested(100_000) })),
    /^any is nested too deep/,
  );
});

test('nor is one of arrays: a malformed body is a validation error', () => {
  const deep = JSON.parse(`${'['.repeat(200_000)}${']'.repeat(200_000)}`) as unknown;
  for (const body of [deep, { image: 'busybox', ports: deep }, { image: 'busybox', volumes: [deep] }])
    assert.match(
      message(() => validate(SandboxCreateRequest, 'body', body)),
      /nested too deep: at most 32 levels/,
    );
});

test('an image create needs a name and a registry source', () => {
  const create = (body: unknown) => resolveImageCreate(validate(ImageCreateRequest, 'body', body));
  assert.deepEqual(create({ name: 'app', source: { type: 'registry', ref: 'node:20' } }), {
    name: 'app',
    source: { type: 'registry', ref: 'node:20' },
    docker: false,
    region: null,
  });
  assert.match(
    message(() => create({ source: 'node:20' })),
    /^name is required/,
  );
  assert.match(
    message(() => create({ name: '', source: 'node:20' })),
    /^name must be/,
  );
  assert.match(
    message(() => create({ name: 'a/b', source: 'node:20' })),
    /^name must be .*"a\/b"/,
  );
  assert.match(
    message(() => create({ name: 'app' })),
    /^source is required/,
  );
  assert.match(
    message(() => create({ name: 'app', source: { type: 'named', name: 'other' } })),
    /registry/,
  );
  assert.match(
    message(() => create({ name: 'app', source: 'node:20', docker: 'yes' })),
    /^docker must be true or false/,
  );
});

test('docker of an image form is 1, true, yes or on, and nothing else', () => {
  for (const value of ['1', 'true', 'yes', 'on', 'ON', 'True'])
    assert.deepEqual(resolveImageFormField('docker', value), { docker: true }, value);
  for (const value of ['', '0', 'false', 'no', 'off'])
    assert.deepEqual(resolveImageFormField('docker', value), { docker: false }, value);
  assert.throws(() => resolveImageFormField('docker', '2'), /docker must be one of 1, true, yes, on/);
});
