import assert from 'node:assert/strict';
import { test } from 'node:test';
import {
  ApiError,
  badRequest,
  internalError,
  overloaded,
  OverloadBody,
  sandboxNotFound,
  unauthorized,
  validate,
} from '../src/index.ts';

test('every error has the body {error}', () => {
  assert.deepEqual(badRequest('no').body, { error: 'no' });
  assert.equal(badRequest('no').status, 400);
  assert.ok(badRequest('no') instanceof ApiError);
});

test('an overload carries its sentence twice and the time to wait', () => {
  const error = overloaded('full');
  assert.equal(error.status, 429);
  assert.deepEqual(error.headers, { 'retry-after': '2' });
  assert.deepEqual(validate(OverloadBody, 'body', error.body), {
    error: 'full',
    message: 'full',
    retry_after_secs: 2,
  });
  assert.equal(overloaded('full', 0.2).headers['retry-after'], '1');
});

test('an internal error keeps its cause inside', () => {
  const error = internalError(new Error('password is hunter2'));
  assert.doesNotMatch(JSON.stringify(error.body), /hunter2/);
});

test('a 401 names the scheme, as RFC 9110 wants', () => {
  assert.equal(unauthorized().headers['www-authenticate'], 'Bearer');
});

test('an unknown id is shown cut and escaped', () => {
  const { message } = sandboxNotFound(`x\n${'y'.repeat(1000)}`);
  assert.ok(message.length < 150 && !message.includes('\n'));
});
