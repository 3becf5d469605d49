/** What a runner tells control of its machine. */
import { statfs } from 'node:fs/promises';
import { cpus, totalmem } from 'node:os';
import type { RunnerFacts } from '@releap/contract';
import type { Machines } from '../machine/index.ts';
import { vmmName } from '../reconcile/snapshot-reconciler.ts';
import type { RunnerOptions } from '../runner-options.ts';
import { guestDigest } from '../template/machine-size.ts';
import type { AcceleratorFacts } from '../vmm/accelerator.ts';
import type { VmmStore } from '../vmm/vmm-store.ts';

export interface FactsSources {
  /** What the machine offers, instead of what it has. */
  capacity: RunnerOptions['capacity'];
  /** On the file system of the disks. */
  folder: string;
  accelerator: AcceleratorFacts;
  vmms: VmmStore;
  machines: Machines;
}

export async function runnerFacts(sources: FactsSources): Promise<RunnerFacts> {
  const { capacity, folder, accelerator, vmms, machines } = sources;
  return {
    arch: 'amd64',
    cores: capacity?.cores ?? cpus().length,
    mem_mib: capacity?.memMib ?? Math.floor(totalmem() / 2 ** 20),
    disk_mib: capacity?.diskMib ?? (await diskMib(folder)),
    accelerator: accelerator.accelerator,
    cpu_model: accelerator.hostCpu,
    vmm: vmmName(vmms.newest.version),
    restorable_vmms: vmms.versions.map(vmmName),
    guest: guestDigest(machines.templates.platform),
    gpus: 0,
  };
}

async function diskMib(folder: string): Promise<number> {
  const { bavail, bsize } = await statfs(folder);
  return Math.floor((bavail * bsize) / 2 ** 20);
}
