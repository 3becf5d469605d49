/** A processor of QEMU's list that guests see instead of the host's, so that what was saved on one host of a fleet runs on another. */
import { readFile } from 'node:fs/promises';
import type { Logger } from 'pino';
import { run } from '../../process/index.ts';
import type { Vmm } from '../driver.ts';
import type { Accelerator, NamedCpu } from '../hardware.ts';
import { DEADLINES_MS } from '../tuning.ts';
import { SWITCHED_OFF } from './device-model.ts';
import { vmmCommand } from './vmm-store.ts';

/** An entry of QMP's `query-cpu-definitions`. */
interface CpuDefinition {
  name: string;
  /** Features of the model that the host does not have. */
  'unavailable-features'?: string[];
  /** Of a name without a version: what it means to this VMM. */
  'alias-of'?: string;
}

/** The models that a VMM knows. @throws when the accelerator does not work here at all */
export async function cpuDefinitions(vmm: Vmm, accelerator: Accelerator): Promise<CpuDefinition[]> {
  const { program, args, env } = vmmCommand(vmm.folder);
  const machine = ['-nodefaults', '-no-user-config', '-display', 'none', '-machine', 'none', '-S'];
  const commands = ['qmp_capabilities', 'query-cpu-definitions', 'quit'];
  const output = await run(program, [...args, ...machine, '-accel', accelerator, '-qmp', 'stdio'], {
    // It stays open: QEMU drops commands that wait when it is closed.
    feed: (stdin) => void stdin.write(commands.map((execute) => `${JSON.stringify({ execute })}\n`).join('')),
    deadlineMs: DEADLINES_MS.vmmStart,
    env,
  });
  const answers = output
    .split('\n')
    .filter((line) => line.trim() !== '')
    .map((line) => JSON.parse(line) as { return?: unknown });
  const list = answers.find((answer) => Array.isArray(answer.return));
  if (list === undefined) throw new Error('the VMM does not list its CPU models');
  return list.return as CpuDefinition[];
}

/** @throws Error that says why guests of this host cannot have that processor, and what to do */
export function checkCpuModel(name: string, definitions: readonly CpuDefinition[]): void {
  const found = definitions.find((one) => one.name === name);
  if (found === undefined)
    throw new Error(
      `RELEAP_CPU_MODEL=${name}: QEMU has no such model. It has ${definitions
        .filter((one) => /-v\d+$/.test(one.name))
        .map((one) => one.name)
        .toSorted()
        .join(', ')}`,
    );
  const versioned = found['alias-of'];
  if (versioned !== undefined)
    throw new Error(
      `RELEAP_CPU_MODEL=${name}: what this name means depends on the version of QEMU; use ${versioned}`,
    );
  const missing = (found['unavailable-features'] ?? []).filter(
    (feature) => !SWITCHED_OFF.some((off) => feature === off || feature.startsWith(`${off}-`)),
  );
  if (missing.length > 0)
    throw new Error(
      `RELEAP_CPU_MODEL=${name}: this host lacks ${missing.join(', ')}. Choose a model that all hosts of the fleet have, or host`,
    );
}

/**
 * A named processor on this host. Guests also see the host's vendor, in the way that instructions of system calls behave, and the
 * size of its physical addresses (QEMU's microvm passes that on).
 */
export async function namedCpu(name: string): Promise<NamedCpu> {
  const text = await readFile('/proc/cpuinfo', 'utf8');
  const vendor = /^vendor_id\s*: (.*)$/m.exec(text)?.[1] ?? '';
  const bits = /^address sizes\s*: (\d+) bits physical/m.exec(text)?.[1] ?? '';
  return { model: name, identity: [name, vendor, bits].join('/') };
}

/** A named processor that guests of this host can have under KVM. @throws Error for operators when they cannot */
export async function checkedCpu(vmm: Vmm, name: string, log: Logger): Promise<NamedCpu> {
  // Where KVM does not work guests are emulated, or the trial is repeated until it does.
  const definitions = await cpuDefinitions(vmm, 'kvm').catch((error: unknown) => {
    log.info({ err: error }, 'the CPU models that KVM has here are not known');
  });
  if (definitions !== undefined) checkCpuModel(name, definitions);
  return await namedCpu(name);
}
