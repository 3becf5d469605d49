/**
 * The sum that is charged is the time for which guests held processors, within a meter's period: sandboxes, builds, trials of versions,
 * starts of instances and calls of functions, over deletions of any of them, of functions and of projects, cut connections, deaths of hosts, gateways and
 * servers, and clocks that are set.
 */
import assert from 'node:assert/strict';
import { after, before, it } from 'node:test';
import { newUuid } from '@releap/contract';
import * as fc from 'fast-check';
import { propertyRuns } from '@releap/testing/repetitions';
import { quiet } from '@releap/testing/postgres';
import { billingModule } from '../src/tenancy/billing/module.ts';
import { chargeMeters } from '../src/tenancy/billing/charge-meters.ts';
import { createClockSteps } from '../src/tenancy/billing/clock-steps.ts';
import { chargeFunctions } from '../src/tenancy/billing/function-charges.ts';
import type { ControlServices } from '../src/services.ts';
import { createEventBus } from '../src/platform/events/event-bus.ts';
import { deleteFunction } from '../src/functions/versions/delete.ts';
import { functionTeardown } from '../src/functions/versions/teardown.ts';
import { invocationLogModule } from '../src/functions/invocations/log-module.ts';
import { endAbandoned } from '../src/functions/invocations/running.ts';
import { imagesModule } from '../src/storage/images/module.ts';
import { inOrder } from '../src/platform/teardown/step.ts';
import { accounts, newOrg, PRICES } from './support/billing.ts';
import type { FunctionRow } from './support/functions.ts';
import { Guests } from './support/guests.ts';
import { VirtualClock } from './support/virtual-clock.ts';

const SIZE = { millicores: 1_777, memMib: 3_333, gpus: 0, spot: false };
const METER_MS = 60_000;
const ABANDONED_MS = 180_000;
const GRACE_MS = 120_000;

let clock: VirtualClock;
let context: ControlServices;
before(async () => {
  clock = await VirtualClock.open();
  const ended = { apply: async () => [] };
  context = {
    database: clock.database,
    events: createEventBus(quiet),
    limits: { teardownGraceMs: GRACE_MS },
    billing: { settings: {} },
    builds: { kick: () => undefined },
    lifecycle: ended,
    snapshots: ended,
    log: quiet,
  } as unknown as ControlServices;
});
after(async () => clock[Symbol.asyncDispose]());

const action = fc.record({
  does: fc.constantFrom(
    'start a sandbox',
    'start a sandbox',
    'start a build',
    'start a trial',
    'start an instance',
    'start an instance',
    'an instance listens',
    'start a call',
    'start a call',
    'end one',
    'end one',
    'cut the connection of a call',
    'delete a function',
    'delete a project',
    'kill a host',
    'kill a gateway',
    'kill a server',
    'set the clock',
    'nothing',
  ),
  which: fc.nat(),
  /** Before and after it, in microseconds. */
  before: fc.integer({ min: 1, max: 9_999_999 }),
  after: fc.integer({ min: 1, max: 29_999_999 }),
  step: fc.integer({ min: -3_600_000_000, max: 3_600_000_000 }),
});
type Action = typeof action extends fc.Arbitrary<infer A> ? A : never;

