import assert from 'node:assert/strict';
import { test } from 'node:test';
import {
  ApiError,
  badRequest,
  codesOf,
  ERROR_CODES,
  errorBody,
  type ErrorStatus,
  GENERAL_CODES,
  internalError,
  overloaded,
  OverloadBody,
  sandboxNotFound,
  STATUS_MEANINGS,
  unavailable,
  unauthorized,
  validate,
} from '../src/index.ts';

test('every error has a sentence, a code, and says whether it can be retried', () => {
  const refusal = { error: 'no', code: 'invalid_request', retryable: false };
  assert.deepEqual(badRequest('no').body, refusal);
  assert.deepEqual(errorBody(badRequest('no'), 'id-1'), { ...refusal, request_id: 'id-1' });
  assert.deepEqual(badRequest('no', 'invalid_cursor').body, { ...refusal, code: 'invalid_cursor' });
  assert.deepEqual(unavailable('no').body, { error: 'no', code: 'unavailable', retryable: true });
  assert.equal(badRequest('no').status, 400);
  assert.ok(badRequest('no') instanceof ApiError);
});

test('an overload carries its sentence twice and the time to wait', () => {
  const error = overloaded('full');
  assert.equal(error.status, 429);
  assert.deepEqual(error.headers, { 'retry-after': '2' });
  assert.deepEqual(validate(OverloadBody, 'body', errorBody(error, 'id-1')), {
    error: 'full',
    code: 'overloaded',
    request_id: 'id-1',
    retryable: true,
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

test('each status has a general code of its own, and each code a known status', () => {
  for (const status of Object.keys(STATUS_MEANINGS).map(Number) as ErrorStatus[])
    assert.equal(codesOf(status)[0], GENERAL_CODES[status]);
  for (const [code, { statuses }] of Object.entries(ERROR_CODES)) {
    assert.match(code, /^[a-z]+(_[a-z]+)*$/);
    assert.ok(statuses.length > 0 && statuses.every((status) => status in STATUS_MEANINGS), code);
  }
});
