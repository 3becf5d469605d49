/** What a runner tells control of its machine. */
import { statfs } from 'node:fs/promises';
import { cpus, hostname, totalmem } from 'node:os';
import type { RunnerFacts } from '@releap/contract';
import { ARCHITECTURE } from '../host/architecture.ts';
import { memoryOfAll } from '../cgroup/cgroup-files.ts';
import { runToExit } from '../process/index.ts';
import type { Logger } from 'pino';
import type { Machines } from '../machine/index.ts';
import type { RunnerOptions } from '../runner-options.ts';
import { guestDigest } from '../template/machine-size.ts';
import type { AcceleratorFacts } from '../vmm/accelerator.ts';
import { cpuIdentity } from '../vmm/hardware.ts';

const MIB = 2 ** 20;
/** It looks at each file once: there are a few thousand at most. */
const USED_DEADLINE_MS = 60_000;

export interface FactsSources {
  /** What the machine offers, instead of what it has. */
  capacity: RunnerOptions['capacity'];
  /** What the operator calls the machine. */
  name: RunnerOptions['name'];
  /** Classes of hardware that this machine has. */
  classes: RunnerOptions['classes'];
  /** On the file system of the disks. */
  folder: string;
  accelerator: AcceleratorFacts;
  machines: Machines;
  log: Logger;
}

export async function runnerFacts(sources: FactsSources): Promise<RunnerFacts> {
  const { capacity, name = hostname().slice(0, 64), classes, folder, accelerator, machines, log } = sources;
  const { platform } = machines.templates;
  const { driver } = platform;
  return {
    arch: ARCHITECTURE.name,
    cores: capacity?.cores ?? cpus().length,
    mem_mib: capacity?.memMib ?? memoryOfAll(totalmem() / 2 ** 20),
    disk_mib: capacity?.diskMib ?? (await diskMib(folder, log)),
    accelerator: accelerator.accelerator,
    cpu_model: cpuIdentity(accelerator.hostCpu, platform.hardware),
    vmm: driver.nameOf(driver.vmms.newest.version),
    restorable_vmms: driver.vmms.versions.map((version) => driver.nameOf(version)),
    guest: guestDigest(platform),
    gpus: 0,
    ...processor(),
    name,
    ...(classes === undefined ? {} : { classes }),
  };
}

/** Its name, as the classes of hardware match it. It is not known on every machine. */
function processor(): Pick<RunnerFacts, 'processor'> {
  const name = cpus()[0]?.model.trim() ?? '';
  return name === '' ? {} : { processor: name.slice(0, 200) };
}

/** What sandboxes may have of the file system: what they have, which is allocated to them again, and what is free. */
async function diskMib(folder: string, log: Logger): Promise<number> {
  const { bavail, bsize } = await statfs(folder);
  return Math.floor((bavail * bsize) / MIB) + (await usedMib(folder, log));
}

/**
 * Without what lies on other file systems, as mounted volumes do. A file that is removed meanwhile is an error of du's, and its sum is
 * right all the same.
 */
async function usedMib(folder: string, log: Logger): Promise<number> {
  const options = ['--summarize', '--one-file-system', '--block-size=1M'];
  try {
    const { stdout } = await runToExit('du', [...options, folder], { deadlineMs: USED_DEADLINE_MS });
    return Number.parseInt(stdout.toString(), 10) || 0;
  } catch (error) {
    // A slow disk is no reason not to start: the host offers less until its next start.
    log.warn(
      { err: error, folder },
      'what sandboxes have written is not known: only what is free is offered',
    );
    return 0;
  }
}
