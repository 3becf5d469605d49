import { stat } from 'node:fs/promises';
import { writtenMemory } from '../memory/available-memory.ts';
import { findGuestMemory, memorySource } from '../memory/guest-memory.ts';
import type { GuestMemory, MemoryOrigin } from '../memory/guest-memory.ts';
import type { MemoryBudget, MemoryGrant } from '../memory/memory-budget.ts';
import { copyMemoryFile } from '../memory/memory-file.ts';
import { Precopy } from '../memory/precopy.ts';
import { SealedMemory } from '../memory/sealed-memory.ts';
import { SharedMemory } from '../memory/shared-memory.ts';
import type { MemoryShare } from '../memory/shared-memory.ts';
import type { Vm } from '../vmm/driver.ts';
import type { ForkTuning } from '../vmm/tuning.ts';
import { mibOf } from './restoring.ts';
import { hardwareOf, vmmVersionOf } from './vm-folder.ts';
import type { VmRecord } from './vm-folder.ts';
import type { WantedVmm, WarmVmm } from './warm-vm.ts';

/** Takes a waiting VMM out of its pool; undefined when none waits. */
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
  /** Pages that the VM has written since `memory` was copied, in a sparse file. Made when they are first copied. */
  changes?: { memory: SharedMemory; held: MemoryShare; grant: MemoryGrant };
  /** The copy that `memory` and `changes` are complete up to. Undefined while another one is made. */
  latest: Precopy | undefined;
}

/** Memory of a fork's child that a VMM is to be started with: shared memory, and the differences from it. */
export interface SharedForkMemory {
  /** A VMM may be started with it at once. */
  fd: number;
  /** Resolves when the memory can be read, with a file of the differences if there are any. */
  ready: Promise<{ delta?: string }>;
}

/** The memory of a fork's child. To be disposed of once the child has been started, or will not be started. */
export type ForkedMemory = AsyncDisposable &
  (
    | { shared: SharedForkMemory; vmm?: undefined }
    /** A VMM that has the memory for its own. */
    | { shared?: undefined; vmm: WarmVmm }
  );

/** Memory for one child, prepared before the checkpoint. */
export interface PreparedMemory {
  /** The VMM whose memory is copied to. */
  vmm?: WarmVmm;
  /** Copies the source's memory up to the checkpoint. */
  precopy(source: GuestMemory): Promise<Precopy>;
  /** After the checkpoint. @param deltaPath file for the differences */
  take(deltaPath: string): ForkedMemory;
  /** Instead of `take`, when the fork has failed. */
  abandon(): Promise<void>;
}

/**
 * The memory of forks' children.
 *
 * What the source of a single fork has written is copied straight into a VMM that waits, with the source's template. A source that has written
 * little since the fork before will have more children of about the same memory, which they share: the second fork copies all
 * of it to shared memory, and later ones only what was written since, so that twenty children use little more memory than two.
 */
export class ForkMemoryCache {
  readonly #budget: MemoryBudget;
  readonly #tuning: ForkTuning;
  readonly #bases = new Map<string, Base>();
  /** The last fork of each VM that was copied into a VMM. */
  readonly #single = new Map<string, { vm: Vm; latest: Precopy }>();

  constructor(budget: MemoryBudget, tuning: ForkTuning) {
    this.#budget = budget;
    this.#tuning = tuning;
  }

