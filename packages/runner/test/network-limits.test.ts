import assert from 'node:assert/strict';
import { test } from 'node:test';
import { flowLimitsOf, MAX_FLOWS_PER_SANDBOX } from '../src/network/flow-limits.ts';

test('all sandboxes together leave a part of the connection table to the host', () => {
  for (const [table, slots] of [
    [262_144, 256],
    [65_536, 256],
    [2_000_000, 1019],
    [262_144, 8],
  ] as const) {
    const { perSandbox, all } = flowLimitsOf(table, slots);
    assert.ok(all < table);
    assert.ok(perSandbox <= MAX_FLOWS_PER_SANDBOX && perSandbox <= all, `${perSandbox} of ${all}`);
  }
});
