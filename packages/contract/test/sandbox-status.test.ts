import assert from 'node:assert/strict';
import { test } from 'node:test';
import {
  SANDBOX_STATUS_FACTS,
  SANDBOX_STATUSES,
  type SandboxStatus,
  waitIsOver,
  waitTarget,
} from '../src/index.ts';

function endings(query: { wait?: SandboxStatus; wait_exact?: SandboxStatus }): SandboxStatus[] {
  return SANDBOX_STATUSES.filter((status) => waitIsOver(waitTarget(query), status));
}

test('wait returns on the named status or where it may never come', () => {
  assert.deepEqual(endings({ wait: 'running' }).sort(), [
    'deleted',
    'deleting',
    'failed',
    'lost',
    'running',
    'stopped',
    'stopping',
  ]);
});

test('wait_exact returns on the exact status, and on failed and lost', () => {
  assert.deepEqual(endings({ wait_exact: 'stopped' }).sort(), ['failed', 'lost', 'stopped']);
});

test('wait_exact wins over wait', () => {
  assert.deepEqual(endings({ wait: 'running', wait_exact: 'deleted' }).sort(), ['deleted', 'failed', 'lost']);
});

test('without either the answer comes at once', () => {
  assert.deepEqual(endings({}), [...SANDBOX_STATUSES]);
});

test('a status cannot be both passing and final', () => {
  for (const facts of Object.values(SANDBOX_STATUS_FACTS)) assert.ok(!(facts.transient && facts.terminal));
});
