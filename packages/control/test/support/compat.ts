/** Calls of the compatibility facade. */
import assert from 'node:assert/strict';
import { COMPAT_PREFIX } from '@releap/contract';
import type { Answer, Caller } from '@releap/testing/world';

/** Calls of the facade with this caller's key. */
export function facade(of: Caller): Caller {
  const to = (method: string, path: string, body?: unknown, init?: RequestInit): Promise<Answer> =>
    of(method, `${COMPAT_PREFIX}${path}`, body, init);
  return Object.assign(to, { key: of.key, projectId: of.projectId });
}

/** The refusal, which must have the form that the SDK reads. */
export async function refused(answer: Promise<Answer>, status: number): Promise<string> {
  const { status: sent, body, text } = await answer;
  assert.equal(sent, status, text);
  assert.deepEqual([body.statusCode, body.error, typeof body.code], [status, body.message, 'string'], text);
  return body.message;
}
