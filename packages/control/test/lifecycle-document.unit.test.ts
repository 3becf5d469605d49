import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { test } from 'node:test';
import { SANDBOX_STATUSES } from '@releap/contract';
import { HOST_PART, MACHINES, renderLifecycle } from '../scripts/render-lifecycle.ts';
import { TRANSIENT } from '../src/compute/sandboxes/transitions.ts';

test('docs/lifecycle.md is current (else run packages/control/scripts/write-lifecycle.ts)', () => {
  const committed = readFileSync(new URL('../../../docs/lifecycle.md', import.meta.url), 'utf8');
  assert.equal(committed.split(HOST_PART)[0], `${renderLifecycle()}\n`);
});

test('the page has a row for every row of the tables, a deadline for every passing state, and every state in the diagram', () => {
  const page = renderLifecycle();
  const rows = page.split('\n').filter((line) => line.startsWith('| `'));
  assert.equal(rows.length, MACHINES.flatMap((one) => one.transitions).length + TRANSIENT.length);
  const diagram = /```mermaid\n([^`]*)```/.exec(page)?.[1] ?? '';
  for (const status of SANDBOX_STATUSES) assert.match(diagram, new RegExp(`\\b${status}\\b`), status);
});
