import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { SANDBOX_STATUSES, SANDBOX_STATUS_FACTS, type SandboxStatus } from '@releap/contract';
import { queryAll } from '@releap/database';
import * as fc from 'fast-check';
import { openFresh } from '@releap/testing/postgres';
import type { SandboxRow } from '@releap/database';
import { propertyRuns } from '@releap/testing/repetitions';
import { SANDBOX_SQL } from '../src/compute/sandboxes/transition-sql.ts';
import {
  CONDITIONS,
  CREATIONS,
  decide,
  refusal,
  writing,
  STATE_DEADLINES,
  TRANSIENT,
  TRANSITIONS,
  EVENTS,
  type SandboxFacts,
  type Transition,
  type SandboxEvent,
} from '../src/compute/sandboxes/transitions.ts';
import { newOrg, newSandbox, REGION, specJson } from './support/billing.ts';
import { MOVE, step } from './support/model.ts';

const status = fc.constantFrom(...SANDBOX_STATUSES);
const ENV = '{"A":"1"}';
const facts: fc.Arbitrary<SandboxFacts> = fc.record({
  status,
  desired: fc.constantFrom('running', 'stopped', 'paused', 'deleted'),
  persistent: fc.boolean(),
  spot: fc.boolean(),
  volume_count: fc.constantFrom(0, 1),
  docker_data_mib: fc.constantFrom(null, 512),
  manifest_name: fc.constantFrom(null, 'sha256:x'),
  gpu_host: fc.constantFrom(0, 1),
  has_memory: fc.boolean(),
  memory_blocked: fc.constantFrom(null, 'it is another processor'),
  start_from: fc.constantFrom('disk', 'memory'),
  pending_fork: fc.constantFrom(null, '00000000-0000-4000-8000-000000000003'),
  move_id: fc.constantFrom(null, MOVE),
});

describe('the transition table', () => {
  it('has at most one row for any sandbox and event', () => {
    fc.assert(
      fc.property(facts, fc.constantFrom(...EVENTS), (sandbox, event) => {
        const rows = TRANSITIONS.filter(
          (row) =>
            row.on === event &&
            row.from.includes(sandbox.status) &&
            (row.when ?? []).every((name) => CONDITIONS[name].holds(sandbox)),
        );
        assert.ok(rows.length <= 1, `${event} from ${sandbox.status}: ${rows.length} rows`);
      }),
      { numRuns: propertyRuns(5000) },
    );
  });

  it('gives every transient status a deadline that leads to a status that may last', () => {
    assert.deepEqual(
      [...TRANSIENT].sort(),
      SANDBOX_STATUSES.filter((name) => SANDBOX_STATUS_FACTS[name].transient).sort(),
    );
    fc.assert(
      fc.property(facts, (sandbox) => {
        fc.pre((TRANSIENT as readonly string[]).includes(sandbox.status));
        const after = step(sandbox, 'deadline');
        assert.ok(
          !(TRANSIENT as readonly string[]).includes(after.status),
          `${sandbox.status} ends in ${after.status}`,
        );
        assert.ok(STATE_DEADLINES[sandbox.status as keyof typeof STATE_DEADLINES] > 0);
      }),
    );
  });

  it('lets delete work from every status, and end in deleted though no host ever answers', () => {
    fc.assert(
      fc.property(facts, (sandbox) => {
        const row = decide('delete', sandbox);
        assert.ok(row !== undefined, `delete from ${sandbox.status}: ${refusal('delete', sandbox)}`);
        const asked = step(sandbox, 'delete');
        assert.ok(asked.status === 'deleting' || asked.status === 'deleted');
        assert.equal(step(asked, 'deadline').status, 'deleted');
      }),
    );
  });

  it('never leaves deleted, and leaves deleting only for deleted', () => {
    fc.assert(
      fc.property(facts, fc.array(fc.constantFrom(...EVENTS), { maxLength: 30 }), (sandbox, events) => {
        let current: SandboxFacts = { ...sandbox, status: 'deleting' };
        for (const event of events) {
          const next = step(current, event);
          if (current.status === 'deleted') assert.equal(next.status, 'deleted');
          else assert.ok(next.status === 'deleting' || next.status === 'deleted');
          current = next;
        }
      }),
    );
  });

  it('keeps what is written about a sandbox consistent over any walk', () => {
    const start = fc.constantFrom(...Object.values(CREATIONS));
    fc.assert(
      fc.property(
        start,
        facts,
        fc.array(fc.constantFrom(...EVENTS), { maxLength: 60 }),
        (creation, shape, events) => {
          let sandbox: SandboxFacts = {
            ...shape,
            status: creation.status,
            desired: creation.desired,
            has_memory: creation.start_from === 'memory',
            start_from: creation.start_from,
          };
          for (const event of events) {
            sandbox = step(sandbox, event);
            if (!sandbox.persistent) {
              assert.ok(
                !['stopping', 'stopped', 'pausing'].includes(sandbox.status),
                `${sandbox.status} by ${event}, not persistent`,
              );
            }
            if (sandbox.status === 'deleted') assert.equal(sandbox.desired, 'deleted');
            // Only for a fork that was acknowledged its host keeps what is being deleted.
            if (sandbox.status === 'deleting')
              assert.ok(sandbox.desired === 'deleted' || sandbox.pending_fork !== null);
            // What lasts is what was wanted; what is on its way goes to what is wanted.
            if (['running', 'stopped', 'paused'].includes(sandbox.status))
              assert.equal(sandbox.desired, sandbox.status, `by ${event}`);
            if (['assigned', 'building', 'booting'].includes(sandbox.status))
              assert.ok(['running', 'paused'].includes(sandbox.desired));
            if (sandbox.start_from === 'memory') assert.ok(sandbox.has_memory);
            if (sandbox.status === 'stopping') assert.equal(sandbox.desired, 'stopped');
            if (sandbox.status === 'pausing') assert.equal(sandbox.desired, 'paused');
            if (sandbox.status === 'failed')
              assert.ok(sandbox.desired === 'deleted' || sandbox.desired === 'stopped');
          }
        },
      ),
      { numRuns: propertyRuns(2000) },
    );
  });

  it('lets every status be reached', () => {
    const reached = new Set<SandboxStatus>(Object.values(CREATIONS).map((creation) => creation.status));
    for (let grew = true; grew; ) {
      grew = false;
      for (const row of TRANSITIONS) {
        if (row.to === 'same' || reached.has(row.to) || !row.from.some((from) => reached.has(from))) continue;
        reached.add(row.to);
        grew = true;
      }
    }
    assert.deepEqual([...reached].sort(), [...SANDBOX_STATUSES].sort());
  });

  it('lets only what the contract calls stoppable be stopped', () => {
    for (const name of SANDBOX_STATUSES) {
      const stops = TRANSITIONS.some(
        (row) => row.on === 'stop' && row.to === 'stopping' && row.from.includes(name),
      );
      assert.equal(stops, SANDBOX_STATUS_FACTS[name].stoppable, name);
    }
  });
});

