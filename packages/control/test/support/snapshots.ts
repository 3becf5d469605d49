/** Snapshots in the states that tests of them begin with. */
import assert from 'node:assert/strict';
import type { SnapshotRow } from '@releap/database';
import { inspectSnapshot, inspectSnapshots } from '@releap/testing/inspect';
import type { Stage } from './lifecycle.ts';
import {
  PATIENCE_MS,
  takesSnapshots,
  type Answer,
  type Created,
  type World,
  refusalOf,
} from '@releap/testing/world';

export class Shots {
  readonly #world: World;
  readonly #stage: Stage;
  #count = 0;

  constructor(world: World, stage: Stage) {
    this.#world = world;
    this.#stage = stage;
  }

  /** A name that none has yet. */
  fresh(): string {
    return `snap-${++this.#count}`;
  }

  take(vm: Created, body: object): Promise<Answer> {
    return this.#world.call('POST', `/vms/${vm.id}/snapshots`, body);
  }

  // oxlint-disable-next-line typescript/no-explicit-any -- tests read arbitrary bodies
  async read(id: string): Promise<any> {
    return (await this.#world.call('GET', `/snapshots/${id}`)).body;
  }

  // oxlint-disable-next-line typescript/no-explicit-any -- as above
  async wait(id: string): Promise<any> {
    return (await this.#world.call('GET', `/snapshots/${id}?wait=ready&timeout_ms=${PATIENCE_MS}`)).body;
  }

  remove(id: string): Promise<Answer> {
    return this.#world.call('DELETE', `/snapshots/${id}`);
  }

  /** Something to take disk snapshots of. */
  ephemeral(body: object = {}): Promise<Created> {
    return this.#stage.running({ persistent: false, ...body });
  }

  async taken(
    vm: Created,
    body: object = {},
  ): Promise<{ id: string; name: string; parent_id: string | null }> {
    const answer = await this.take(vm, { name: this.fresh(), ...body });
    assert.equal(answer.status, 200, answer.text);
    const record = await this.wait(answer.body.id);
    assert.equal(record.status, 'ready', JSON.stringify(record));
    return record;
  }

  /** Asked for, and left to the test, like all others until `obeyAgain`. */
  async pending(vm: Created, body: object = {}): Promise<{ id: string; name: string; job_id: string }> {
    this.#stage.runner.options.snapshot = () => undefined;
    const answer = await this.take(vm, { name: this.fresh(), ...body });
    assert.equal(answer.status, 200, answer.text);
    return answer.body;
  }

  obeyAgain(): void {
    this.#stage.runner.options.snapshot = takesSnapshots;
  }

  async refused(vm: Created, body: object, message: RegExp): Promise<void> {
    const before = await inspectSnapshots(this.#world.database);
    const answer = await this.take(vm, { name: this.fresh(), ...body });
    assert.deepEqual(
      [answer.status, Object.keys(refusalOf(answer) as object)],
      [409, ['error', 'code', 'retryable']],
      answer.text,
    );
    assert.match(answer.body.error, message);
    assert.deepEqual(await inspectSnapshots(this.#world.database), before, 'nothing is written');
  }

  rowOf(id: string): Promise<SnapshotRow> {
    return inspectSnapshot(this.#world.database, id);
  }
}
