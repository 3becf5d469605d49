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
 * A source that has written at least this much is copied while it runs. The page tables of a smaller one are cloned in a few
 * milliseconds, which costs its guest less CPU time than a pre-copy.
 */
const PRECOPY_FROM_BYTES = 256 * 1024 * 1024;
/** A child that differs in more than this from the cached memory gets a new copy, which later children share. */
const DELTA_MOST_BYTES = 24 * 1024 * 1024;
/** How long memory is cached after the last fork. Running children hold a reference of their own. */
const HELD_MS = 5 * 60_000;

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
}

/**
 * The initial memory of a fork's child: shared memory, and the differences from it. To be disposed of once the child has been
 * started, or will not be started.
 */
export interface ForkedMemory extends AsyncDisposable {
  /** A VMM may be started with it at once. */
  fd: number;
  /** The VMM that has been started with it. */
  vmm?: WarmVmm;
  /** Resolves when the memory can be read, with a file of the differences if there are any. */
  ready: Promise<{ delta?: string }>;
}

/** The source's memory at the checkpoint; undefined when it has been copied to the child's already. */
type ForkCheckpoint = GuestMemory | void;

/** Memory for one child, prepared before the checkpoint. */
export interface PreparedMemory {
  /** Starts to capture the source's memory. Its result at the checkpoint is the argument of `take`. */
  capture(source: GuestMemory): Promise<MemoryCapture<ForkCheckpoint>>;
  /** @param deltaPath file for the differences; must not exist */
  take(checkpoint: ForkCheckpoint, deltaPath: string): Promise<ForkedMemory>;
  /** Instead of `take`, when the fork has failed. */
  abandon(): Promise<void>;
}

/**
 * Memory that the children of one source share. The first fork of a VM copies all of its memory, later ones only the changes
 * since, so that twenty children use little more memory than one.
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
   * Does what can be done before the checkpoint. Forks of one VM must not overlap: the next one may start when the memory of
   * the previous one is ready.
   * @param takeVmm takes a waiting VMM, whose memory becomes the child's if it needs a new copy
   */
  async prepare(source: ForkedVm, takeVmm?: TakeVmm): Promise<PreparedMemory> {
    const { vmId, vm, record } = source;
    const known = this.#bases.get(vmId);
    if (known?.vm !== vm) return await this.#begin(source, takeVmm);
    known.timer.refresh();
    const share = known.memory.share();
    await using unused = new AsyncDisposableStack();
    unused.use(share);
    if (await this.#hasDiverged(share, vm, record)) return await this.#begin(source, takeVmm);
    unused.move();
    return {
      capture: (source) => CowClone.prepare(source),
      take: async (checkpoint, deltaPath) => {
        if (checkpoint === undefined) throw new Error('the checkpoint has no memory to compare');
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

  /** Releases the memory that is cached for further forks. */
  forget(vmId: string): void {
    const base = this.#bases.get(vmId);
    if (base === undefined) return;
    this.#bases.delete(vmId);
    clearTimeout(base.timer);
    base.grant[Symbol.dispose]();
    void base.held[Symbol.asyncDispose]();
  }

  /** A full copy: the pages that the VM has written, and its initial memory for the rest. */
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
          if (checkpoint !== undefined) await this.#copiers.copyParallel(checkpoint, 'written', file.fd);
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
        const precopy =
          written < PRECOPY_FROM_BYTES ? undefined : await this.#precopy(vmId, running, unsealed.memory.fd);
        return precopy ?? (await CowClone.prepare(running));
      },
      take: async (checkpoint) => {
        // Not earlier: freeing this much memory takes tens of milliseconds of CPU time, which would delay a guest that is
        // about to be paused.
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

  /** @returns undefined where the kernel cannot track writes, the guest dirties memory too fast, or anything fails */
  async #precopy(vmId: string, running: GuestMemory, target: number): Promise<Precopy | undefined> {
    try {
      const precopy = await Precopy.begin(running, target);
      if (precopy === undefined) return undefined;
      await using unfinished = new AsyncDisposableStack();
      unfinished.use(precopy);
      if (!(await precopy.approach())) return undefined;
      unfinished.move();
      return precopy;
    } catch (error) {
      this.#log.warn({ err: error, vm: vmId }, 'no pre-copy of a VM that is forked; its VMM is cloned');
      return undefined;
    }
  }

  /** Whether a VM's memory differs too much from the cached one, estimated from a sample while the VM runs. */
  async #hasDiverged({ fd }: MemoryShare, vm: Vm, record: VmRecord): Promise<boolean> {
    const running = await findGuestMemory(vm.identity.pid, bytesOf(record));
    return (await this.#copiers.precopy.estimateDelta(running, fd)) > DELTA_MOST_BYTES;
  }

  /** @returns undefined when the memory differs too much */
  async #writeDelta(
    { fd }: MemoryShare,
    checkpoint: GuestMemory,
    path: string,
  ): Promise<{ delta: string } | undefined> {
    const delta = await open(path, 'wx', 0o600);
    try {
      const bytes = await this.#copiers.precopy.writeDelta(checkpoint, fd, delta.fd, DELTA_MOST_BYTES);
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