/** The rows of the specification, in its order: from, event, facts that matter, what must come of it. */
const SPEC: [SandboxStatus, SandboxEvent, Partial<SandboxFacts>, SandboxStatus | 'refused'][] = [
  ['running', 'stop', { persistent: true }, 'stopping'],
  ['stopping', 'observe:stopped', { persistent: true }, 'stopped'],
  ['stopping', 'stop', { persistent: true }, 'stopping'],
  ['stopped', 'stop', { persistent: true }, 'stopped'],
  ['booting', 'stop', { persistent: true }, 'stopping'],
  ['assigned', 'stop', { persistent: true }, 'stopping'],
  ['building', 'stop', { persistent: true }, 'stopping'],
  ['running', 'stop', { persistent: false }, 'refused'],
  ['pending', 'stop', { persistent: true }, 'refused'],
  ['paused', 'stop', { persistent: true }, 'refused'],
  ['stopped', 'start', { persistent: true, manifest_name: 'm' }, 'booting'],
  ['stopped', 'start', { persistent: true, manifest_name: null }, 'refused'],
  ['running', 'start', { persistent: true, manifest_name: 'm' }, 'refused'],
  ['booting', 'start', { persistent: true, manifest_name: 'm' }, 'refused'],
  ['paused', 'start', { persistent: true, manifest_name: 'm', has_memory: true }, 'booting'],
  ['running', 'pause', { persistent: true, volume_count: 0, docker_data_mib: null }, 'pausing'],
  ['pausing', 'observe:paused', { persistent: true, desired: 'paused' }, 'paused'],
  ['running', 'pause', { persistent: false, volume_count: 0, docker_data_mib: null }, 'refused'],
  ['running', 'pause', { persistent: true, volume_count: 1, docker_data_mib: null }, 'refused'],
  ['running', 'pause', { persistent: true, volume_count: 0, docker_data_mib: 512 }, 'refused'],
  ['stopped', 'pause', { persistent: true, volume_count: 0, docker_data_mib: null }, 'refused'],
  ['pausing', 'pause', { persistent: true }, 'pausing'],
  ['paused', 'pause', { persistent: true }, 'paused'],
  ['paused', 'resume', { persistent: true, has_memory: true }, 'booting'],
  ['paused', 'resume', { persistent: true, has_memory: false }, 'refused'],
  [
    'paused',
    'resume',
    { persistent: true, has_memory: true, memory_blocked: 'it is another CPU' },
    'refused',
  ],
  ['paused', 'start', { persistent: true, has_memory: true, memory_blocked: 'it is another CPU' }, 'booting'],
  ['booting', 'resume', { persistent: true, has_memory: true }, 'refused'],
  ['stopped', 'resume', { persistent: true, has_memory: true }, 'refused'],
  ['paused', 'fork', { persistent: true, volume_count: 0, has_memory: true }, 'paused'],
  ['paused', 'fork', { persistent: true, volume_count: 0, has_memory: false }, 'refused'],
  ['running', 'fork', { persistent: true, volume_count: 0 }, 'running'],
  ['running', 'fork', { persistent: true, volume_count: 1 }, 'refused'],
  ['running', 'fork', { persistent: true, docker_data_mib: 512 }, 'refused'],
  ['running', 'fork', { persistent: true, gpu_host: 1 }, 'refused'],
  ['stopped', 'fork', { persistent: true }, 'refused'],
  ['running', 'fork', { persistent: false, volume_count: 0 }, 'refused'],
  ['running', 'delete', {}, 'deleting'],
  ['deleting', 'observe:deleted', {}, 'deleted'],
  ['stopped', 'delete', {}, 'deleted'],
  ['paused', 'delete', {}, 'deleted'],
  ['failed', 'delete', {}, 'deleted'],
  ['lost', 'delete', {}, 'deleted'],
  ['deleting', 'delete', {}, 'deleting'],
  ['deleted', 'delete', {}, 'deleted'],
];

