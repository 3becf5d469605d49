import assert from 'node:assert/strict';
import { test } from 'node:test';
import type { Assignment } from '@releap/contract/runner';
import { Intake } from '../src/link/intake.ts';
import { SPEC } from './support/sandbox-spec.ts';

test('what depends on the others of its message is assigned before them', () => {
  const assigned: string[] = [];
  const intake = new Intake({
    handlers: [
      {
        kind: 'sandbox',
        comesFirst: ({ id }) => id === 'fork',
        assign: ({ id }) => assigned.push(id),
      },
    ],
    onUnsupported: () => assert.fail(),
    onSynced: () => undefined,
  });
  const items = ['source', 'fork', 'other'].map(
    (id): Assignment => ({ kind: 'sandbox', id, generation: 1, desired: 'stopped', spec: SPEC }),
  );
  intake.take({
    outcome: 'message',
    message: { type: 'desired', items },
    unsupported: [],
    dropped: 0,
  } as never);
  assert.deepEqual(assigned, ['fork', 'source', 'other']);
});
