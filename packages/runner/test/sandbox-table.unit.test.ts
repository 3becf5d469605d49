import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { test } from 'node:test';
import { HOST_PART, renderHostLifecycle } from '../scripts/render-lifecycle.ts';
import type { Cause, Facts, OutcomeFacts, Row } from '../src/reconcile/sandbox-table.ts';
import { CONVERGENCE, match, matches, OUTCOMES, RECOVERY } from '../src/reconcile/sandbox-table.ts';

type Domain<F> = { [K in keyof F]: readonly F[K][] };
const BOTH = [true, false] as const;

const FACTS: Domain<Facts> = {
  desired: ['running', 'stopped', 'paused', 'deleted'],
  startFrom: ['disk', 'memory'],
  status: [
    'building',
    'booting',
    'running',
    'pausing',
    'paused',
    'stopping',
    'stopped',
    'deleting',
    'deleted',
    'failed',
  ],
  persistent: BOTH,
  vm: ['live', 'unknown', 'lost', 'none'],
  disk: BOTH,
  memory: ['none', 'saved'],
  memoryConsumed: BOTH,
  hasManifest: BOTH,
  hasRun: BOTH,
  origin: ['none', 'fork', 'snapshot', 'move'],
  hostRestarted: BOTH,
  canPause: BOTH,
};

const CAUSES: Cause[] = [
  'stopped',
  'paused',
  'boot-failed',
  'resume-failed',
  'suspend-failed',
  'origin-failed',
  'vm-ended',
  'vm-lost',
  'drained',
];
const OUTCOME_FACTS: Domain<OutcomeFacts> = {
  cause: CAUSES,
  persistent: BOTH,
  disk: BOTH,
  memory: ['none', 'saved', 'blocked', 'unusable'],
  hasManifest: BOTH,
  hostRestarted: BOTH,
  guestEnded: BOTH,
};

/** Every combination of values. */
function all<F>(domain: Domain<F>): F[] {
  let made: Partial<F>[] = [{}];
  for (const name of Object.keys(domain) as (keyof F)[]) {
    made = made.flatMap((facts) => domain[name].map((value) => ({ ...facts, [name]: value })));
  }
  return made as F[];
}

/** Every row of a table must be the first match of some state: one that never is would be wrong. */
function unreachable<F extends object, To>(table: readonly Row<F, To>[], domain: Domain<F>): string[] {
  const left = new Set(table);
  for (const facts of all(domain)) {
    const row = table.find(({ when }) => matches(when, facts));
    assert.ok(row, JSON.stringify(facts));
    left.delete(row);
    if (left.size === 0) break;
  }
  return [...left].map((row) => JSON.stringify(row));
}

test('every row of every table is needed', () => {
  assert.deepEqual(unreachable(RECOVERY, FACTS), []);
  assert.deepEqual(unreachable(CONVERGENCE, FACTS), []);
  assert.deepEqual(unreachable(OUTCOMES, OUTCOME_FACTS), []);
});

test('no step removes a disk that has been used, or starts a second VM', () => {
  for (const facts of all(FACTS)) {
    const recovery = match(RECOVERY, facts);
    const converge = match(CONVERGENCE, facts);
    assert.equal(converge === 'destroy', facts.desired === 'deleted');
    if (recovery === 'start-over') assert.ok(!facts.hasRun && facts.status === 'booting');
    if (recovery === 'keep') assert.ok(facts.vm !== 'lost');
    if (facts.hasManifest || facts.disk) assert.notEqual(converge, 'copy-origin');
    if (facts.vm === 'live') {
      assert.ok(!['boot', 'resume', 'copy-origin', 'discard-memory', 'report-paused'].includes(converge));
      assert.equal(recovery, 'keep');
    }
    // An adopted guest continues: a suspend image beside it would be stale.
    if (recovery === 'adopt') assert.ok(facts.memory === 'none' || !facts.persistent);
  }
});

test('an outcome claims only what is there', () => {
  for (const facts of all(OUTCOME_FACTS)) {
    const { status, memoryLost, memoryBlocked } = match(OUTCOMES, facts);
    if (status === 'paused' && !memoryLost) assert.equal(facts.memory, memoryBlocked ? 'blocked' : 'saved');
    if (memoryLost) assert.ok(facts.memory === 'none' || facts.memory === 'unusable');
    if (status === 'paused' && memoryLost) assert.ok(facts.disk);
    if (status === 'stopped' && facts.cause !== 'stopped')
      assert.ok(facts.persistent && facts.disk && facts.hasManifest);
  }
});

test('docs/lifecycle.md is current (else run packages/runner/scripts/write-lifecycle.ts)', () => {
  const page = readFileSync(new URL('../../../docs/lifecycle.md', import.meta.url), 'utf8');
  assert.equal(page.slice(page.indexOf(HOST_PART)), renderHostLifecycle());
});
