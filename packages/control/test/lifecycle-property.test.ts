/**
 * Random histories of sandboxes on a real PostgreSQL: calls, a host that answers late, twice, in the wrong order or
 * not at all, crashes, restarts and deadlines, several at the same time. The table without SQL is the model.
 */
import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { newUuid } from '@releap/contract';
import { inspect } from '@releap/testing/inspect';
import { toAssignment as flat, type Assignment, type Observation } from '@releap/testing/runner-messages';
import * as fc from 'fast-check';
import { openFresh } from '@releap/testing/postgres';
import { toAssignment } from '../src/compute/sandboxes/assignment.ts';
import { createLifecycle } from '../src/compute/sandboxes/lifecycle.ts';
import type { SandboxRow } from '@releap/database';
import { propertyRuns } from '@releap/testing/repetitions';
import { assignable } from '../src/compute/sandboxes/environment.ts';
import type { Change } from '../src/compute/sandboxes/transition-sql.ts';
import {
  decide,
  STATE_DEADLINES,
  TRANSIENT,
  type SandboxFacts,
  type SandboxEvent,
} from '../src/compute/sandboxes/transitions.ts';
import { newOrg, newRunner, REGION, specJson } from './support/billing.ts';
import { HostModel, type Outcome } from './support/host-model.ts';
import { step } from './support/model.ts';

/** Assignments that were sent to hosts, by sandbox, in order. */
const told = new Map<string, Assignment[]>();

const database = await openFresh();
const { projectId } = await newOrg(database);
const runnerId = await newRunner(database);
const lifecycle = createLifecycle({
  database,
  deadlines: STATE_DEADLINES,
  onMoved(rows) {
    for (const row of rows)
      if (row.assigned_to_runner) told.get(row.id)?.push(flat(toAssignment(assignable(row))));
  },
});

type Facts = SandboxFacts & { generation: number; assigned_to_runner: boolean };

/** The model with what the table does beside: the fence, and what the host holds. */
function move(facts: Facts, pull: Pull): { facts: Facts; moved: boolean } {
  if (pull.generation !== undefined && pull.generation !== facts.generation) return { facts, moved: false };
  const next = step(facts, pull.trigger, pull);
  return { facts: next, moved: next !== facts };
}

interface Pull {
  trigger: SandboxEvent;
  generation?: number;
  manifest_name?: string;
  memory?: boolean;
}

async function apply(id: string, { trigger, ...said }: Pull): Promise<SandboxRow | undefined> {
  const change: Change = { id, ...said };
  if (trigger === 'place') change.place_on = runnerId;
  if (trigger.startsWith('observe:')) change.runner_id = runnerId;
  return (await lifecycle.apply(trigger, [change]))[0];
}

const readRow = (id: string): Promise<SandboxRow> => inspect(database, { uuid: id });

async function newSandbox(persistent: boolean, source?: Life): Promise<string> {
  const id = newUuid();
  told.set(id, []);
  await database.pool.query(
    `insert into sandboxes (id, job_id, project_id, region, status, desired, deadline_at, persistent, mode, cpu, mem_mib, scratch_mib,
       cpu_arch, spec, access_token_hash)
     values ($1, gen_random_uuid(), $2, '${REGION}', 'pending', 'running', now() + interval '1 hour', $3, 'burstable', 1, 1, 1,
       'amd64', $4, decode(repeat('00', 32), 'hex'))`,
    [
      id,
      projectId,
      persistent,
      specJson({ origin: source === undefined ? null : { type: 'fork', vm_id: source.id } }),
    ],
  );
  if (source === undefined) return id;
  // As a fork writes it: on its host already, and to become what the source is.
  await database.pool.query(
    `update sandboxes set status = 'assigned', held = true, runner_id = $2, has_memory = true, desired = $3, start_from = $4,
       forked_from = $5 where id = $1`,
    [id, runnerId, source.facts.status, source.facts.status === 'running' ? 'memory' : 'disk', source.id],
  );
  told.get(id)?.push(flat(toAssignment(assignable(await readRow(id)))));
  return id;
}

