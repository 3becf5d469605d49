/** The real sandbox on a machine in memory, with its runner crashing at every step. */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import type { DesiredState, ObservedStatus } from '@releap/contract';
import { propertyRuns } from '@releap/testing/repetitions';
import {
  array,
  assert as assertProperty,
  asyncProperty,
  constant,
  constantFrom,
  nat,
  oneof,
  record,
} from 'fast-check';
import type { Arbitrary } from 'fast-check';
import { pino } from 'pino';
import { OperationMetrics } from '../src/metrics/operation-metrics.ts';
import type { Assignment } from '../src/reconcile/assignment.ts';
import { Sandbox } from '../src/reconcile/sandbox.ts';
import type { RecordStore, SandboxRecord } from '../src/reconcile/sandbox-record.ts';
import type { Fault } from './support/model-host.ts';
import { ModelHost, ModelMachine, RunnerLife } from './support/model-host.ts';
import { SPEC } from './support/sandbox-spec.ts';

const SOURCE = 'source';
const CHILD = 'child';
const log = pino({ enabled: false });

type Want = { desired: DesiredState; startFrom?: 'disk' | 'memory' };

/** A runner with its machine and the desired state: a runner that crashes is replaced, and gets it again. */
class Scene {
  readonly machine = new ModelMachine();
  readonly wanted = new Map<string, Assignment>();
  life = new RunnerLife(this.machine);
  readonly crashes: string[] = [];
  #sandboxes = new Map<string, Sandbox>();
  readonly isPersistent: boolean;

  constructor(isPersistent = true) {
    this.isPersistent = isPersistent;
  }

  want(vmId: string, { desired, startFrom }: Want): void {
    const before = this.wanted.get(vmId);
    if (before?.desired === 'deleted') return;
    const isFork = vmId === CHILD && this.#sandboxes.get(vmId)?.observation.manifest_name === undefined;
    const assignment: Assignment = {
      vm_id: vmId,
      generation: (before?.generation ?? 0) + 1,
      desired,
      ...(startFrom === undefined ? {} : { start_from: startFrom }),
      spec: {
        ...SPEC,
        persistent: this.isPersistent,
        ...(isFork ? { origin: { type: 'fork', vm_id: SOURCE } as const } : {}),
      },
    };
    this.wanted.set(vmId, assignment);
    this.#assign(assignment);
  }

