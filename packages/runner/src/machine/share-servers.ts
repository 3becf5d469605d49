import { mkdir } from 'node:fs/promises';
import { join } from 'node:path';
import { LIMITS } from '@releap/contract';
import type { CgroupTree } from '../cgroup/cgroup-tree.ts';
import { usableMib } from '../template/machine-size.ts';
import type { GuestSize } from '../template/machine-size.ts';
import { shareIds, startShareServer } from '../volume/share-server.ts';
import type { Share } from '../volume/share-server.ts';
import type { RunningShare } from './boot-options.ts';
import { cgroupName } from './restoring.ts';

/** What a server needs besides the guest's memory, which it maps and is charged for where it is the first to use a page. */
const OVERHEAD_MIB = 256;
/** Threads: one for the protocol, one for each of two queues. */
const PIDS = 32;

/** A server whose socket is ready for the guest's VMM. */
export interface StartedShare extends Required<RunningShare> {
  socket: string;
}

/** The servers of the folders that VMs share, each in a cgroup of its own. */
export class ShareServers {
  readonly #cgroups: CgroupTree;
  readonly #program: string;

  /** @param program folder with the unpacked virtiofsd */
  constructor(cgroups: CgroupTree, program: string) {
    this.#cgroups = cgroups;
    this.#program = program;
  }

  /** @param folder of the VM. @throws when one cannot start; `destroy` removes the others */
  async start(
    shares: readonly Share[],
    vm: {
      vmId: string;
      uid: number;
      folder: string;
      shape: GuestSize;
      cpu: { guaranteed: number; max: number };
    },
  ): Promise<StartedShare[]> {
    const { vmId, uid, shape, cpu } = vm;
    const folder = join(vm.folder, 'shares');
    await mkdir(folder, { mode: 0o700 });
    const started: StartedShare[] = [];
    for (const [index, share] of shares.entries()) {
      const socket = join(folder, String(index));
      const cgroupProcs = await this.#cgroups.create(shareCgroup(vmId, index), {
        cpu: cpu.guaranteed,
        cpuMax: cpu.max,
        memoryMib: usableMib(shape) + OVERHEAD_MIB,
        pids: PIDS,
      });
      const process = await startShareServer({
        share,
        program: this.#program,
        socket,
        firstId: shareIds(uid, index, LIMITS.volumesPerSandbox),
        cgroupProcs,
        output: `${socket}.log`,
      });
      started.push({ tag: share.tag, socket, process });
    }
    return started;
  }

  /** Ends the servers of a VM, also those that no record names. Idempotent. */
  async destroy(vmId: string): Promise<void> {
    for (let index = 0; index < LIMITS.volumesPerSandbox; index++)
      await this.#cgroups.destroy(shareCgroup(vmId, index));
  }
}

/** Derived from the VM's id, so that it is known also without a record. */
export function shareCgroup(vmId: string, index: number): string {
  return `${cgroupName(vmId)}.share-${index}`;
}