/** One sandbox, its host, and the model beside them. */
class Life {
  readonly id: string;
  readonly host: HostModel;
  facts: Facts;
  /** A client has read that it runs: from now on its disk must not be lost. */
  hasRun = false;

  constructor(id: string, persistent: boolean, source?: Life) {
    this.id = id;
    this.host = new HostModel(persistent, source?.host);
    this.facts = {
      status: 'pending',
      desired: 'running',
      persistent,
      spot: false,
      volume_count: 0,
      docker_data_mib: null,
      gpu_host: 0,
      manifest_name: null,
      has_memory: false,
      memory_blocked: null,
      start_from: 'disk',
      pending_fork: null,
      move_id: null,
      generation: 1,
      assigned_to_runner: false,
    };
    if (source === undefined) return;
    const runs = source.facts.status === 'running';
    this.facts.status = 'assigned';
    this.facts.desired = runs ? 'running' : 'paused';
    this.facts.start_from = runs ? 'memory' : 'disk';
    this.facts.has_memory = this.facts.assigned_to_runner = true;
  }

  /** Applies them concurrently: the result must be that of some sequential order. */
  async pull(pulls: Pull[]): Promise<void> {
    const before = this.facts;
    const rows = await Promise.all(pulls.map((pull) => apply(this.id, pull)));
    const now = await readRow(this.id);
    const seen = rows.map((row) => row !== undefined);
    const explained = orders(pulls.map((_, index) => index)).some((order) => {
      let facts = before;
      const moved: boolean[] = [];
      for (const index of order) {
        const pull = pulls[index];
        assert.ok(pull);
        const result = move(facts, pull);
        // The generation is part of the row, and grows with the desired state.
        const row = rows[index];
        facts =
          result.moved && row
            ? { ...result.facts, generation: row.generation, assigned_to_runner: row.assigned_to_runner }
            : result.facts;
        moved[index] = result.moved;
      }
      this.facts = { ...facts, generation: now.generation, assigned_to_runner: now.assigned_to_runner };
      return (
        JSON.stringify(moved) === JSON.stringify(seen) &&
        (Object.keys(before) as (keyof Facts)[]).every((key) => this.facts[key] === now[key])
      );
    });
    assert.ok(
      explained,
      `${JSON.stringify(pulls)} of ${JSON.stringify(before)} made ${JSON.stringify(seen)} and ${now.status}/${now.desired}`,
    );
    this.hold(now);
  }

  /** Invariants of every row. */
  hold(row: SandboxRow): void {
    assert.equal(row.deadline_at !== null, (TRANSIENT as readonly string[]).includes(row.status), row.status);
    if (['running', 'stopped', 'paused'].includes(row.status)) assert.equal(row.desired, row.status);
    if (row.start_from === 'memory') assert.ok(row.has_memory);
    if (['running', 'stopping', 'stopped'].includes(row.status))
      assert.ok(!row.has_memory, 'memory of the past');
    if (row.status === 'running') this.hasRun = true;
    if (['stopped', 'paused', 'failed', 'lost', 'deleted'].includes(row.status))
      assert.equal(row.vm_ip, null);
    if (this.hasRun && row.persistent && row.deleted_at === null && row.status !== 'deleting')
      assert.notEqual(row.desired, 'deleted', 'the disk of what has run is kept');
  }

  /** The host receives its newest assignment, applies it, and reports the result. */
  async obey(how: Outcome): Promise<void> {
    const newest = told.get(this.id)?.at(-1);
    if (newest) this.host.receive(newest);
    const before = this.host.said.length;
    this.host.converge(how);
    for (const observation of this.host.said.slice(before)) await this.observe(observation);
  }

  observe(observation: Observation | undefined): Promise<void> | undefined {
    if (observation === undefined) return undefined;
    const { status, generation, manifest_name, memory } = observation;
    return this.pull([
      {
        trigger: `observe:${status}`,
        generation,
        ...(manifest_name === undefined ? {} : { manifest_name }),
        ...(memory === undefined ? {} : { memory }),
      },
    ]);
  }

