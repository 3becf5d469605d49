/**
 * The row of each host says what is allocated there, whatever moves sandboxes and snapshots, and however: random transitions of
 * several hosts at the same time, with transactions that are rolled back and connections that break.
 */
import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { newUuid } from '@releap/contract';
import { openFresh } from '@releap/testing/postgres';
import { propertyRuns } from '@releap/testing/repetitions';
import { quiet } from '@releap/testing/world';
import * as fc from 'fast-check';
import { pino } from 'pino';
import { createLifecycle } from '../src/compute/sandboxes/lifecycle.ts';
import type { Change } from '../src/compute/sandboxes/transition-sql.ts';
import {
  EVENTS,
  OCCUPIES_CPU,
  STATE_DEADLINES,
  type SandboxEvent,
} from '../src/compute/sandboxes/transitions.ts';
import type { Overcommit } from '../src/compute/scheduler/overcommit.ts';
import { allocate } from '../src/compute/scheduler/allocate.ts';
import { readAllHosts, readHosts } from '../src/compute/scheduler/hosts.ts';
import { repairAllocations } from '../src/compute/scheduler/repair-allocations.ts';
import { retryingDeadlocks } from '../src/platform/lifecycle/apply.ts';
import { createSnapshots } from '../src/compute/snapshots/snapshots.ts';
import { SNAPSHOT_MACHINE, type SnapshotEvent } from '../src/compute/snapshots/transitions.ts';

import { newOrg, newRunner, REGION, specJson } from './support/billing.ts';

const HOSTS = 3;
const SANDBOXES = 8;
const SNAPSHOTS = 4;

const database = await openFresh();
const { projectId } = await newOrg(database);
const lifecycle = createLifecycle({ database, deadlines: STATE_DEADLINES, onMoved: () => undefined });
const snapshots = createSnapshots({ database, log: quiet, onMoved: () => undefined });

/** Added up from the sandboxes and snapshots: what the scheduler read before hosts had rows of their own. $1..$3 factors, $4 tier */
const share = (parameter: string): string =>
  `case when case mode when 'dedicated' then $4::text = 'all' else spot or $4::text <> 'spot' end
    then 1 / ${parameter}::double precision else 1 end`;
const RUNNING = `status in (${OCCUPIES_CPU.map((status) => `'${status}'`).join(', ')})`;
const RELEASABLE = `${RUNNING} and (spot or status in ('stopping', 'pausing', 'deleting'))`;
const ADDED_UP = `select r.id, coalesce(u.cpu, 0) as cpu, coalesce(u.mem_mib, 0) as mem_mib,
    coalesce(u.disk_mib, 0) + coalesce(k.disk_mib, 0)::double precision as disk_mib, coalesce(u.gpus, 0)::integer as gpus,
    coalesce(u.releasable_cpu, 0) as releasable_cpu, coalesce(u.releasable_mem_mib, 0) as releasable_mem_mib
  from runners r left join (
    select runner_id, sum(cpu * ${share('$1')}) filter (where ${RUNNING}) as cpu,
           sum(mem_mib * ${share('$2')}) filter (where ${RUNNING}) as mem_mib, sum(gpu_host) filter (where ${RUNNING}) as gpus,
           sum((scratch_mib::double precision + coalesce(docker_data_mib, 0) + case when has_memory then mem_mib else 0 end) * ${share('$3')}) as disk_mib,
           sum(cpu * ${share('$1')}) filter (where ${RELEASABLE}) as releasable_cpu,
           sum(mem_mib * ${share('$2')}) filter (where ${RELEASABLE}) as releasable_mem_mib
      from sandboxes where held group by runner_id
  ) u on u.runner_id = r.id
  left join (
    select runner_id, ceil(sum(coalesce(disk_bytes, 0) + coalesce(mem_bytes, 0)) / 1048576) as disk_mib
      from snapshots where held group by runner_id
  ) k on k.runner_id = r.id order by r.id`;

