import assert from 'node:assert/strict';
import type { Answer } from '@releap/testing/world';

export const UNKNOWN = '00000000-0000-4000-8000-000000000000';

/** Refused with this status, in a sentence. */
export function refused(answer: Answer, status: number, words = /./): void {
  assert.equal(answer.status, status, answer.text);
  assert.match(answer.body.error, words);
}