  /** From now on the host and the server do what they should, and no message is lost. */
  async settle(): Promise<SandboxRow> {
    for (let round = 0; round < 12; round++) {
      const before = await readRow(this.id);
      if (before.status === 'pending') await this.pull([{ trigger: 'place' }]);
      const row = await readRow(this.id);
      if (row.assigned_to_runner) {
        this.host.receive(flat(toAssignment(assignable(row))));
        this.host.converge('well');
        await this.observe(this.host.said.at(-1));
      }
      const after = await readRow(this.id);
      if (after.generation === before.generation && after.status === before.status && round > 0) return after;
    }
    return assert.fail(`it does not come to rest: ${(await readRow(this.id)).status}`);
  }
}

const orders = (items: number[]): number[][] =>
  items.length < 2
    ? [items]
    : items.flatMap((item) => orders(items.filter((other) => other !== item)).map((rest) => [item, ...rest]));

const USER = ['stop', 'start', 'pause', 'resume'] as const;
const user = fc.constantFrom<SandboxEvent>(...USER);
const outcome = fc.oneof(
  { weight: 6, arbitrary: fc.constant<Outcome>('well') },
  { weight: 2, arbitrary: fc.constant<Outcome>('badly') },
  { weight: 1, arbitrary: fc.constant<Outcome>('worse') },
);
const which = fc.nat({ max: 30 });
type Act = (life: Life) => Promise<void> | undefined;
interface Step {
  text: string;
  act: Act;
}
const named = (text: string, act: Act): Step => ({ text, act });

const steps: fc.Arbitrary<Step> = fc.oneof(
  { weight: 2, arbitrary: user.map((trigger) => named(trigger, (life) => life.pull([{ trigger }]))) },
  {
    // An event that its status allows, so that histories get long.
    weight: 7,
    arbitrary: fc.nat({ max: 11 }).map((pick) =>
      named(`possible call ${pick}`, (life) => {
        const possible = USER.filter((trigger) => decide(trigger, life.facts) !== undefined);
        const trigger = possible[pick % possible.length];
        return trigger && life.pull([{ trigger }]);
      }),
    ),
  },
  {
    weight: 8,
    arbitrary: outcome.map((how) =>
      named(`the host does it ${how}, and all of it is heard`, (life) => life.obey(how)),
    ),
  },
  {
    weight: 3,
    arbitrary: fc.tuple(which, outcome).map(([index, how]) =>
      named(`host does what it was told ${index} ago ${how}, and nothing is heard`, async (life) => {
        const late = told.get(life.id)?.at(-1 - index);
        if (late) life.host.receive(late);
        life.host.converge(how);
      }),
    ),
  },
  {
    weight: 4,
    arbitrary: which.map((index) =>
      named(`what the host said ${index} ago is heard`, (life) =>
        life.observe(life.host.said.at(-1 - index)),
      ),
    ),
  },
  { weight: 1, arbitrary: fc.constant(named('the VMM dies', async (life) => life.host.dies())) },
  { weight: 1, arbitrary: fc.constant(named('the guest powers off', async (life) => life.host.powersOff())) },
  { weight: 1, arbitrary: fc.constant(named('the host restarts', async (life) => life.host.restarts())) },
  { weight: 2, arbitrary: fc.constant(named('deadline', (life) => life.pull([{ trigger: 'deadline' }]))) },
  {
    weight: 1,
    arbitrary: fc.constant(named('runner-lost', (life) => life.pull([{ trigger: 'runner-lost' }]))),
  },
  {
    weight: 3,
    arbitrary: fc.tuple(user, user, which).map(([one, two, index]) =>
      named(`${one}, ${two} and what the host said ${index} ago, at the same time`, (life) => {
        const said = life.host.said.at(-1 - index);
        return life.pull([
          { trigger: one },
          { trigger: two },
          ...(said ? [{ trigger: `observe:${said.status}`, generation: said.generation } as const] : []),
        ]);
      }),
    ),
  },
);
const shown = (all: readonly Step[]): string => all.map((one) => one.text).join('; ');
interface LifeStory {
  persistent: boolean;
  begun: boolean;
  steps: Step[];
}
const lives: fc.Arbitrary<LifeStory> = fc
  .record({
    persistent: fc.constantFrom(true, true, true, false),
    begun: fc.constantFrom(true, true, false),
    steps: fc.array(steps, { minLength: 1, maxLength: 40, size: 'max' }),
  })
  .map((life) => ({
    ...life,
    toString: () =>
      `${life.persistent ? 'persistent' : 'ephemeral'}${life.begun ? ', running' : ''}: ${shown(life.steps)}`,
  }));