/** One organization with two projects and two servers, and what happens to it. */
class Installation {
  readonly #guests = new Guests(clock);
  readonly #deleted = new Set<string>();
  readonly #projects: FunctionRow[][] = [];
  readonly #ids: string[] = [];
  readonly #servers = [1, 2].map(() =>
    createClockSteps(context.database, quiet, () => Number(clock.passed) / 1_000),
  );
  orgId = '';

  async begin(): Promise<void> {
    const { database } = context;
    const { orgId, projectId } = await newOrg(database);
    this.orgId = orgId;
    const second = newUuid();
    await database.pool.query(`insert into projects (id, org_id, name) values ($1, $2, 'two')`, [
      second,
      orgId,
    ]);
    await this.#guests.addHost();
    this.#guests.addGateway();
    for (const id of [projectId, second]) {
      this.#ids.push(id);
      this.#projects.push([await this.#guests.newFunction(id), await this.#guests.newFunction(id)]);
    }
    for (const server of this.#servers) await server.look();
  }

  async run({ does, which, before: early, after: late, step }: Action): Promise<void> {
    await clock.pass(early);
    const guests = this.#guests;
    const at = which % 2;
    const [projectId, functions] = [this.#ids[at] ?? '', this.#projects[at] ?? []];
    const fn = functions[(which >> 1) % functions.length];
    const isThere = !this.#deleted.has(projectId);
    const living = guests.all.filter(({ since }) => since !== undefined);
    const one = living[which % living.length];
    if (does === 'start a sandbox' && isThere) await guests.startSandbox(projectId, SIZE);
    if (does === 'start a build' && isThere) await guests.startBuild(projectId);
    if (does === 'start a trial' && isThere && fn !== undefined) await guests.startTrial(fn);
    if (does === 'start an instance' && isThere && fn !== undefined) await guests.startInstance(fn);
    if (does === 'an instance listens') {
      const starting = living.filter(({ kind }) => kind === 'start');
      const started = starting[which % starting.length];
      if (started !== undefined) await guests.listen(started);
    }
    if (does === 'start a call' && isThere && fn !== undefined) await guests.startCall(fn);
    if (does === 'end one' && one !== undefined) await guests.end(one);
    if (does === 'cut the connection of a call' && one?.kind === 'call') await guests.end(one, 'failed');
    if (does === 'delete a function' && isThere && fn !== undefined) {
      // What runs of it ends later.
      functions.splice(functions.indexOf(fn), 1);
      await deleteFunction(context, projectId, fn.name);
    }
    if (does === 'delete a project' && isThere) await this.#delete(projectId);
    if (does === 'kill a host') {
      const host = guests.hosts.at(-1);
      if (host !== undefined) guests.kill(host);
      await guests.addHost();
    }
    if (does === 'kill a gateway') {
      const gateway = guests.gateways.at(-1);
      if (gateway !== undefined) await guests.killGateway(gateway);
      guests.addGateway();
    }
    if (does === 'set the clock') {
      await clock.set(step);
      guests.allow(BigInt(METER_MS + 60_000) * 1_000n);
    }
    if (does === 'kill a server') {
      await clock.pass(late);
      await guests.report();
      await context.database
        .transaction(async (client) => {
          await chargeMeters(client, PRICES, { meterMs: METER_MS });
          await chargeFunctions(client);
          throw new Error('dies before the commit');
        })
        .catch(() => undefined);
    }
    await clock.pass(late);
    await this.#pass();
  }

  /** What the API does at once: its sandboxes and builds end, calls are answered later. */
  async #delete(projectId: string): Promise<void> {
    this.#deleted.add(projectId);
    await context.database.pool.query('update projects set deleted_at = now() where id = $1', [projectId]);
    for (const guest of this.#guests.all)
      if (guest.projectId === projectId && guest.kind !== 'call') await this.#guests.end(guest);
  }

  async #pass(meterMs = METER_MS): Promise<void> {
    const { pool } = context.database;
    await this.#guests.report();
    for (const server of this.#servers) await server.look();
    const meters = await Promise.all([1, 2].map(() => chargeMeters(pool, PRICES, { meterMs })));
    const functions = await Promise.all([1, 2].map(() => chargeFunctions(pool)));
    for (const { parked } of [...meters, ...functions]) assert.deepEqual(parked, []);
    await endAbandoned(pool, ABANDONED_MS);
    for (const projectId of this.#deleted) await this.#tearDown(projectId);
  }

  async #tearDown(projectId: string): Promise<void> {
    const steps = inOrder([
      ...functionTeardown(context),
      ...(imagesModule(context).teardown ?? []),
      ...(billingModule(context).teardown ?? []),
      ...(invocationLogModule(context).teardown ?? []),
    ]);
    for (const step of steps) await step.run(projectId);
  }

  /** All guests end, both projects are deleted, and all that is known of them is charged and erased. */
  async end(): Promise<void> {
    for (const guest of this.#guests.all) await this.#guests.end(guest);
    for (const projectId of this.#ids) if (!this.#deleted.has(projectId)) await this.#delete(projectId);
    for (let pass = 0; pass < 10; pass++) {
      // Beyond all hours by which the clock was set back: what was deleted before is to be erased long after it.
      await clock.pass(10_000_000_000);
      await this.#pass(0);
    }
  }

  async check(): Promise<void> {
    const { pool } = context.database;
    const left = await pool.query(
      `select 'function' as what from functions where project_id = any($1)
       union all select 'invocation' from invocations where project_id = any($1)
       union all select 'meter' from function_meters where project_id = any($1)
       union all select 'meter' from sandbox_meters where org_id = $2`,
      [this.#ids, this.orgId],
    );
    assert.deepEqual(left.rows, []);
    const account = (await accounts(context.database)).find(({ org_id: id }) => id === this.orgId);
    assert.equal(account?.balance ?? 0n, account?.sum ?? 0n);
    const charged = -(account?.balance ?? 0n);
    const { least, most } = this.#guests.cost(this.#ids, SIZE);
    assert.ok(charged <= most, `${charged} were charged, and at most ${most} were used`);
    assert.ok(charged >= least, `${charged} were charged, and at least ${least} were used`);
  }
}

/** While a call and a trial run that nothing has reported yet. */
const during = (does: Action['does']): Action[] =>
  (['start a trial', 'start a call', does, 'nothing', 'nothing'] as const).map((each) => ({
    does: each,
    which: 0,
    before: 1_000_000,
    after: 1_000_000,
    step: 0,
  }));

it('what is charged is what guests held, whatever is deleted, cut, killed or set meanwhile', async () => {
  await fc.assert(
    fc.asyncProperty(fc.array(action, { minLength: 1, maxLength: 25 }), async (actions) => {
      const installation = new Installation();
      await installation.begin();
      for (const one of actions) await installation.run(one);
      await installation.end();
      await installation.check();
    }),
    { numRuns: propertyRuns(100), examples: [[during('delete a project')], [during('delete a function')]] },
  );
});

it('an instance whose handler listens is charged for its calls only', async () => {
  const installation = new Installation();
  await installation.begin();
  const one = { which: 0, before: 1_000_000, after: 29_000_000, step: 0 };
  for (const does of ['start an instance', 'an instance listens', 'nothing', 'nothing'] as const)
    await installation.run({ ...one, does });
  await installation.end();
  await installation.check();
});

it('an instance whose handler never listens is charged for its start, after what is free of it', async () => {
  const installation = new Installation();
  await installation.begin();
  const one = { which: 0, before: 9_000_000, after: 29_000_000, step: 0 };
  for (const does of ['start an instance', 'nothing', 'nothing', 'end one'] as const)
    await installation.run({ ...one, does });
  await installation.end();
  await installation.check();
});

for (const what of ['sandbox', 'build'] as const)
  it(`a host that dies before the clock is set back by an hour is charged up to its last heartbeat: a ${what}`, async () => {
    const installation = new Installation();
    await installation.begin();
    const one = { which: 0, before: 5_000_000, after: 9_000_000, step: -3_600_000_000 };
    for (const does of [`start a ${what}`, 'nothing', 'kill a host', 'set the clock', 'nothing'] as const)
      await installation.run({ ...one, does });
    await installation.end();
    await installation.check();
  });