describe('the rows of the specification', () => {
  const plain: SandboxFacts = {
    status: 'running',
    desired: 'running',
    persistent: true,
    spot: false,
    volume_count: 0,
    docker_data_mib: null,
    gpu_host: 0,
    manifest_name: 'm',
    has_memory: false,
    memory_blocked: null,
    start_from: 'disk',
    pending_fork: null,
    move_id: null,
  };
  for (const [from, event, given, expected] of SPEC) {
    it(`${from} · ${event} · ${JSON.stringify(given)} → ${expected}`, () => {
      const sandbox = { ...plain, ...given, status: from };
      const row = decide(event, sandbox);
      if (expected === 'refused') {
        assert.equal(row, undefined);
        assert.match(refusal(event, sandbox), /^it /);
      } else assert.equal(step(sandbox, event).status, expected);
    });
  }
});

describe('the UPDATE made from the table', () => {
  const id = (n: number): string => `00000000-0000-4000-8000-${n.toString(16).padStart(12, '0')}`;

  it('does exactly what the table says, for every status, event and combination of facts', async () => {
    await using database = await openFresh();
    const { pool } = database;
    const { projectId } = await newOrg(database);
    const shapes: SandboxFacts[] = [];
    for (const name of SANDBOX_STATUSES)
      for (const bits of Array.from({ length: 256 }, (_, index) => index))
        shapes.push({
          status: name,
          desired: bits & 1 ? 'paused' : 'running',
          persistent: (bits & 2) > 0,
          spot: (bits & 4) > 0,
          volume_count: bits & 8 ? 1 : 0,
          docker_data_mib: bits & 16 ? 512 : null,
          manifest_name: bits & 32 ? 'm' : null,
          has_memory: (bits & 64) > 0,
          memory_blocked: bits % 5 === 0 ? 'it is another processor' : null,
          gpu_host: bits & 128 ? 1 : 0,
          start_from: (bits & 192) === 192 ? 'memory' : 'disk',
          pending_fork: bits % 3 === 0 ? id(3) : null,
          move_id: bits % 7 === 0 ? MOVE : null,
        });
    const rows = shapes.map((shape, index) => ({
      ...shape,
      id: id(1000 + index),
      job_id: id(900_000 + index),
    }));
    await pool.query(
      `insert into jobs (id, project_id, kind, status, sandbox_id)
       select job_id, '${projectId}', 'vm.create', 'queued', id from jsonb_to_recordset($1::jsonb) as t(id uuid, job_id uuid)`,
      [JSON.stringify(rows)],
    );
    await pool.query(
      `insert into sandboxes (id, job_id, project_id, region, status, desired, persistent, spot, volume_count, docker_data_mib,
         gpu_host, manifest_name, has_memory, memory_blocked, start_from, mode, cpu, mem_mib, scratch_mib, cpu_arch, spec, access_token_hash, env_bytes, held, pending_fork, move_id)
       select id, job_id, '${projectId}', '${REGION}', status, desired, persistent, spot, volume_count, docker_data_mib, gpu_host,
              manifest_name, has_memory, memory_blocked, start_from, 'burstable', 1, 1, 1, 'amd64', $2, decode(repeat('00', 32), 'hex'), ${Buffer.byteLength(ENV)}, true, pending_fork, move_id
         from jsonb_to_recordset($1::jsonb) as t(id uuid, job_id uuid, status text, desired text, persistent boolean, spot boolean,
              volume_count integer, docker_data_mib integer, gpu_host integer, manifest_name text, has_memory boolean, memory_blocked text, start_from text, pending_fork uuid, move_id uuid)`,
      [JSON.stringify(rows), specJson()],
    );
    await pool.query(`insert into sandbox_env (sandbox_id, env) select id, $1 from sandboxes`, [ENV]);
    await using cleanup = new AsyncDisposableStack();
    const client = await pool.connect();
    cleanup.defer(() => client.release(true));
    for (const event of EVENTS) {
      await client.query('begin');
      const made = SANDBOX_SQL.statement(
        event,
        rows.map((row) => ({ id: row.id, begin_move: MOVE })),
        STATE_DEADLINES,
      );
      const moved = made === undefined ? [] : await queryAll<SandboxRow>(client, made.statement, made.values);
      const gone: string[] = [];
      const byId = new Map(moved.map((row) => [row.id, row]));
      for (const shape of rows) {
        const row: Transition | undefined = decide(event, shape);
        const writes = row !== undefined && writing(event).includes(row);
        const after = byId.get(shape.id);
        assert.equal(after !== undefined, writes, `${event} from ${JSON.stringify(shape)}`);
        if (after === undefined || row === undefined) continue;
        const expected = step(shape, event);
        assert.deepEqual(
          {
            status: after.status,
            desired: after.desired,
            has_memory: after.has_memory,
            start_from: after.start_from,
            memory_blocked: after.memory_blocked,
            pending_fork: after.pending_fork,
            move_id: after.move_id,
            generation: after.generation,
          },
          {
            status: expected.status,
            desired: expected.desired,
            has_memory: expected.has_memory,
            start_from: expected.start_from,
            memory_blocked: expected.memory_blocked,
            pending_fork: expected.pending_fork,
            move_id: expected.move_id,
            generation: row.wants === undefined ? 1 : 2,
          },
          `${event} from ${JSON.stringify(shape)}`,
        );
        if (row.to !== 'same')
          assert.equal(after.deadline_at !== null, (TRANSIENT as readonly string[]).includes(after.status));
        if (row.to === 'failed' || row.to === 'lost') assert.notEqual(after.error, null);
        if (row.to === 'deleted') {
          assert.deepEqual([after.env_bytes, after.deleted_at === null], [0, false]);
          gone.push(after.id);
        }
        assert.equal(after.assigned_to_runner, !row.effects?.includes('release'));
      }
      const { rows: kept } = await client.query<{ n: number }>(
        'select count(*)::integer as n from sandbox_env where sandbox_id = any($1)',
        [gone],
      );
      assert.deepEqual(kept, [{ n: 0 }], `${event}: environments of deleted sandboxes`);
      await client.query('rollback');
    }
  });

  it('has one winner when many pull the same event at the same time', async () => {
    await using database = await openFresh();
    const { pool } = database;
    const { projectId } = await newOrg(database);
    for (let n = 0; n < 20; n++) await newSandbox(database, projectId);
    const { rows } = await pool.query<{ id: string }>('update sandboxes set persistent = true returning id');
    const rivals: SandboxEvent[] = [
      'stop',
      'pause',
      'delete',
      'observe:failed',
      'stop',
      'pause',
      'delete',
      'observe:stopped',
    ];
    for (const row of rows) {
      const results = await Promise.all(
        rivals.map(async (event) => {
          const made = SANDBOX_SQL.statement(event, [{ id: row.id, generation: 1 }], STATE_DEADLINES);
          assert.ok(made);
          return (await queryAll<SandboxRow>(pool, made.statement, made.values)).length;
        }),
      );
      assert.equal(
        results.reduce((sum, n) => sum + n, 0),
        1,
      );
    }
  });
});