async function checkRows(): Promise<void> {
  const { rows: wrong } = await database.pool.query('select * from wrong_host_allocations()');
  assert.deepEqual(wrong, []);
  // Also when the settings change, of which the rows know nothing.
  for (const tier of ['spot', 'burstable', 'all'] as const) {
    const overcommit: Overcommit = { cpu: 8, mem: 4, disk: 2, tier };
    const { rows } = await database.pool.query(ADDED_UP, [
      overcommit.cpu,
      overcommit.mem,
      overcommit.disk,
      tier,
    ]);
    const all = new Map((await readAllHosts(database.pool, overcommit)).map(({ host }) => [host.id, host]));
    const usage = new Map((await readHosts(database.pool, overcommit)).map((host) => [host.id, host]));
    for (const { id, releasable_cpu, releasable_mem_mib, ...used } of rows) {
      assert.deepEqual(all.get(id)?.used, used);
      assert.deepEqual(usage.get(id)?.releasable, { cpu: releasable_cpu, mem_mib: releasable_mem_mib });
    }
  }
}

const size = fc.record({
  mode: fc.constantFrom('burstable', 'dedicated'),
  spot: fc.boolean(),
  cpu: fc.constantFrom<number[]>(0.125, 0.5, 2),
  mem_mib: fc.integer({ min: 1, max: 2 ** 31 - 1 }),
  scratch_mib: fc.integer({ min: 1, max: 2 ** 31 - 1 }),
  docker_data_mib: fc.option(fc.integer({ min: 1, max: 4096 })),
  gpu_host: fc.constantFrom<number[]>(0, 0, 1),
  persistent: fc.boolean(),
});
const some = (of: number): fc.Arbitrary<number[]> =>
  fc.uniqueArray(fc.nat({ max: of - 1 }), { minLength: 1, maxLength: of });
type Sizes = typeof size extends fc.Arbitrary<infer T> ? T : never;
type End = 'commit' | 'rollback' | 'break';
const act = fc.oneof(
  {
    weight: 12,
    arbitrary: fc.record({
      kind: fc.constant('move' as const),
      event: fc.constantFrom<SandboxEvent>('place', 'place', 'observe:running', 'observe:deleted', ...EVENTS),
      which: some(SANDBOXES),
      end: fc.constantFrom<End>('commit', 'commit', 'commit', 'rollback', 'break'),
    }),
  },
  {
    weight: 4,
    arbitrary: fc.record({
      kind: fc.constant('snapshots' as const),
      event: fc.constantFrom<SnapshotEvent>('observe:ready', ...SNAPSHOT_MACHINE.events),
      which: some(SNAPSHOTS),
      bytes: fc.bigInt({ min: 0n, max: 2n ** 62n }),
    }),
  },
  { weight: 1, arbitrary: fc.record({ kind: fc.constant('fork' as const), size }) },
  { weight: 1, arbitrary: fc.record({ kind: fc.constant('delete' as const), which: some(SANDBOXES) }) },
);
type Act = typeof act extends fc.Arbitrary<infer T> ? T : never;

class Fleet {
  readonly hosts: string[] = [];
  readonly sandboxes: string[] = [];
  readonly snapshots: string[] = [];

  async sandbox(sizes: Sizes, host: string | null): Promise<void> {
    const id = newUuid();
    this.sandboxes.push(id);
    await database.pool.query(
      `insert into sandboxes (id, job_id, project_id, region, status, desired, deadline_at, runner_id, held, mode, spot, cpu,
         mem_mib, scratch_mib, docker_data_mib, gpu_host, persistent, has_memory, cpu_arch, spec, access_token_hash)
       values ($1, gen_random_uuid(), $2, '${REGION}', $3, 'running', now() + interval '1 hour', $4, $4::uuid is not null, $5, $6, $7,
         $8, $9, $10, $11, $12, $4::uuid is not null, 'amd64', $13, decode(repeat('00', 32), 'hex'))`,
      // biome-ignore format: the parameters in order
      [id, projectId, host === null ? 'pending' : 'assigned', host, sizes.mode, sizes.spot, sizes.cpu, sizes.mem_mib, sizes.scratch_mib,
        sizes.docker_data_mib, sizes.gpu_host, sizes.persistent, specJson()],
    );
  }

  async snapshot(host: string): Promise<void> {
    const id = newUuid();
    this.snapshots.push(id);
    await database.pool.query(
      `insert into snapshots (id, project_id, name, kind, status, desired, runner_id, held, job_id, sandbox_id, region, spec, mode,
         cpu, mem_mib, scratch_mib, cpu_arch)
       values ($1::uuid, $2, $1::text, 'disk', 'pending', 'ready', $3, true, gen_random_uuid(), $4, '${REGION}', $5, 'burstable', 1, 1, 1, 'amd64')`,
      [id, projectId, host, this.sandboxes[0], specJson({ name: null })],
    );
  }

