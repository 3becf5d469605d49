/** Many concurrent callers on the real server, over a real link to a host whose work fails and whose connection breaks, and across restarts. */
import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import { inspect, inspectSandboxes } from '@releap/testing/inspect';
import type { Assignment } from '@releap/testing/runner-messages';
import * as fc from 'fast-check';
import { TRANSIENT } from '../src/compute/sandboxes/transitions.ts';
import { HostModel, type Outcome } from './support/host-model.ts';
import { VERBS } from './support/lifecycle.ts';
import { create, startWorld, until, waitFor, type Created, type ScriptedRunner } from '@releap/testing/world';
import { propertyRuns } from '@releap/testing/repetitions';

/** All sandboxes of one host, which does what it is told after a delay, as the random numbers decide. */
class Hosts {
  readonly byId = new Map<string, HostModel>();
  readonly #working = new Map<string, Promise<void>>();
  #draw: (() => number) | undefined;

  /** From now on some of its work fails; without a generator, none does. */
  roll(draw?: () => number): void {
    this.#draw = draw;
  }

  script = (assignment: Assignment, runner: ScriptedRunner): void => {
    const host = this.byId.get(assignment.vm_id) ?? new HostModel(assignment.spec.persistent);
    this.byId.set(assignment.vm_id, host);
    const before = this.#working.get(assignment.vm_id) ?? Promise.resolve();
    this.#working.set(
      assignment.vm_id,
      before.then(async () => {
        await sleep((this.#draw?.() ?? 0) * 8);
        host.receive(assignment);
        const heard = host.said.length;
        host.converge(this.#outcome());
        for (const { vm_id, generation, ...seen } of host.said.slice(heard)) {
          runner.observe({ vm_id, generation }, seen);
          // Reported twice, as after a connection that broke before the acknowledgement.
          if ((this.#draw?.() ?? 1) < 0.2) runner.observe({ vm_id, generation }, seen);
        }
      }),
    );
  };

  #outcome(): Outcome {
    const roll = this.#draw?.() ?? 1;
    return roll < 0.1 ? 'worse' : roll < 0.3 ? 'badly' : 'well';
  }
}

describe('a storm of calls', () => {
  it('ends in states that last and agree with the host, answers nothing but 200 and 409, and leaves nothing behind', async () => {
    await using world = await startWorld();
    const hosts = new Hosts();
    const runner = await world.runner({ script: hosts.script });
    await fc.assert(
      fc.asyncProperty(fc.infiniteStream(fc.double({ min: 0, max: 1, noNaN: true })), async (dice) => {
        const draw = (): number => dice.next().value as number;
        hosts.roll();
        const vms: Created[] = await Promise.all(
          Array.from({ length: 4 }, () => create(world.call, world, { persistent: true, mem_mib: 128 })),
        );
        await Promise.all(vms.map((vm) => waitFor(world.call, vm.id, 'running')));
        hosts.roll(draw);
        const callers = Array.from({ length: 4 }, async () => {
          for (let call = 0; call < 12; call++) {
            const vm = vms[Math.floor(draw() * vms.length)] ?? vms[0];
            const verb = VERBS[Math.floor(draw() * VERBS.length)] ?? 'stop';
            const answer = await world.call('POST', `/vms/${vm?.id}/${verb}`).catch(() => undefined);
            // No response: the server was just restarting.
            if (answer !== undefined)
              assert.ok([200, 409, 503].includes(answer.status), `${verb}: ${answer.status} ${answer.text}`);
            await sleep(draw() * 6);
          }
        });
        await sleep(draw() * 40);
        if (draw() < 0.5) await world.restart();
        runner.drop();
        await runner.connect();
        await Promise.all(callers);

        hosts.roll();
        // The whole list once more: lost messages are sent again.
        runner.drop();
        await runner.connect();
        for (const vm of vms) {
          await inspect(world.database, vm);
          await until(async () => {
            const { body } = await world.call('GET', `/vms/${vm.id}`);
            const host = hosts.byId.get(vm.uuid);
            const lasting = !(TRANSIENT as readonly string[]).includes(body.status);
            return lasting && host?.vm === (body.status === 'running') && (host?.disk ?? false);
          });
        }
        await Promise.all(vms.map((vm) => world.call('DELETE', `/vms/${vm.id}`)));
        await until(async () =>
          (await inspectSandboxes(world.database)).every(
            (row) => row.status === 'deleted' && !row.assigned_to_runner,
          ),
        );
        for (const vm of vms) {
          const host = hosts.byId.get(vm.uuid);
          assert.deepEqual([host?.vm, host?.disk, host?.memory], [false, false, false]);
        }
      }),
      { numRuns: propertyRuns(12), endOnFailure: true },
    );
  });
});
