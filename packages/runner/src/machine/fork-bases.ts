import { open, rm } from 'node:fs/promises';
import type { Logger } from 'pino';
import { memorySource } from '../memory/guest-memory.ts';
import type { GuestMemory } from '../memory/guest-memory.ts';
import type { PageCopiers } from '../memory/page-copier.ts';
import { SealedMemory } from '../memory/sealed-memory.ts';
import type { Vm } from '../vmm/vm.ts';
import type { VmRecord } from './vm-folder.ts';

/** A child that differs in more than this from the last one gets memory of its own, which those after it share. */
const DELTA_MOST_BYTES = 24 * 1024 * 1024;
/** How long it is held for a next fork. Children that run hold it by themselves. */
const HELD_MS = 5 * 60_000;
/** A child is started in a part of this. */
const START_GRACE_MS = 120_000;

interface Base {
  vm: Vm;
  memory: SealedMemory;
  timer: NodeJS.Timeout;
}

/** What the memory of a fork's child begins with: something that others may share, and what is different. */
export interface ForkedMemory {
  /** A VMM may be started with it at once. */
  fd: number;
  /** Resolves when the memory can be looked into, with a file of what is different; absent for nothing. */
  ready: Promise<{ delta?: string }>;
}

/** Memory for one child, before the moment is taken. */
export interface PreparedMemory {
  /** @param deltaPath where what is different goes; must not exist */
  take(moment: GuestMemory, deltaPath: string): Promise<ForkedMemory>;
  /** Instead of `take`: there will be no child. */
  abandon(): Promise<void>;
}

/**
 * Memory that the children of one source have in common. The first fork of a VM copies all of its memory; those that
 * follow only what has changed since, so that twenty children cost little more than one.
 */
export class ForkBases {
  readonly #copiers: PageCopiers;
  readonly #log: Logger;
  readonly #bases = new Map<string, Base>();

  constructor(copiers: PageCopiers, log: Logger) {
    this.#copiers = copiers;
    this.#log = log;
  }

  /**
   * Begins with what is known before the moment: what the VM's memory began as. One fork of a VM after the other; the
   * next one not before the memory of the last is ready.
   */
  async prepare(vmId: string, vm: Vm, record: VmRecord): Promise<PreparedMemory> {
    const known = this.#bases.get(vmId);
    if (known?.vm !== vm) return await this.#prepareOwn(vmId, vm, record);
    known.timer.refresh();
    return {
      take: async (moment, deltaPath) => {
        const delta = await this.#writeDelta(known, moment, deltaPath);
        if (delta !== undefined) return { fd: known.memory.fd, ready: Promise.resolve(delta) };
        const own = await this.#prepareOwn(vmId, vm, record);
        return await own.take(moment, deltaPath);
      },
      abandon: async () => undefined,
    };
  }

  async #prepareOwn(vmId: string, vm: Vm, record: VmRecord): Promise<PreparedMemory> {
    this.forget(vmId);
    const source = await memorySource(vm.identity.pid, record.memoryOrigin);
    const { memory, seal, abandon } = await SealedMemory.begin(record.shape.memMib * 1024 * 1024, source);
    const fill = async (moment: GuestMemory): Promise<{ delta?: string }> => {
      await seal(async (file) => {
        await this.#copiers.calm.copy(moment, 'written', file.fd);
      });
      const timer = setTimeout(() => this.forget(vmId), HELD_MS).unref();
      this.#bases.set(vmId, { vm, memory, timer });
      return {};
    };
    return { take: async (moment) => ({ fd: memory.fd, ready: fill(moment) }), abandon };
  }

  /** Lets go of it, a moment later: a child may just be beginning with it. */
  forget(vmId: string): void {
    const base = this.#bases.get(vmId);
    if (base === undefined) return;
    this.#bases.delete(vmId);
    clearTimeout(base.timer);
    setTimeout(() => void base.memory[Symbol.asyncDispose]().catch(() => undefined), START_GRACE_MS).unref();
  }

  /** Undefined when there is too much of it. */
  async #writeDelta(
    { memory }: Base,
    moment: GuestMemory,
    path: string,
  ): Promise<{ delta: string } | undefined> {
    const delta = await open(path, 'wx', 0o600);
    try {
      const bytes = await this.#copiers.calm.writeDelta(moment, memory.fd, delta.fd, DELTA_MOST_BYTES);
      this.#log.debug({ bytes }, 'memory of a fork differs from the last one');
      if (bytes !== undefined) return { delta: path };
    } finally {
      await delta.close();
    }
    await rm(path);
    return undefined;
  }
}