  host(n: number): string {
    return this.hosts[n % HOSTS] ?? '';
  }

  async run(one: Act): Promise<void> {
    if (one.kind === 'fork') return this.sandbox(one.size, this.host(one.size.mem_mib));
    if (one.kind === 'delete') {
      // As the retention and the tear-down do, and whatever is held.
      const ids = one.which.map((n) => this.sandboxes[n]);
      await retryingDeadlocks(() =>
        database.pool.query(
          'delete from sandboxes s where id = any($1) and not exists (select 1 from snapshots k where k.sandbox_id = s.id)',
          [ids],
        ),
      );
      return;
    }
    if (one.kind === 'snapshots') {
      const changes = one.which.map((n) => ({ id: this.snapshots[n] ?? '', disk_bytes: Number(one.bytes) }));
      await snapshots.apply(one.event, changes);
      return;
    }
    const changes = one.which.map(
      (n): Change => ({
        id: this.sandboxes[n] ?? '',
        manifest_name: 'sha256:1',
        ...(one.event === 'place' ? { place_on: this.host(n) } : {}),
      }),
    );
    if (one.end === 'commit') await lifecycle.apply(one.event, changes);
    else
      await allocate(database, async (client) => {
        await lifecycle.applyWithin(client, one.event, changes);
        if (one.end === 'break')
          await client.query('select pg_terminate_backend(pg_backend_pid())').catch(() => undefined);
        throw new Error('not this time');
      }).catch(() => undefined);
  }
}

describe('the allocations of a host', () => {
  it('are what its sandboxes and snapshots add up to, after random transitions of several at the same time', async () => {
    await fc.assert(
      fc.asyncProperty(
        fc.array(size, { minLength: SANDBOXES, maxLength: SANDBOXES }),
        fc.array(fc.array(act, { minLength: 1, maxLength: 4 }), { minLength: 5, maxLength: 15 }),
        async (sizes, steps) => {
          await database.pool.query('truncate snapshots, sandboxes, jobs cascade');
          await checkRows();
          const fleet = new Fleet();
          for (let n = 0; n < HOSTS; n++) fleet.hosts.push(await newRunner(database));
          for (const one of sizes) await fleet.sandbox(one, null);
          for (let n = 0; n < SNAPSHOTS; n++) await fleet.snapshot(fleet.host(n));
          for (const together of steps) {
            await Promise.all(together.map((one) => fleet.run(one)));
            await checkRows();
          }
        },
      ),
      { numRuns: propertyRuns(50), endOnFailure: true },
    );
  });

  it('are left alone by a transition that allocates and releases nothing', async () => {
    const runner = await newRunner(database);
    const fleet = new Fleet();
    await fleet.sandbox(
      // biome-ignore format: one sandbox
      { mode: 'burstable', spot: false, cpu: 1, mem_mib: 1, scratch_mib: 1, docker_data_mib: null, gpu_host: 0, persistent: true },
      null,
    );
    const [id = ''] = fleet.sandboxes;
    await lifecycle.apply('place', [{ id, place_on: runner }]);
    const version = async (): Promise<unknown> =>
      (await database.pool.query('select xmin from host_allocations where runner_id = $1', [runner])).rows;
    const before = await version();
    assert.equal((await lifecycle.apply('observe:booting', [{ id }])).length, 1);
    assert.deepEqual(await version(), before);
  });

  it('are counted again when they are wrong, which is logged as an error', async () => {
    const runner = await newRunner(database);
    await database.pool.query('update host_allocations set spot_cpu = 5 where runner_id = $1', [runner]);
    const lines: string[] = [];
    const log = pino({}, { write: (line: string) => void lines.push(line) });
    await repairAllocations({ database, log });
    const [line = '{}'] = lines;
    const { level, runner: host, kept, counted } = JSON.parse(line);
    assert.deepEqual([lines.length, level, host, kept.spot_cpu, counted.spot_cpu], [1, 50, runner, 5, 0]);
    await checkRows();
    await repairAllocations({ database, log });
    assert.equal(lines.length, 1);
  });
});
