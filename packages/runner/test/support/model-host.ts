import assert from 'node:assert/strict';
import type { Origin } from '@releap/contract';
import { MemoryBlockedError, type ForkOrigin } from '../../src/machine/index.ts';
import type { Assignment } from '../../src/reconcile/assignment.ts';
import type { LiveSandbox, SandboxEvents, SandboxHost } from '../../src/reconcile/sandbox-host.ts';
import type { SandboxRecord } from '../../src/reconcile/sandbox-record.ts';

type Bytes = ReadonlySet<number>;

interface Vmm {
  /** Not on its disk yet. */
  dirty: Set<number>;
  fromMemory: boolean;
}

/** What is on a machine of one sandbox: it outlives the runner. */
interface Local {
  vmm: Vmm | undefined;
  /** The VMM's record: whether it resumed from memory, and before which start of the host. */
  vmRecord: { resumed: boolean; hostRun: number } | undefined;
  disk: Set<number> | undefined;
  memory: Set<number> | undefined;
  /** What a copy of an origin has left so far. */
  isPartial: boolean;
  /** Its memory is being read for a fork. */
  isRead: boolean;
}

/** What can go wrong, once. */
export type Fault =
  | 'image'
  | 'boot'
  | 'resume'
  | 'resume-late'
  | 'suspend'
  | 'suspend-lost'
  | 'fork'
  | 'flush'
  | 'remains'
  | 'record';

/** A machine that exists in memory only, with what a crash of its runner, or of itself, leaves. */
export class ModelMachine {
  readonly locals = new Map<string, Local>();
  readonly records = new Map<string, string>();
  readonly faults = new Set<Fault>();
  /** Violated invariants: any fails the test. */
  readonly violations: string[] = [];
  hostRun = 1;
  /** Why memory cannot be resumed on this machine as it is now. */
  obstacle: string | undefined;
  #next = 1;

  local(vmId: string): Local {
    const present = this.locals.get(vmId);
    if (present) return present;
    const made: Local = {
      vmm: undefined,
      vmRecord: undefined,
      disk: undefined,
      memory: undefined,
      isPartial: false,
      isRead: false,
    };
    this.locals.set(vmId, made);
    return made;
  }

  /** The guest writes something, which is not on its disk yet. @returns what, if it runs */
  write(vmId: string): number | undefined {
    const { vmm } = this.local(vmId);
    if (!vmm) return undefined;
    const written = this.#next++;
    vmm.dirty.add(written);
    return written;
  }

  /** All that can still be had of a sandbox. */
  bytes(vmId: string): Bytes {
    const { vmm, disk, memory } = this.local(vmId);
    return new Set([...(vmm?.dirty ?? []), ...(disk ?? []), ...(memory ?? [])]);
  }

  powerFailure(): void {
    this.hostRun += 1;
    for (const local of this.locals.values()) local.vmm = undefined;
    this.runnerEnded();
  }

  /** Its copies end with the runner. */
  runnerEnded(): void {
    for (const local of this.locals.values()) local.isRead = false;
  }

  fails(fault: Fault): boolean {
    return this.faults.delete(fault);
  }
}

/** One run of the runner: from its start to its crash. */
export class RunnerLife {
  readonly machine: ModelMachine;
  readonly crashed: Promise<void>;
  /** Steps until it crashes. */
  crashIn = Infinity;
  /** Where it did. */
  crashedAt: string | undefined;
  readonly #crash = Promise.withResolvers<void>();
  readonly events = new Map<string, SandboxEvents>();

  constructor(machine: ModelMachine) {
    this.machine = machine;
    this.crashed = this.#crash.promise;
  }

  crash(where: string): void {
    this.crashedAt ??= where;
    this.events.clear();
    this.machine.runnerEnded();
    this.#crash.resolve();
  }

  /** Between any two of these the runner may crash: the next step is never done. */
  async point(where: string): Promise<void> {
    this.crashIn -= 1;
    if (this.crashIn < 0) this.crash(where);
    if (this.crashedAt !== undefined) await new Promise(() => undefined);
    await Promise.resolve();
  }

  readonly records = {
    makeDurable: async (): Promise<void> => undefined,
    save: async (record: SandboxRecord): Promise<void> => {
      await this.point(`before the record says ${record.observation.status}`);
      if (this.machine.fails('record')) throw new Error('the disk is full');
      this.machine.records.set(record.assignment.vm_id, JSON.stringify(record));
      await this.point(`after the record says ${record.observation.status}`);
    },
  };
}

const ADDRESSES = { vm_ip: '100.64.0.2', host_ip: '127.0.0.1', port_map: [] };
const DIGEST = 'sha256:0';