  /** Until nothing is under way, with as many new runners as crashes. */
  async settle(): Promise<void> {
    for (;;) {
      const idle = Promise.all([...this.#sandboxes.values()].map((sandbox) => sandbox.idle()));
      await Promise.race([idle, this.life.crashed]);
      if (this.life.crashedAt === undefined) {
        assert.deepEqual(this.machine.violations, []);
        return;
      }
      await this.#restart();
    }
  }

  sandbox(vmId: string): Sandbox {
    const sandbox = this.#sandboxes.get(vmId);
    assert.ok(sandbox);
    return sandbox;
  }

  status(vmId: string): ObservedStatus {
    return this.sandbox(vmId).observation.status;
  }

  /** The runner ends, and another one takes over. */
  async restart(): Promise<void> {
    this.life.crash('restart');
    await this.settle();
  }

  powerFailure(): void {
    this.life.crash('power failure');
    this.machine.powerFailure();
  }

  /** A guest ends: by itself in good order, or with its VMM. */
  endVmm(vmId: string, inOrder: boolean): void {
    const local = this.machine.local(vmId);
    if (!local.vmm) return;
    if (inOrder) for (const written of local.vmm.dirty) local.disk?.add(written);
    local.vmm = undefined;
    const events = this.life.events.get(vmId);
    this.life.events.delete(vmId);
    events?.onExit({ reason: 'its VMM ended', guestEnd: inOrder ? 'it powered itself off' : undefined });
  }

  async #restart(): Promise<void> {
    this.crashes.push(this.life.crashedAt ?? '');
    this.life = new RunnerLife(this.machine);
    const records = [...this.machine.records].map(([vmId, text]) => {
      const record = JSON.parse(text) as SandboxRecord;
      if (this.machine.hostRun > 1) record.bootId = 'of another start';
      return [vmId, record] as const;
    });
    this.#sandboxes = new Map(records.map(([vmId, record]) => [vmId, this.#open(record.assignment, record)]));
    const adopted = Promise.all([...this.#sandboxes.values()].map((sandbox) => sandbox.adopt()));
    await Promise.race([adopted, this.life.crashed]);
    for (const assignment of this.wanted.values()) this.#assign(assignment);
  }

  #open(assignment: Assignment, record?: SandboxRecord): Sandbox {
    return new Sandbox(
      {
        host: new ModelHost(this.life),
        operations: new OperationMetrics(),
        records: this.life.records as unknown as RecordStore,
        find: (vmId) => this.#sandboxes.get(vmId),
        report: () => undefined,
        log,
      },
      assignment,
      record,
    );
  }

  #assign(assignment: Assignment): void {
    const known = this.#sandboxes.get(assignment.vm_id);
    if (known) return known.want(assignment);
    const sandbox = this.#open(assignment);
    this.#sandboxes.set(assignment.vm_id, sandbox);
    sandbox.converge();
  }
}

const RUN: Want = { desired: 'running' };
const RESUME: Want = { desired: 'running', startFrom: 'memory' };
const PAUSE: Want = { desired: 'paused' };
const STOP: Want = { desired: 'stopped' };
const DELETE: Want = { desired: 'deleted' };
const OF: Record<string, ObservedStatus> = {
  running: 'running',
  paused: 'paused',
  stopped: 'stopped',
  deleted: 'deleted',
};

/** Sequences of assignments of a sandbox that has run. */
const WALKS: Want[][] = [
  [RUN],
  [RUN, STOP],
  [RUN, PAUSE],
  [RUN, STOP, RUN],
  [RUN, PAUSE, RESUME],
  [RUN, PAUSE, RUN],
  [RUN, PAUSE, STOP],
  [RUN, PAUSE, RESUME, PAUSE, RESUME, STOP],
];

/** Walks through with a crash at the step of that number. @returns false when there are not so many */
async function walk(wants: Want[], crashIn: number): Promise<boolean> {
  const scene = new Scene();
  scene.life.crashIn = crashIn;
  const written = new Set<number>();
  for (const want of wants) {
    scene.want(SOURCE, want);
    await scene.settle();
    const where = `${wants.map(({ desired }) => desired).join(', ')}; crashed: ${scene.crashes.join()}`;
    assert.equal(scene.status(SOURCE), OF[want.desired], where);
    const bytes = scene.machine.bytes(SOURCE);
    for (const each of written) assert.ok(bytes.has(each), `byte ${each} is lost; ${where}`);
    const byte = scene.machine.write(SOURCE);
    if (byte !== undefined) written.add(byte);
  }
  scene.want(SOURCE, DELETE);
  await scene.settle();
  assert.equal(scene.status(SOURCE), 'deleted');
  assert.equal(scene.machine.bytes(SOURCE).size, 0);
  assert.equal(scene.machine.local(SOURCE).vmm, undefined);
  return scene.crashes.length > 0;
}

test('a runner that crashes at any step, once, loses no byte and reaches what is wanted', async () => {
  for (const wants of WALKS) {
    let steps = 0;
    while (await walk(wants, steps)) steps += 1;
    assert.ok(steps > 10);
  }
});

test('a fork survives a crash at any step: the child has what its source had, and the source continues', async () => {
  for (const isPaused of [false, true]) {
    for (let crashIn = 0, hasCrashed = true; hasCrashed; crashIn += 1) {
      const scene = new Scene();
      scene.want(SOURCE, RUN);
      await scene.settle();
      const byte = scene.machine.write(SOURCE) as number;
      if (isPaused) scene.want(SOURCE, PAUSE);
      await scene.settle();
      scene.life.crashIn = crashIn;
      scene.want(CHILD, RESUME);
      await scene.settle();
      hasCrashed = scene.crashes.length > 0;
      const where = `crashed at ${scene.crashes.join()}`;
      assert.equal(scene.status(CHILD), 'running', where);
      assert.equal(scene.status(SOURCE), isPaused ? 'paused' : 'running', where);
      assert.ok(scene.machine.bytes(CHILD).has(byte), where);
      assert.ok(scene.machine.bytes(SOURCE).has(byte), where);
    }
  }
});

test('a VM of a previous runner is looked for before anything else, though the first look failed', async () => {
  const scene = new Scene();
  scene.want(SOURCE, RUN);
  await scene.settle();
  const byte = scene.machine.write(SOURCE) as number;
  scene.machine.faults.add('remains');
  scene.life.crash('by hand');
  await scene.settle();
  assert.equal(scene.status(SOURCE), 'running');
  assert.ok(scene.machine.bytes(SOURCE).has(byte));
});

test('a start that fails before its image is there leaves a disk and no memory', async () => {
  const scene = new Scene();
  scene.want(SOURCE, RUN);
  await scene.settle();
  const byte = scene.machine.write(SOURCE) as number;
  scene.want(SOURCE, PAUSE);
  await scene.settle();
  scene.machine.faults.add('image');
  scene.want(SOURCE, RUN);
  await scene.settle();
  assert.equal(scene.status(SOURCE), 'stopped');
  assert.equal(scene.machine.local(SOURCE).memory, undefined);
  assert.ok(scene.machine.bytes(SOURCE).has(byte));
});

test('memory that the host cannot resume as it is now is kept, and reported anew by the next runner', async () => {
  const scene = new Scene();
  scene.want(SOURCE, RUN);
  await scene.settle();
  const byte = scene.machine.write(SOURCE) as number;
  scene.want(SOURCE, PAUSE);
  await scene.settle();
  scene.machine.obstacle = 'accelerator kvm, here tcg';
  await scene.restart();
  assert.match(scene.sandbox(SOURCE).observation.memory_blocked ?? '', /kvm, here tcg/);
  scene.want(SOURCE, RESUME);
  await scene.settle();
  const { status, memory, memory_blocked, error } = scene.sandbox(SOURCE).observation;
  assert.deepEqual([status, memory, error], ['paused', undefined, memory_blocked]);
  assert.match(memory_blocked ?? '', /kvm, here tcg/);
  scene.machine.obstacle = undefined;
  scene.want(SOURCE, PAUSE);
  await scene.restart();
  assert.deepEqual(
    [scene.sandbox(SOURCE).observation.memory_blocked, scene.sandbox(SOURCE).observation.error],
    [undefined, undefined],
  );
  scene.want(SOURCE, RESUME);
  await scene.settle();
  assert.equal(scene.status(SOURCE), 'running');
  assert.ok(scene.machine.bytes(SOURCE).has(byte));
});

test('an assignment of a source right after its fork waits until the fork has been taken', async () => {
  for (const want of [STOP, PAUSE]) {
    const scene = new Scene();
    scene.want(SOURCE, RUN);
    await scene.settle();
    const byte = scene.machine.write(SOURCE) as number;
    scene.want(CHILD, RESUME);
    scene.want(SOURCE, want);
    await scene.settle();
    assert.equal(scene.status(CHILD), 'running');
    assert.equal(scene.status(SOURCE), OF[want.desired]);
    assert.ok(scene.machine.bytes(CHILD).has(byte));
  }
});

const WANT = constantFrom(RUN, RESUME, PAUSE, STOP);
const FAULTS: Fault[] = [
  'image',
  'boot',
  'resume',
  'resume-late',
  'suspend',
  'suspend-lost',
  'fork',
  'flush',
  'record',
];
type Action =
  | { do: 'want'; of: string; want: Want }
  | { do: 'settle' | 'powerFailure' }
  | { do: 'write' | 'powerOff' | 'kill'; of: string }
  | { do: 'crash'; steps: number }
  | { do: 'fault'; fault: Fault };
const WHO = constantFrom(SOURCE, SOURCE, CHILD);
const ACTION: Arbitrary<Action> = oneof(
  { weight: 6, arbitrary: record({ do: constant('want' as const), of: WHO, want: WANT }) },
  { weight: 4, arbitrary: constant({ do: 'settle' as const }) },
  { weight: 4, arbitrary: record({ do: constant('write' as const), of: WHO }) },
  { weight: 4, arbitrary: record({ do: constant('crash' as const), steps: nat(40) }) },
  { weight: 1, arbitrary: record({ do: constantFrom('powerOff' as const, 'kill' as const), of: WHO }) },
  { weight: 1, arbitrary: constant({ do: 'powerFailure' as const }) },
  {
    weight: 2,
    arbitrary: record({ do: constant('fault' as const), fault: constantFrom(...FAULTS) }),
  },
);

const TRANSIENT: ReadonlySet<ObservedStatus> = new Set([
  'building',
  'booting',
  'pausing',
  'stopping',
  'deleting',
]);

async function act(scene: Scene, action: Action): Promise<void> {
  switch (action.do) {
    case 'want':
      // Control stops, pauses and forks only what is persistent.
      if (scene.isPersistent) scene.want(action.of, action.want);
      return;
    case 'settle':
      return await scene.settle();
    case 'write':
      scene.machine.write(action.of);
      return;
    case 'powerOff':
    case 'kill':
      if (scene.life.crashedAt === undefined) scene.endVmm(action.of, action.do === 'powerOff');
      return;
    case 'powerFailure':
      return scene.powerFailure();
    case 'crash':
      scene.life.crashIn = action.steps;
      return;
    case 'fault':
      scene.machine.faults.add(action.fault);
  }
}

for (const persistent of [true, false]) {
  const kind = persistent ? 'persistent' : 'ephemeral';
  test(`whatever happens, sandboxes (${kind}) come to rest, keep their disks and can be deleted`, {
    timeout: 600_000,
  }, async () => {
    await assertProperty(
      asyncProperty(array(ACTION, { maxLength: 30 }), async (actions) => {
        const scene = new Scene(persistent);
        scene.want(SOURCE, RUN);
        await scene.settle();
        const durable = new Map<string, Set<number>>();
        for (const action of actions) {
          await act(scene, action);
          if (action.do !== 'settle') continue;
          for (const vmId of persistent ? scene.wanted.keys() : []) checkDurable(scene, vmId, durable);
        }
        scene.machine.faults.clear();
        await scene.settle();
        for (const vmId of scene.wanted.keys()) {
          const status = scene.status(vmId);
          assert.ok(!TRANSIENT.has(status), `${vmId} stays ${status}`);
          assert.equal(scene.machine.local(vmId).vmm !== undefined, status === 'running', vmId);
          const hasMemory = scene.machine.local(vmId).memory !== undefined;
          if (hasMemory) assert.ok(status === 'paused' || status === 'failed', `${vmId} is ${status}`);
          if (persistent) checkDurable(scene, vmId, durable);
          scene.want(vmId, DELETE);
        }
        await scene.settle();
        for (const vmId of scene.wanted.keys()) {
          assert.equal(scene.status(vmId), 'deleted');
          const { vmm, disk, memory } = scene.machine.local(vmId);
          assert.deepEqual({ vmm, disk, memory }, { vmm: undefined, disk: undefined, memory: undefined });
        }
      }),
      { numRuns: propertyRuns(3_000) },
    );
  });
}

/** What was on its disk, or in a complete suspend image, is there for ever. */
function checkDurable(scene: Scene, vmId: string, durable: Map<string, Set<number>>): void {
  const bytes = scene.machine.bytes(vmId);
  const before = durable.get(vmId) ?? new Set();
  for (const byte of before) assert.ok(bytes.has(byte), `byte ${byte} of ${vmId} is lost`);
  const { disk } = scene.machine.local(vmId);
  durable.set(vmId, new Set([...before, ...(disk ?? [])]));
}
