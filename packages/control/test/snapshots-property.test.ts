/** Random histories of the snapshots of one sandbox on a real PostgreSQL, with the table without SQL as the model. */
import assert from 'node:assert/strict';
import { it } from 'node:test';
import { ApiError } from '@releap/contract';
import * as fc from 'fast-check';
import { inspect, inspectSnapshots } from '@releap/testing/inspect';
import { openFresh } from '@releap/testing/postgres';
import { createSnapshot } from '../src/compute/snapshots/create.ts';
import { deleteSnapshot } from '../src/compute/snapshots/delete.ts';
import { createSnapshots } from '../src/compute/snapshots/snapshots.ts';
import type { SnapshotRow } from '@releap/database';
import {
  SNAPSHOT_MACHINE,
  SNAPSHOT_TRANSITIONS,
  type SnapshotEvent,
} from '../src/compute/snapshots/transitions.ts';
import { quiet } from '@releap/testing/world';
import { propertyRuns } from '@releap/testing/repetitions';
import { newOrg, newRunner, newSandbox } from './support/billing.ts';

const database = await openFresh();
const { projectId } = await newOrg(database);
const runnerId = await newRunner(database);
const context = {
  database,
  snapshots: createSnapshots({ database, log: quiet, onMoved: () => undefined }),
  limits: { snapshotDeadlineMs: 600_000 },
};

async function runningSandbox(): Promise<string> {
  const id = await newSandbox(database, projectId, { runnerId });
  await database.pool.query(`update sandboxes set manifest_name = 'sha256:1' where id = $1`, [id]);
  return id;
}

const rowsOf = (vm: string): Promise<SnapshotRow[]> => inspectSnapshots(database, { sandbox_id: vm });

/** Invariants of all of them. */
async function hold(vm: string): Promise<SnapshotRow[]> {
  const rows = await rowsOf(vm);
  const byId = new Map(rows.map((row) => [row.id, row]));
  const pending = rows.filter((row) => row.status === 'pending');
  assert.deepEqual(
    pending.map((row) => row.assigned_to_runner),
    pending.map((_, index) => index === 0),
    'the oldest that waits is being taken, and no other',
  );
  for (const row of rows) {
    assert.equal(row.deadline_at !== null, row.status === 'pending');
    assert.equal(row.desired, row.status === 'pending' || row.status === 'ready' ? 'ready' : 'deleted');
    if (row.status !== 'deleted') assert.equal(row.error !== null, row.status === 'failed');
    if (row.status === 'ready') assert.ok(row.assigned_to_runner);
    const parent = row.parent_id === null ? undefined : byId.get(row.parent_id);
    if (row.status === 'ready' || (row.status === 'pending' && row.assigned_to_runner))
      assert.ok(parent === undefined || parent.status !== 'deleted', 'a parent outlives its children');
  }
  return rows;
}

type Act = { kind: 'take' } | { kind: 'pull'; trigger: SnapshotEvent; which: number; stale: boolean };
const acts: fc.Arbitrary<Act> = fc.oneof(
  { weight: 3, arbitrary: fc.constant<Act>({ kind: 'take' }) },
  {
    weight: 6,
    arbitrary: fc.record({
      kind: fc.constant('pull' as const),
      trigger: fc.constantFrom<SnapshotEvent>(
        'observe:ready',
        'observe:ready',
        'observe:failed',
        'observe:deleted',
        'deadline',
        'delete',
        'delete',
        'sandbox-ended',
      ),
      which: fc.nat({ max: 6 }),
      stale: fc.constantFrom(false, false, false, true),
    }),
  },
);

async function act(vm: string, name: () => string, one: Act): Promise<void> {
  if (one.kind === 'take') {
    await createSnapshot(context, vm, projectId, { name: name() });
    return;
  }
  const rows = await rowsOf(vm);
  const row = rows[rows.length - 1 - (one.which % Math.max(1, rows.length))];
  if (row === undefined) return;
  const observed = one.trigger.startsWith('observe:');
  // A host reports nothing that it is not assigned.
  if (observed && !row.assigned_to_runner) return;
  const stale = observed && one.stale;
  const expected = stale ? undefined : SNAPSHOT_MACHINE.decide(one.trigger, { status: row.status });
  let refused = false;
  if (one.trigger === 'delete') {
    await deleteSnapshot(context, row.id, projectId).catch((error: unknown) => {
      assert.ok(error instanceof ApiError);
      refused = true;
      const children = rows.some(
        (other) => other.parent_id === row.id && ['pending', 'ready'].includes(other.status),
      );
      assert.equal(error.status, row.status === 'deleted' ? 404 : 409);
      if (error.status === 409) assert.ok(children);
    });
  } else {
    const moved = await context.snapshots.apply(one.trigger, [
      {
        id: row.id,
        ...(observed ? { runner_id: runnerId, generation: row.generation - (stale ? 1 : 0) } : {}),
      },
    ]);
    assert.equal(moved.length, expected === undefined ? 0 : 1);
  }
  const after = (await rowsOf(vm)).find((other) => other.id === row.id);
  const to = refused || expected === undefined || expected.to === 'same' ? row.status : expected.to;
  assert.equal(after?.status, to, `${one.trigger} from ${row.status}`);
  if (after.status === 'ready' && row.status === 'pending') {
    assert.equal((await inspect(database, { uuid: vm })).parent_snapshot_id, row.id);
  }
}

it('any snapshots of a sandbox follow the table, take turns, keep their lineage, and leave nothing on the host', async () => {
  await fc.assert(
    fc.asyncProperty(fc.array(acts, { minLength: 1, maxLength: 30, size: 'max' }), async (all) => {
      const vm = await runningSandbox();
      let count = 0;
      for (const one of all) {
        await act(vm, () => `${vm}-${++count}`, one);
        await hold(vm);
      }
      // From now on the host applies its assignments; deleted from the newest on, none is left.
      for (let rows = await hold(vm); rows.some((row) => row.assigned_to_runner); rows = await hold(vm)) {
        const assigned = rows.filter((row) => row.assigned_to_runner);
        const newest = assigned.filter((row) => row.desired === 'ready').at(-1);
        for (const row of assigned) {
          if (row.desired !== 'deleted' && row.status !== 'pending') continue;
          const status = row.desired === 'deleted' ? 'deleted' : 'ready';
          await context.snapshots.apply(`observe:${status}`, [
            { id: row.id, runner_id: runnerId, generation: row.generation },
          ]);
        }
        if (newest !== undefined && !rows.some((row) => row.status === 'pending'))
          await deleteSnapshot(context, newest.id, projectId);
      }
      assert.ok((await rowsOf(vm)).every((row) => row.status === 'deleted' || row.status === 'failed'));
    }),
    { numRuns: propertyRuns(40) },
  );
});

it('the table has at most one row for any status and trigger, and no pending without a way out', () => {
  for (const status of ['pending', 'ready', 'failed', 'deleted'] as const)
    for (const trigger of new Set(SNAPSHOT_TRANSITIONS.map((row) => row.on)))
      assert.ok(
        SNAPSHOT_TRANSITIONS.filter((row) => row.on === trigger && row.from.includes(status)).length <= 1,
      );
  for (const trigger of ['deadline', 'sandbox-ended', 'delete'] as const)
    assert.notEqual(SNAPSHOT_MACHINE.decide(trigger, { status: 'pending' })?.to ?? 'pending', 'pending');
});
