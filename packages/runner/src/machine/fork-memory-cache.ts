import { open, rm } from 'node:fs/promises';
import type { Logger } from 'pino';
import { writtenMemory } from '../memory/available-memory.ts';
import { CowClone } from '../memory/cow-clone.ts';
import { findGuestMemory, memorySource } from '../memory/guest-memory.ts';
import type { GuestMemory, MemoryOrigin } from '../memory/guest-memory.ts';
import type { MemoryBudget, MemoryGrant } from '../memory/memory-budget.ts';
import type { PageCopiers } from '../memory/page-copier.ts';
import { Precopy } from '../memory/precopy.ts';
import { SealedMemory } from '../memory/sealed-memory.ts';
import { SharedMemory } from '../memory/shared-memory.ts';
import type { MemoryShare } from '../memory/shared-memory.ts';
import type { Vm } from '../vmm/vm.ts';
import type { MemoryCapture } from './checkpoint.ts';
import { mibOf } from './restoring.ts';
import { hardwareOf, vmmVersionOf } from './vm-folder.ts';
import type { VmRecord } from './vm-folder.ts';
import type { WantedVmm, WarmVmm } from './warm-vm.ts';

/**
 * A source that has written to so much is copied while it runs. The page tables of less are cloned in a few milliseconds,
 * and to copy it first would cost its guest more of a processor than that.
 */
const PRECOPY_FROM_BYTES = 256 * 1024 * 1024;
/** A child that differs in more than this from the last one gets memory of its own, which those after it share. */
const DELTA_MOST_BYTES = 24 * 1024 * 1024;
/** How long it is held for a next fork. Children that run hold it by themselves. */
const HELD_MS = 5 * 60_000;

/** Takes a VMM that waits for memory out of its pool, if one does. */
export type TakeVmm = (wanted: WantedVmm) => WarmVmm | undefined;

/** The source of a fork. */
export interface ForkedVm {
  vmId: string;
  project: string | undefined;
  vm: Vm;
  record: VmRecord;
}

interface Base {
  vm: Vm;
  memory: SharedMemory;
  held: MemoryShare;
  grant: MemoryGrant;
  timer: NodeJS.Timeout;
}

/**
 * What the memory of a fork's child begins with: something that others may share, and what is different. To be disposed
 * of once the child has been started, or is not going to be.
 */
export interface ForkedMemory extends AsyncDisposable {
  /** A VMM may be started with it at once. */
  fd: number;
  /** The VMM that has been started with it. */
  vmm?: WarmVmm;
  /** Resolves when the memory can be looked into, with a file of what is different; absent for nothing. */
  ready: Promise<{ delta?: string }>;
}

/** The source's memory at the checkpoint; nothing when it is in the child's already. */
type ForkCheckpoint = GuestMemory | void;

/** Memory for one child, before the moment is taken. */
export interface PreparedMemory {
  /** Begins to capture the source's memory; what that gives at the checkpoint is what `take` needs. */
  capture(source: GuestMemory): Promise<MemoryCapture<ForkCheckpoint>>;
  /** @param deltaPath where what is different goes; must not exist */
  take(checkpoint: ForkCheckpoint, deltaPath: string): Promise<ForkedMemory>;
  /** Instead of `take`: there will be no child. */
  abandon(): Promise<void>;
}

/**
 * Memory that the children of one source have in common. The first fork of a VM copies all of its memory; those that
 * follow only what has changed since, so that twenty children cost little more than one.
 */
export class ForkMemoryCache {
  readonly #copiers: PageCopiers;
  readonly #budget: MemoryBudget;
  readonly #log: Logger;
  readonly #bases = new Map<string, Base>();

  constructor(copiers: PageCopiers, budget: MemoryBudget, log: Logger) {
    this.#copiers = copiers;
    this.#budget = budget;
    this.#log = log;
  }