export class ModelHost implements SandboxHost {
  readonly #life: RunnerLife;
  readonly #machine: ModelMachine;

  constructor(life: RunnerLife) {
    this.#life = life;
    this.#machine = life.machine;
  }

  async hasImage(): Promise<boolean> {
    await this.#life.point('image');
    return true;
  }

  async hasTemplate(): Promise<boolean> {
    await this.#life.point('template');
    return true;
  }

  async makeTemplate(): Promise<void> {
    await this.#life.point('template');
  }

  async acquireImage(): Promise<Awaited<ReturnType<SandboxHost['acquireImage']>>> {
    await this.#life.point('image');
    if (this.#machine.fails('image')) throw new Error('no such image');
    return { digest: DIGEST, path: '', config: {} as never, [Symbol.dispose]: () => undefined };
  }

  async openVolumes(): Promise<void> {
    await this.#life.point('volumes');
  }

  async boot(
    { vm_id, spec }: Assignment,
    _image: unknown,
    _past: unknown,
    events: SandboxEvents,
    signal: AbortSignal,
  ): Promise<LiveSandbox> {
    const local = this.#machine.local(vm_id);
    await this.#life.point('boot: begin');
    if (local.memory) this.#machine.violations.push('booted with a suspend image');
    if (spec.persistent) local.disk ??= new Set();
    await this.#life.point('boot: disk');
    this.#startVmm(vm_id, new Set(), false);
    await this.#life.point('boot: VMM');
    if (this.#machine.fails('boot')) throw new Error('the guest does not answer');
    signal.throwIfAborted();
    return this.#live(vm_id, events);
  }

  async resume(
    { vm_id }: Assignment,
    _past: unknown,
    events: SandboxEvents,
    signal: AbortSignal,
  ): Promise<LiveSandbox> {
    const local = this.#machine.local(vm_id);
    await this.#life.point('resume: begin');
    if (local.memory === undefined) throw new Error('there is no suspend image');
    if (this.#machine.obstacle !== undefined) throw new MemoryBlockedError(this.#machine.obstacle);
    if (this.#machine.fails('resume')) throw new Error('no slot is free');
    signal.throwIfAborted();
    const dirty = local.memory;
    // The VMM exists and is paused; then its memory is used up, and then it runs.
    this.#startVmm(vm_id, new Set(), true);
    await this.#life.point('resume: restored');
    (local.vmm as unknown as Vmm).dirty = dirty;
    local.memory = undefined;
    await this.#life.point('resume: used up');
    if (this.#machine.fails('resume-late')) {
      // It is suspended again.
      local.memory = dirty;
      local.vmm = undefined;
      throw new Error('the guest does not answer');
    }
    return this.#live(vm_id, events);
  }

  async initFromOrigin(vmId: string, origin: Origin): Promise<void> {
    const local = this.#machine.local(vmId);
    const source = origin.type === 'fork' ? this.#machine.local(origin.vm_id) : undefined;
    if (source && source.memory === undefined) throw new Error('the source is not paused');
    local.isPartial = true;
    local.disk = new Set(source?.disk);
    await this.#life.point('init-from-origin: disk');
    if (this.#machine.fails('fork')) throw new Error('the host is full');
    if (source) local.memory = new Set(source.memory);
    local.isPartial = false;
    await this.#life.point('init-from-origin: memory');
  }

  async captureResting(): Promise<void> {
    await this.#life.point('capture-resting');
  }

  async fetchSnapshot(): Promise<void> {
    await this.#life.point('fetch');
  }

  async manifestOf(): Promise<string> {
    await this.#life.point('manifest');
    return DIGEST;
  }

  async startForkChild(
    { vm_id }: Assignment,
    origin: ForkOrigin,
    _past: unknown,
    events: SandboxEvents,
    signal: AbortSignal,
  ): Promise<LiveSandbox> {
    await this.#life.point('fork: continue');
    signal.throwIfAborted();
    this.#startVmm(vm_id, (origin as unknown as { dirty: Set<number> }).dirty, true);
    await this.#life.point('fork: VMM');
    if (this.#machine.fails('boot')) throw new Error('the guest does not answer');
    return this.#live(vm_id, events);
  }

  async adopt({ vm_id }: Assignment, _past: unknown, events: SandboxEvents): Promise<LiveSandbox> {
    await this.#life.point('adopt');
    if (this.#machine.local(vm_id).memory) this.#machine.violations.push('adopted beside a suspend image');
    if (!this.#machine.local(vm_id).vmm) throw new Error('its VMM is gone');
    return this.#live(vm_id, events);
  }

  async localState(vmId: string): ReturnType<SandboxHost['localState']> {
    await this.#life.point('remains');
    if (this.#machine.fails('remains')) throw new Error('the manifest of the disk cannot be read');
    const { disk, memory, vmRecord } = this.#machine.local(vmId);
    return {
      disk: disk !== undefined,
      memory: memory !== undefined,
      resumed: vmRecord?.resumed === true,
      hostRestarted: vmRecord !== undefined && vmRecord.hostRun !== this.#machine.hostRun,
    };
  }

  makeMemoryDurable(): void {}

  async checkMemory(): Promise<void> {
    await this.#life.point('check memory');
    if (this.#machine.obstacle !== undefined) throw new MemoryBlockedError(this.#machine.obstacle);
  }

  async discardMemory({ vm_id }: Assignment, _past: unknown, signal: AbortSignal): Promise<void> {
    const local = this.#machine.local(vm_id);
    await this.#life.point('discard: begin');
    if (local.memory === undefined) return;
    signal.throwIfAborted();
    this.#startVmm(vm_id, new Set(local.memory), false);
    await this.#life.point('discard: restored');
    if (!this.#machine.fails('flush')) this.#flush(vm_id);
    await this.#life.point('discard: flushed');
    local.vmm = undefined;
    local.memory = undefined;
    await this.#life.point('discard: dropped');
  }

  async end(vmId: string): Promise<void> {
    await this.#life.point('end: begin');
    const local = this.#machine.local(vmId);
    local.vmm = undefined;
    await this.#life.point('end: VMM');
    local.vmRecord = undefined;
    await this.#life.point('end: record');
  }

  async destroy(vmId: string): Promise<void> {
    await this.end(vmId);
    const local = this.#machine.local(vmId);
    local.memory = undefined;
    await this.#life.point('destroy: memory');
    local.disk = undefined;
    local.isPartial = false;
    await this.#life.point('destroy: disk');
  }

  #startVmm(vmId: string, dirty: Set<number>, fromMemory: boolean): void {
    const local = this.#machine.local(vmId);
    if (local.vmm) this.#machine.violations.push('a second VMM');
    if (local.isPartial) this.#machine.violations.push('runs on half a copy');
    local.vmRecord = { resumed: fromMemory, hostRun: this.#machine.hostRun };
    local.vmm = { dirty, fromMemory };
  }

  #flush(vmId: string): void {
    const { vmm, disk } = this.#machine.local(vmId);
    for (const written of vmm?.dirty ?? []) disk?.add(written);
    vmm?.dirty.clear();
  }

  async #read(local: Local): Promise<void> {
    for (let page = 0; page < 20; page += 1) await this.#life.point('fork: copy');
    local.isRead = false;
  }

  #live(vmId: string, events: SandboxEvents): LiveSandbox {
    const life = this.#life;
    const machine = this.#machine;
    const local = machine.local(vmId);
    life.events.set(vmId, events);
    const live: Partial<LiveSandbox> = {
      addresses: ADDRESSES,
      shutDown: async () => {
        await life.point('shut down: begin');
        if (local.isRead) machine.violations.push('ended while its memory was read');
        this.#flush(vmId);
        await life.point('shut down: flushed');
        life.events.delete(vmId);
        local.vmm = undefined;
        await life.point('shut down: ended');
      },
      suspend: async () => {
        await life.point('suspend: begin');
        if (local.isRead) machine.violations.push('ended while its memory was read');
        if (!local.vmm) throw new Error('its VMM is gone');
        if (machine.fails('suspend')) throw new Error('the host is full');
        if (machine.fails('suspend-lost')) {
          this.#flush(vmId);
          local.vmm = undefined;
          events.onExit({ reason: 'its VMM ended', guestEnd: undefined });
          throw new Error('its VMM does not answer');
        }
        this.#flush(vmId);
        await life.point('suspend: synced');
        local.memory = new Set(local.vmm.dirty);
        await life.point('suspend: published');
        life.events.delete(vmId);
        local.vmm = undefined;
        await life.point('suspend: ended');
      },
      fork: async (child) => {
        await life.point('fork: begin');
        assert.ok(local.vmm, 'the source must run');
        if (machine.fails('fork')) throw new Error('the host is full');
        const dirty = new Set(local.vmm.dirty);
        const made = machine.local(child);
        made.isPartial = true;
        made.disk = new Set(local.disk);
        await life.point('fork: disk');
        made.isPartial = false;
        local.isRead = true;
        const origin = {
          dirty,
          copied: this.#read(local),
          [Symbol.asyncDispose]: async () => undefined,
        };
        return origin as unknown as ForkOrigin;
      },
      compactDisk: async () => undefined,
      isFrozen: false,
      freeze: async () => undefined,
      thaw: async () => false,
      setClock: async () => undefined,
      close: async () => void life.events.delete(vmId),
    };
    return live as LiveSandbox;
  }
}