  /**
   * Does what can be done before the checkpoint. Forks of one VM must not overlap: the next one may start when the memory of
   * the previous one is ready.
   * @param takeVmm takes a waiting VMM, to which memory is copied that is not shared
   */
  async prepare(source: ForkedVm, takeVmm?: TakeVmm): Promise<PreparedMemory> {
    const base = this.#bases.get(source.vmId);
    const following = base && (await this.#follow(base, source));
    if (following !== undefined) return following;
    const single = (await this.#isRepeated(source)) ? undefined : await this.#beginSingle(source, takeVmm);
    return single ?? (await this.#begin(source));
  }

  /** Whether it has written little since a fork before that shares its memory with no other. */
  async #isRepeated({ vmId, vm, record }: ForkedVm): Promise<boolean> {
    const before = this.#single.get(vmId);
    this.#single.delete(vmId);
    if (before?.vm !== vm) return false;
    const memory = await findGuestMemory(vm.identity.pid, bytesOf(record));
    // Nothing is copied to the target.
    await using copy = await before.latest.follow(memory, memory);
    return copy !== undefined && (await copy.count()) <= this.#tuning.changesMaxBytes;
  }

  /** Copies to the memory of a VMM that waits. @returns undefined when none has the source's initial memory */
  async #beginSingle(source: ForkedVm, takeVmm: TakeVmm | undefined): Promise<PreparedMemory | undefined> {
    const { vmId, vm, record } = source;
    const { memoryOrigin, shape, diskBytes = { scratch: 0, docker: 0 } } = record;
    if (memoryOrigin === undefined) return undefined;
    await using unused = new AsyncDisposableStack();
    // Until the child runs, whose own limit then counts it.
    const grant = unused.use(await this.#admit(source));
    const diskMib = mibOf(Math.max(diskBytes.scratch, diskBytes.docker));
    const vmm = takeVmm?.({ shape, diskMib, hardware: hardwareOf(record, ''), vmm: vmmVersionOf(record) });
    if (vmm === undefined) return undefined;
    unused.defer(() => vmm.discard());
    if (!isSame(memoryOrigin, vmm.empty.record.memoryOrigin)) return undefined;
    const target = await findGuestMemory(vmm.empty.vm.identity.pid, bytesOf(record));
    const used = unused.move();
    let copy: Precopy | undefined;
    return {
      vmm,
      precopy: async (running) => (copy = await Precopy.begin(vm, running, target)),
      take: () => {
        this.forget(vmId);
        if (copy !== undefined) this.#single.set(vmId, { vm, latest: copy });
        grant.used();
        return { vmm, [Symbol.asyncDispose]: async () => grant[Symbol.dispose]() };
      },
      abandon: () => used.disposeAsync(),
    };
  }

  /** @returns undefined when the memory has to be copied anew */
  async #follow(base: Base, source: ForkedVm): Promise<PreparedMemory | undefined> {
    const { vmId, vm, record } = source;
    if (base.vm !== vm || base.latest === undefined) return undefined;
    base.timer.refresh();
    const { latest } = base;
    // Until this copy is complete it is not known what is in `changes`.
    base.latest = undefined;
    await using unused = new AsyncDisposableStack();
    const share = unused.use(base.memory.share());
    const changes = unused.use(await this.#changesOf(base, source));
    if (this.#bases.get(vmId) !== base) {
      // Released meanwhile.
      releaseChanges(base);
      return undefined;
    }
    const copy = await latest.follow(await findGuestMemory(vm.identity.pid, bytesOf(record)), changes.fd);
    if (copy === undefined) return undefined;
    unused.use(copy);
    if ((await sizeOf(changes.fd)) + (await copy.count()) > this.#tuning.changesMaxBytes) return undefined;
    const used = unused.move();
    return {
      precopy: async () => await Promise.resolve(copy),
      take: (deltaPath) => {
        base.latest = copy;
        base.changes?.grant.used();
        const shared = { fd: share.fd, ready: copyChanges(changes, deltaPath) };
        return { shared, [Symbol.asyncDispose]: share[Symbol.asyncDispose] };
      },
      abandon: () => used.disposeAsync(),
    };
  }

  /** Releases the memory that is cached for further forks. */
  forget(vmId: string): void {
    this.#single.delete(vmId);
    const base = this.#bases.get(vmId);
    if (base === undefined) return;
    this.#bases.delete(vmId);
    clearTimeout(base.timer);
    base.grant[Symbol.dispose]();
    void base.held[Symbol.asyncDispose]();
    releaseChanges(base);
  }

  /** The caller's own reference: memory that is released meanwhile stays until it is disposed of. */
  async #changesOf(base: Base, { vmId, project, record }: ForkedVm): Promise<MemoryShare> {
    if (base.changes === undefined) {
      const owner = { origin: vmId, project };
      const grant = await this.#budget.admit('a fork of this sandbox', owner, this.#tuning.changesMaxBytes);
      const { memory, abandon } = await SealedMemory.begin(bytesOf(record)).catch((error: unknown) => {
        grant[Symbol.dispose]();
        throw error;
      });
      await abandon();
      grant.isSpare(() => this.forget(vmId));
      const shared = new SharedMemory(memory);
      base.changes = { memory: shared, held: shared.share(), grant };
    }
    return base.changes.memory.share();
  }

  /** A full copy: the pages that the VM has written, and its initial memory for the rest. */
  async #begin(source: ForkedVm): Promise<PreparedMemory> {
    const { vmId, vm, record } = source;
    await using unused = new AsyncDisposableStack();
    const grant = unused.use(await this.#admit(source));
    const began = await memorySource(vm.identity.pid, record.memoryOrigin);
    const unsealed = await SealedMemory.begin(bytesOf(record));
    const memory = new SharedMemory(unsealed.memory);
    const held = memory.share();
    unused.move();
    let copy: Precopy | undefined;
    const fill = async (): Promise<object> => {
      try {
        await unsealed.seal(began);
      } catch (error) {
        grant[Symbol.dispose]();
        await held[Symbol.asyncDispose]();
        throw error;
      }
      grant.used();
      grant.isSpare(() => this.forget(vmId));
      const timer = setTimeout(() => this.forget(vmId), this.#tuning.heldMs).unref();
      this.#bases.set(vmId, { vm, memory, held, grant, timer, latest: copy });
      return {};
    };
    return {
      precopy: async (running) => (copy = await Precopy.begin(vm, running, unsealed.memory.fd)),
      take: () => {
        // Not earlier: freeing this much memory takes tens of milliseconds of CPU time, which would delay a guest that is
        // about to be paused.
        this.forget(vmId);
        const share = memory.share();
        const shared = { fd: share.fd, ready: fill() };
        return { shared, [Symbol.asyncDispose]: share[Symbol.asyncDispose] };
      },
      abandon: async () => {
        grant[Symbol.dispose]();
        await unsealed.abandon();
        await held[Symbol.asyncDispose]();
      },
    };
  }

  async #admit({ vmId, project, vm, record }: ForkedVm): Promise<MemoryGrant> {
    const written = Math.min(await writtenMemory(vm.identity.pid), bytesOf(record));
    return await this.#budget.admit('a fork of this sandbox', { origin: vmId, project }, written);
  }
}

function releaseChanges({ changes }: Base): void {
  changes?.grant[Symbol.dispose]();
  void changes?.held[Symbol.asyncDispose]();
}

/** Later forks write to the same file. */
async function copyChanges(changes: MemoryShare, path: string): Promise<{ delta: string }> {
  try {
    await copyMemoryFile(`/proc/${process.pid}/fd/${changes.fd}`, path);
    return { delta: path };
  } finally {
    await changes[Symbol.asyncDispose]();
  }
}

/** Bytes that a sparse file has. */
async function sizeOf(fd: number): Promise<number> {
  return (await stat(`/proc/self/fd/${fd}`)).blocks * 512;
}

function isSame(one: MemoryOrigin, other: MemoryOrigin | undefined): boolean {
  return one.path === other?.path && one.ino === other.ino;
}

function bytesOf({ shape }: VmRecord): number {
  return shape.memMib * 1024 * 1024;
}