  /**
   * Begins with what can be done before the checkpoint is taken. One fork of a VM after the other; the next one not before the memory
   * of the last is ready.
   * @param takeVmm a VMM that waits for memory: what the child has to itself is put into that
   */
  async prepare(source: ForkedVm, takeVmm?: TakeVmm): Promise<PreparedMemory> {
    const { vmId, vm, record } = source;
    const known = this.#bases.get(vmId);
    if (known?.vm !== vm) return await this.#begin(source, takeVmm);
    known.timer.refresh();
    const share = known.memory.share();
    await using unfit = new AsyncDisposableStack();
    unfit.use(share);
    if (await this.#isFar(share, vm, record)) return await this.#begin(source, takeVmm);
    unfit.move();
    return {
      capture: (source) => CowClone.prepare(source),
      take: async (checkpoint, deltaPath) => {
        if (checkpoint === undefined) throw new Error('the memory of the fork is not there to be compared');
        await using unused = new AsyncDisposableStack();
        unused.use(share);
        const delta = await this.#writeDelta(share, checkpoint, deltaPath);
        if (delta === undefined)
          return await (await this.#begin(source, takeVmm)).take(checkpoint, deltaPath);
        unused.move();
        return { ...share, ready: Promise.resolve(delta) };
      },
      abandon: () => share[Symbol.asyncDispose](),
    };
  }

  /** Lets go of what is held for further forks. */
  forget(vmId: string): void {
    const base = this.#bases.get(vmId);
    if (base === undefined) return;
    this.#bases.delete(vmId);
    clearTimeout(base.timer);
    base.grant[Symbol.dispose]();
    void base.held[Symbol.asyncDispose]();
  }

  /** Memory of its own: what the VM has written to, and for the rest what its memory began as. */
  async #begin({ vmId, project, vm, record }: ForkedVm, takeVmm?: TakeVmm): Promise<PreparedMemory> {
    const written = Math.min(await writtenMemory(vm.identity.pid), bytesOf(record));
    const grant = await this.#budget.admit('a fork of this sandbox', { origin: vmId, project }, written);
    await using unused = new AsyncDisposableStack();
    unused.use(grant);
    const began = await memorySource(vm.identity.pid, record.memoryOrigin);
    const { shape, diskBytes = { scratch: 0, docker: 0 } } = record;
    const diskMib = mibOf(Math.max(diskBytes.scratch, diskBytes.docker));
    const vmm = takeVmm?.({ shape, diskMib, hardware: hardwareOf(record, ''), vmm: vmmVersionOf(record) });
    const unsealed = vmm?.empty.memory ?? (await SealedMemory.begin(bytesOf(record)));
    if (vmm !== undefined && !(vmm.empty.base.path === began && isSame(vmm.empty.base, record.memoryOrigin)))
      await unsealed.clear();
    const memory = new SharedMemory(unsealed.memory);
    const held = memory.share();
    unused.move();
    const fill = async (checkpoint: ForkCheckpoint): Promise<object> => {
      try {
        await unsealed.seal(began, async (file) => {
          if (checkpoint !== undefined) await this.#copiers.copyTogether(checkpoint, 'written', file.fd);
        });
      } catch (error) {
        grant[Symbol.dispose]();
        await held[Symbol.asyncDispose]();
        throw error;
      }
      grant.used();
      grant.isSpare(() => this.forget(vmId));
      const timer = setTimeout(() => this.forget(vmId), HELD_MS).unref();
      this.#bases.set(vmId, { vm, memory, held, grant, timer });
      return {};
    };
    return {
      capture: async (running) => {
        if (written < PRECOPY_FROM_BYTES) return await CowClone.prepare(running);
        const precopy = await Precopy.begin(running, unsealed.memory.fd);
        if (precopy === undefined) return await CowClone.prepare(running);
        if (await precopy.approach()) return precopy;
        await precopy[Symbol.asyncDispose]();
        return await CowClone.prepare(running);
      },
      take: async (checkpoint) => {
        // Not before: to free so much takes a processor tens of milliseconds, of which a guest that is about to stand
        // would notice.
        this.forget(vmId);
        return { ...memory.share(), ready: fill(checkpoint), ...(vmm && { vmm }) };
      },
      abandon: async () => {
        grant[Symbol.dispose]();
        await vmm?.discard();
        await unsealed.abandon();
        await held[Symbol.asyncDispose]();
      },
    };
  }

  /** Whether a VM's memory has gone too far from what its last child began with. Told by a part of it, while it runs. */
  async #isFar({ fd }: MemoryShare, vm: Vm, record: VmRecord): Promise<boolean> {
    const running = await findGuestMemory(vm.identity.pid, bytesOf(record));
    return (await this.#copiers.ahead.estimateDelta(running, fd)) > DELTA_MOST_BYTES;
  }

  /** Undefined when there is too much of it. */
  async #writeDelta(
    { fd }: MemoryShare,
    checkpoint: GuestMemory,
    path: string,
  ): Promise<{ delta: string } | undefined> {
    const delta = await open(path, 'wx', 0o600);
    try {
      const bytes = await this.#copiers.ahead.writeDelta(checkpoint, fd, delta.fd, DELTA_MOST_BYTES);
      this.#log.debug({ bytes }, 'memory of a fork differs from the last one');
      if (bytes !== undefined) return { delta: path };
    } finally {
      await delta.close();
    }
    await rm(path);
    return undefined;
  }
}

function isSame(one: MemoryOrigin, other: MemoryOrigin | undefined): boolean {
  return one.path === other?.path && one.ino === other.ino;
}

function bytesOf({ shape }: VmRecord): number {
  return shape.memMib * 1024 * 1024;
}
