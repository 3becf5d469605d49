import type { SandboxSpec } from '@releap/contract';
import type { Logger } from 'pino';
import type { Admission, ForkOrigin, Machines, RunningVm, WarmVms } from '../machine/index.ts';
import type { Network } from '../network/network.ts';
import type { Slot } from '../network/slot.ts';
import type { TakeOptions } from '../network/slot-pool.ts';
import { failpoint } from '../failpoint.ts';
import { guestSize } from '../template/machine-size.ts';
import type { Assignment } from './assignment.ts';
import type { SandboxVolumes } from './sandbox-volumes.ts';
import type { RootImages } from './root-images.ts';
import type { HeldImage, SandboxHistory } from './sandbox-host.ts';

export interface MachineStartsOptions {
  machines: Machines;
  network: Network;
  warm: WarmVms<Slot>;
  admission: Admission;
  roots: RootImages;
  volumes: SandboxVolumes;
  log: Logger;
}

/** A micro-VM with disks and network, whose guest runs. */
export interface StartedVm {
  running: RunningVm;
  slot: Slot;
}

/** Starts the micro-VMs of sandboxes, from a pool where it has a suitable one. */
export class MachineStarts {
  readonly #options: MachineStartsOptions;

  constructor(options: MachineStartsOptions) {
    this.#options = options;
  }

  /** Runs a start once the image is available and the limit of concurrent starts allows it. */
  async whenAdmitted<T>(
    assignment: Assignment,
    past: SandboxHistory,
    start: (rootImagePath: string, queuedMs: number, guestRuns: () => void) => Promise<T>,
    signal: AbortSignal,
  ): Promise<T> {
    const { roots, admission } = this.#options;
    const root = await roots.ofDisk(assignment, past, signal);
    using _image = root.image;
    return await admission.run(async (...turn) => await start(root.path, ...turn), signal);
  }

  /** Boots on the existing disk or a new one, with a pooled VM or one that is restored now. */
  async fresh(
    { vm_id: vmId, spec }: Assignment,
    image: HeldImage,
    how: { onConsole: (chunk: Buffer) => void; verbose: boolean; signal: AbortSignal },
  ): Promise<StartedVm & { warm: boolean }> {
    const { signal } = how;
    const { machines, network, warm: waiting, volumes, log } = this.#options;
    const shape = guestSize({ vcpus: spec.vcpus, memMib: spec.mem_mib });
    const from =
      spec.origin?.type === 'snapshot' && !spec.persistent
        ? await machines.captures.diskOf(spec.origin.snapshot_id)
        : undefined;
    const disks = {
      rootImagePath: image.path,
      rootParts: image.parts,
      scratchMib: spec.scratch_mib,
      ...(spec.docker_data_mib === undefined ? {} : { dockerDataMib: spec.docker_data_mib }),
      ...(from && { from }),
    };
    const options = { vmId, disks, cpu: cpuShare(spec), ...how };
    const existingMib = spec.persistent ? await machines.persistent.existingDiskMib(vmId) : undefined;
    const fromMib = Math.ceil((from?.bytes ?? 0) / 2 ** 20);
    const diskMib = Math.max(spec.scratch_mib, spec.docker_data_mib ?? 0, existingMib ?? 0, fromMib);
    const shares = volumes.shares(vmId);
    // One that waits has no folders to share, and cannot get any.
    const warm = shares.length > 0 ? undefined : waiting.takeVm({ shape, diskMib, image });
    if (warm !== undefined) {
      try {
        // The egress policy first: the VM never runs on a network without it.
        const slot = await network.transfer(warm.id, vmId, egressOf(spec));
        failpoint('create:slot');
        const running = await warm.attach({ ...options, shape, persistent: spec.persistent });
        return { running, slot, warm: true };
      } catch (error) {
        // The pooled VM ended, in the pool or during the hand-over: the sandbox gets another one.
        await warm.discard();
        await (existingMib === undefined ? machines.destroy(vmId) : machines.end(vmId));
        await network.release(vmId);
        signal.throwIfAborted();
        log.warn({ err: error, vm: vmId }, 'a waiting micro-VM could not be used; restoring another');
      }
    }
    const slot = await network.take(vmId, egressOf(spec));
    failpoint('create:slot');
    const boot = { ...options, slot, shape, shares };
    const running = spec.persistent ? await machines.persistent.boot(boot) : await machines.boot(boot);
    return { running, slot, warm: false };
  }

  /** Removes the micro-VM of a boot that has failed. Its disk and its volumes stay for another one. */
  async clear({ vm_id: vmId, spec }: Assignment): Promise<void> {
    const { machines, network } = this.#options;
    await (spec.persistent ? machines.end(vmId) : machines.destroy(vmId));
    await network.release(vmId);
  }

  /** Resumes from the suspend image; the processes remain frozen. */
  async fromMemory(
    { vm_id: vmId, spec }: Assignment,
    rootImagePath: string,
    purpose: 'resumed' | 'flushing',
    onConsole: (chunk: Buffer) => void,
    signal: AbortSignal,
  ): Promise<StartedVm> {
    const { machines, network } = this.#options;
    await machines.persistent.checkMemory(vmId);
    const slot = await network.take(vmId, egressOf(spec));
    failpoint('resume:slot');
    const cpu = cpuShare(spec);
    const options = { vmId, slot, cpu, rootImagePath, purpose, onConsole, signal };
    return { running: await machines.persistent.resume(options), slot };
  }

  /** Resumes from the memory that a fork has captured of its source; the processes remain frozen. */
  async asFork(
    { vm_id: vmId, spec }: Assignment,
    rootImagePath: string,
    origin: ForkOrigin,
    onConsole: (chunk: Buffer) => void,
    signal: AbortSignal,
  ): Promise<StartedVm> {
    const { machines, network } = this.#options;
    const vmm = origin.takeVmm();
    try {
      const slot = await (vmm === undefined
        ? network.take(vmId, egressOf(spec))
        : network.transfer(vmm.empty.id, vmId, egressOf(spec)));
      failpoint('fork:slot');
      const cpu = cpuShare(spec);
      const options = { vmId, slot, cpu, rootImagePath, origin, empty: vmm?.empty, onConsole, signal };
      return { running: await machines.persistent.startForkChild(options), slot };
    } catch (error) {
      await vmm?.discard();
      throw error;
    }
  }
}

function egressOf({ egress, egress_secrets: secrets }: SandboxSpec): TakeOptions {
  return { ...(egress && { egress }), ...(secrets && { intercept: true }) };
}

/** CPU weight of a spot sandbox relative to a guaranteed one of the same size. */
const SPOT_WEIGHT = 1 / 8;

export function cpuShare({ cpu, vcpus, mode, spot }: SandboxSpec): { guaranteed: number; max: number } {
  return { guaranteed: spot ? cpu * SPOT_WEIGHT : cpu, max: mode === 'dedicated' ? cpu : vcpus };
}
