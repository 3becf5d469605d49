import assert from 'node:assert/strict';
import { startSignedInWorld, type Person } from '@releap/testing/issuer';
import type { Answer } from '@releap/testing/world';

export const UNKNOWN = '00000000-0000-4000-8000-000000000000';

/** Refused with this status, in a sentence. */
export function refused(answer: Answer, status: number, words = /./): void {
  assert.equal(answer.status, status, answer.text);
  assert.match(answer.body.error, words);
}

/** A world with three users, whose parts in an organization a test gives them. */
export async function startPeople() {
  const world = await startSignedInWorld();
  const [owner, member, stranger] = (await Promise.all(
    ['owner', 'member', 'stranger'].map((name) => world.as(name)),
  )) as [Person, Person, Person];
  return { world, owner, member, stranger };
}
