import { open, rm } from 'node:fs/promises';
import type { Logger } from 'pino';
import { memorySource } from '../memory/guest-memory.ts';
import type { GuestMemory } from '../memory/guest-memory.ts';
import type { PageCopiers } from '../memory/page-copier.ts';
import { SealedMemory } from '../memory/sealed-memory.ts';
import type { Vm } from '../vmm/vm.ts';
import type { VmRecord } from './vm-folder.ts';

/** A child that differs in more than this from the last one gets memory of its own, and those after it share that. */
const DELTA_MOST_BYTES = 64 * 1024 * 1024;
/** How long it is held for a next fork. Children that run hold it by themselves. */
const HELD_MS = 5 * 60_000;

interface Base {
  vm: Vm;
  memory: SealedMemory;
  timer: NodeJS.Timeout;
}

/** What the memory of a fork's child begins with: something that others may share, and what is different. */
export interface ForkedMemory {
  fd: number;
  /** File of what is different; absent for nothing. */
  delta?: string;
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
   * Memory for a child, one fork of a VM after the other.
   * @param moment the VM's memory as it was
   * @param deltaPath where to write what is different; must not exist
   */
  async take(
    vmId: string,
    vm: Vm,
    record: VmRecord,
    moment: GuestMemory,
    deltaPath: string,
  ): Promise<ForkedMemory> {
    const known = this.#bases.get(vmId);
    if (known?.vm === vm) {
      known.timer.refresh();
      const delta = await open(deltaPath, 'wx', 0o600);
      try {
        const { fd } = known.memory;
        const bytes = await this.#copiers.calm.writeDelta(moment, fd, delta.fd, DELTA_MOST_BYTES);
        this.#log.debug({ vm: vmId, bytes }, 'memory of a fork differs from the last one');
        if (bytes !== undefined) return bytes === 0 ? { fd } : { fd, delta: deltaPath };
      } finally {
        await delta.close();
      }
      await rm(deltaPath, { force: true });
    }
    this.forget(vmId);
    const source = await memorySource(vm.identity.pid, record.memoryOrigin);
    const memory = await SealedMemory.make(
      moment.bytes,
      async (file) => {
        await this.#copiers.calm.copy(moment, 'written', file.fd);
      },
      source,
    );
    const timer = setTimeout(() => this.forget(vmId), HELD_MS).unref();
    this.#bases.set(vmId, { vm, memory, timer });
    return { fd: memory.fd };
  }

  /** Lets go of it, a moment later: a child may just be beginning with it. */
  forget(vmId: string): void {
    const base = this.#bases.get(vmId);
    if (base === undefined) return;
    this.#bases.delete(vmId);
    clearTimeout(base.timer);
    setTimeout(() => void base.memory[Symbol.asyncDispose](), START_GRACE_MS).unref();
  }
}

/** A child is started in a part of this. */
const START_GRACE_MS = 120_000;