async function live({ persistent, begun, steps: all }: LifeStory): Promise<Life> {
  const life = new Life(await newSandbox(persistent), persistent);
  await life.pull([{ trigger: 'place' }]);
  if (begun) await life.obey('well');
  for (const one of all) await one.act(life);
  return life;
}

/** No side waits for another any more, and the rows agree with the host. Then it is deleted. */
async function restsAndGoes(life: Life): Promise<void> {
  const rest = await life.settle();
  const { host } = life;
  const { persistent } = life.facts;
  const agreed = `${rest.status}, wanted ${rest.desired}; host: vm ${host.vm}, disk ${host.disk}, memory ${host.memory}`;
  assert.ok(!(TRANSIENT as readonly string[]).includes(rest.status), agreed);
  assert.equal(host.vm, rest.status === 'running', agreed);
  if (rest.status === 'lost') assert.deepEqual([persistent, rest.assigned_to_runner], [false, false], agreed);
  if (rest.status === 'paused') assert.equal(rest.has_memory, host.memory, agreed);
  else assert.equal(host.memory, false, agreed);
  if (persistent && life.hasRun) assert.equal(host.disk, true, agreed);

  await life.pull([{ trigger: 'delete' }]);
  const gone = await life.settle();
  assert.deepEqual([gone.status, gone.assigned_to_runner], ['deleted', false]);
  assert.deepEqual([host.vm, host.disk, host.memory], [false, false, false]);
}

describe('any history of a sandbox', () => {
  it('follows the table, has one winner at a time, converges with its host, and can be deleted', async () => {
    await fc.assert(
      fc.asyncProperty(lives, async (given) => {
        await restsAndGoes(await live(given));
      }),
      { numRuns: propertyRuns(150) },
    );
  });

  it('can be deleted at any time, though its host never responds again', async () => {
    await fc.assert(
      fc.asyncProperty(lives, async (given) => {
        const life = await live(given);
        await life.pull([{ trigger: 'delete' }]);
        assert.ok(['deleting', 'deleted'].includes(life.facts.status));
        await life.pull([{ trigger: 'deadline' }]);
        assert.equal(life.facts.status, 'deleted');
      }),
      { numRuns: propertyRuns(50) },
    );
  });

  it('and of its fork: neither costs the other anything, whatever the outcome of both', async () => {
    const families = fc
      .record({
        paused: fc.boolean(),
        steps: fc.array(fc.tuple(fc.constantFrom('source', 'child', 'child'), steps), {
          minLength: 1,
          maxLength: 30,
          size: 'max',
        }),
      })
      .map((family) => ({
        ...family,
        toString: () =>
          `${family.paused ? 'paused' : 'running'}: ${family.steps.map(([who, one]) => `${who} ${one.text}`).join('; ')}`,
      }));
    await fc.assert(
      fc.asyncProperty(families, async (given) => {
        const source = await live({ persistent: true, begun: true, steps: [] });
        if (given.paused) {
          await source.pull([{ trigger: 'pause' }]);
          await source.obey('well');
        }
        assert.notEqual(decide('fork', source.facts), undefined);
        const child = new Life(await newSandbox(true, source), true, source);
        for (const [who, one] of given.steps) await one.act(who === 'source' ? source : child);
        await restsAndGoes(child);
        await restsAndGoes(source);
      }),
      { numRuns: propertyRuns(80) },
    );
  });
});
