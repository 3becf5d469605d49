/** What tells the processors of two hosts apart: memory that was saved on one is resumed on an equal one only. */
import { readFile } from 'node:fs/promises';
import type { Architecture } from '@releap/contract/architecture';
import { ARCHITECTURE } from '../host/architecture.ts';

/** Of the first processor; the others of a host are like it. */
const REGISTERS = '/sys/devices/system/cpu/cpu0/regs/identification';

export interface HostCpu {
  /** Identity of its model. */
  hostCpu: string;
  /** What guests see of it under KVM besides the model: features, and the state of its microcode. */
  details: readonly (string | undefined)[];
  /** Frequency of the time-stamp counter, where it is constant and known. */
  tscKhz: number | undefined;
}

/** What the kernel says of a processor. */
export interface CpuFiles {
  /** /proc/cpuinfo. */
  cpuinfo: string;
  /** Of arm64: the registers MIDR_EL1 and REVIDR_EL1, which name its model and its revision. */
  midr?: string | undefined;
  revidr?: string | undefined;
}

export async function readHostCpu(): Promise<HostCpu> {
  const register = async (name: string): Promise<string | undefined> =>
    await readFile(`${REGISTERS}/${name}`, 'utf8').then(
      (text) => text.trim(),
      () => undefined,
    );
  return describeCpu(ARCHITECTURE.name, {
    cpuinfo: await readFile('/proc/cpuinfo', 'utf8'),
    ...(ARCHITECTURE.name === 'arm64' && {
      midr: await register('midr_el1'),
      revidr: await register('revidr_el1'),
    }),
  });
}

/** @throws when all processors would look the same */
export function describeCpu(
  architecture: Architecture['name'],
  { cpuinfo, midr, revidr }: CpuFiles,
): HostCpu {
  const line = (name: string): string | undefined =>
    new RegExp(`^${name}\\s*: (.*)$`, 'm').exec(cpuinfo)?.[1];
  if (architecture === 'arm64') {
    const parts = ['CPU implementer', 'CPU part', 'CPU variant', 'CPU revision'].map(line);
    const model = midr ?? (parts.includes(undefined) ? undefined : parts.join('/'));
    if (model === undefined)
      throw new Error(
        `the model of this host's processor is in neither ${REGISTERS}/midr_el1 nor /proc/cpuinfo`,
      );
    return { hostCpu: `arm64/${model}`, details: [line('Features'), revidr], tscKhz: undefined };
  }
  const value = (name: string): string => line(name) ?? '';
  // Where the kernel knows the frequency of the time-stamp counter, "bogomips" is derived from it (two ticks a loop).
  // "cpu MHz" changes with power management.
  const bogomips = Number(value('bogomips'));
  const known = / constant_tsc( |$)/.test(value('flags')) && bogomips > 200 && bogomips < 40_000;
  return {
    hostCpu: [value('model name'), value('cpu family'), value('model'), value('stepping')].join('/'),
    details: [line('flags'), line('microcode')],
    tscKhz: known ? Math.round(bogomips * 500) : undefined,
  };
}
