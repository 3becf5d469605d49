/** Sandboxes in the states that the tests of the life cycle begin with. */
import assert from 'node:assert/strict';
import type { SandboxStatus } from '@releap/contract';
import { inspect, type InspectedSandbox } from '@releap/testing/inspect';
import type { Assignment } from '@releap/testing/runner-messages';
import { TRANSIENT } from '../../src/compute/sandboxes/transitions.ts';
import {
  create,
  obedient,
  silent,
  until,
  waitFor,
  type Answer,
  type Created,
  type Script,
  type ScriptedRunner,
  type World,
  refusalOf,
} from '@releap/testing/world';

export type Verb = 'stop' | 'start' | 'pause' | 'resume';
export const VERBS: readonly Verb[] = ['stop', 'start', 'pause', 'resume'];

/** Obeys, except those that are in the set: they are left to the test. */
export function obedientExcept(left: ReadonlySet<string>): Script {
  return (assignment, runner) => (left.has(assignment.vm_id) ? undefined : obedient(assignment, runner));
}

export class Stage {
  readonly world: World;
  readonly runner: ScriptedRunner;
  /** What the runner leaves to the test. */
  readonly left = new Set<string>();

  private constructor(world: World, runner: ScriptedRunner) {
    this.world = world;
    this.runner = runner;
    runner.options.script = obedientExcept(this.left);
  }

  static async on(world: World, options: Parameters<World['runner']>[0] = {}): Promise<Stage> {
    const stage = new Stage(world, await world.runner(options));
    await until(async () => (await world.call('GET', '/healthz')).status === 200);
    return stage;
  }

  /** A persistent sandbox that runs; from then on the runner does nothing with it by itself. */
  async running(body: object = {}): Promise<Created> {
    const vm = await create(this.world.call, this.world, { persistent: true, ...body });
    await waitFor(this.world.call, vm.id, 'running');
    this.left.add(vm.uuid);
    return vm;
  }

  async stopped(body: object = {}): Promise<Created> {
    const vm = await this.running(body);
    await this.ok(vm, 'stop');
    await this.report(vm, 'stopped');
    return vm;
  }

  async paused(body: object = {}): Promise<Created> {
    const vm = await this.running(body);
    await this.ok(vm, 'pause');
    await this.report(vm, 'paused');
    return vm;
  }

  /** A fork that the runner leaves to the test. `next` runs as soon as it is acknowledged. */
  async forked(vm: Created, body?: object, next?: () => Promise<void>): Promise<Created> {
    const { script } = this.runner.options;
    this.runner.options.script = silent;
    const answer = await this.world.call('POST', `/vms/${vm.id}/fork`, body);
    assert.equal(answer.status, 200, answer.text);
    await next?.();
    const { id: uuid } = await inspect(this.world.database, { jobId: answer.body.job_id });
    this.left.add(uuid);
    await this.runner.assigned(uuid);
    this.runner.options.script = script;
    return { id: answer.body.vm_id, uuid, token: answer.body.access_token, jobId: answer.body.job_id };
  }

  do(vm: Created, verb: Verb): Promise<Answer> {
    return this.world.call('POST', `/vms/${vm.id}/${verb}`);
  }

  /** Asks, and expects to be heard. */
  async ok(vm: Created, verb: Verb): Promise<Assignment> {
    // Of the row: an earlier assignment may still be on its way to the runner.
    const before = await this.row(vm);
    const answer = await this.do(vm, verb);
    assert.equal(answer.status, 200, answer.text);
    return this.runner.assigned(vm.uuid, (one) => one.generation > before.generation);
  }

  async refused(vm: Created, verb: Verb, message: RegExp): Promise<void> {
    const before = await this.row(vm);
    const answer = await this.do(vm, verb);
    assert.deepEqual(
      [answer.status, Object.keys(refusalOf(answer) as object)],
      [409, ['error', 'code', 'retryable']],
      answer.text,
    );
    assert.match(answer.body.error, message);
    assert.deepEqual(await this.row(vm), before, 'nothing has changed');
  }

  /** Says as the runner what is, in the generation of the newest assignment. */
  async report(
    vm: Created,
    status: Parameters<ScriptedRunner['observed']>[1]['status'],
    more: Omit<Parameters<ScriptedRunner['observed']>[1], 'status'> = {},
  ): Promise<void> {
    const row = await this.row(vm);
    await this.runner.observed({ vm_id: vm.uuid, generation: row.generation }, { status, ...more });
  }

  /** Puts it into a state that is hard to come by. */
  async force(vm: Created, status: SandboxStatus, more = ''): Promise<void> {
    await this.world.database.pool.query(
      `update sandboxes set status = $2, deadline_at = case when $2 = any($3::text[]) then now() + interval '1 hour' end
         ${more === '' ? '' : `, ${more}`} where id = $1`,
      [vm.uuid, status, TRANSIENT],
    );
  }

  row(vm: Created): Promise<InspectedSandbox> {
    return inspect(this.world.database, vm);
  }

  /** As if the time of its present state were over. */
  async timeOver(vm: Created): Promise<void> {
    // The sweeper may be quicker than our next question.
    const before = (await this.row(vm)).status;
    const { rowCount } = await this.world.database.pool.query(
      `update sandboxes set deadline_at = now() - interval '1 second' where id = $1 and deadline_at is not null`,
      [vm.uuid],
    );
    assert.equal(rowCount, 1, 'it has a deadline');
    await until(async () => (await this.row(vm)).status !== before);
  }
}
