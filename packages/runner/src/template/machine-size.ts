import { createHash } from 'node:crypto';
import type { Vmm, VmmDriver } from '../vmm/driver.ts';
import { cpuIdentity } from '../vmm/hardware.ts';
import type { Accelerator, Hardware } from '../vmm/hardware.ts';

/** Size of a machine. Each size has a template of its own. */
export interface MachineSize {
  vcpus: number;
  memMib: number;
}

/** The size of a machine with a guest in it. */
export interface GuestSize extends MachineSize {
  /**
   * Memory that the agent reserves, because the sandbox requested less than the machine has; absent for none. The
   * reservation is part of the guest's memory, so forks and snapshots have it, too.
   */
  reservedMib?: number;
}

/** The properties of this host that every template depends on. */
export interface Platform {
  accelerator: Accelerator;
  /** Identity of the host's processor, as guests that have no named one see it. */
  hostCpu: string;
  driver: VmmDriver;
  /** The VMM that boots templates and runs new VMs. */
  vmm: Vmm;
  /** Frequency of the host's time-stamp counter, where it is constant and known. */
  tscKhz: number | undefined;
  kernel: { path: string; sha256: string };
  initramfs: { path: string; sha256: string };
  /** The devices of new machines. */
  hardware: Hardware;
  /** MAC of every guest, and the address with which the agent configures the network before the template is saved. */
  mac: string;
  guestNet: string;
}

/** Limits that are safe for `-smp` and the memory layout of a microvm. */
const SHAPE_LIMITS = { vcpus: 64, memMinMib: 128, memMaxMib: 1024 * 1024 };

/** @throws when a machine cannot have that size, saying what is allowed */
export function checkMachineSize({ vcpus, memMib }: MachineSize): void {
  if (!Number.isInteger(vcpus) || vcpus < 1 || vcpus > SHAPE_LIMITS.vcpus) {
    throw new Error(`a micro-VM cannot have ${vcpus} CPUs: 1 to ${SHAPE_LIMITS.vcpus} are possible`);
  }
  if (!Number.isInteger(memMib) || memMib < SHAPE_LIMITS.memMinMib || memMib > SHAPE_LIMITS.memMaxMib) {
    throw new Error(
      `a micro-VM cannot have ${memMib} MiB of memory: ${SHAPE_LIMITS.memMinMib} to ${SHAPE_LIMITS.memMaxMib} are possible`,
    );
  }
}

/** Guests reserve memory in huge pages. */
const RESERVED_STEP_MIB = 2;

/**
 * A microvm with exactly 2 GiB does not boot: the end of its initramfs is overwritten. QEMU puts the initramfs at the end of the
 * memory, where SeaBIOS has its ACPI tables. QEMU's option ROM moves it below these, unless its last page is the last one that
 * the kernel accepts (`initrd_addr_max`, 2 GiB - 1): then it takes that for QEMU's reason to put it there.
 */
const UNBOOTABLE_MIB = 2048;

/**
 * Size of the machine for a sandbox that requests `asked`. Sizes are rounded up to few, because each has a template of its own,
 * which takes a cold boot to make and memory to hold: up to 1 GiB to steps of 128 MiB, up to 4 GiB to steps of 512 MiB, then
 * of 1 GiB; CPUs to powers of two. Instead of 2 GiB a machine has a huge page more, which its guest reserves.
 */
export function roundUpSize(asked: MachineSize): MachineSize {
  checkMachineSize(asked);
  const { memMib } = asked;
  const step = memMib <= 1024 ? 128 : memMib <= 4096 ? 512 : 1024;
  const rounded = Math.ceil(memMib / step) * step;
  return {
    vcpus: 2 ** Math.ceil(Math.log2(asked.vcpus)),
    memMib: rounded === UNBOOTABLE_MIB ? rounded + RESERVED_STEP_MIB : rounded,
  };
}

/** The machine for a sandbox that requests `asked`, and how much of its memory the sandbox does not get. */
export function guestSize(asked: MachineSize): GuestSize {
  const machine = roundUpSize(asked);
  const steps = Math.floor((machine.memMib - asked.memMib) / RESERVED_STEP_MIB);
  return { ...machine, ...(steps > 0 && { reservedMib: steps * RESERVED_STEP_MIB }) };
}

/** Memory that a guest can use. */
export function usableMib({ memMib, reservedMib = 0 }: GuestSize): number {
  return memMib - reservedMib;
}

/** Digest of what every guest consists of besides its image: kernel, agent, system disk and devices. */
export function guestDigest({ hardware, kernel, initramfs }: Platform): string {
  const parts = [hardware.deviceModel, hardware.system.sha256, kernel.sha256, initramfs.sha256];
  return createHash('sha256').update(JSON.stringify(parts)).digest('hex').slice(0, 32);
}

/** Name of a template: a digest of everything it depends on. States with different keys never fit each other's machine. */
export function templateKey(platform: Platform, shape: MachineSize): string {
  const parts = {
    model: platform.hardware.deviceModel,
    system: platform.hardware.system.sha256,
    accelerator: platform.accelerator,
    cpuModel: platform.driver.cpuModel(platform.accelerator, platform.hardware),
    // Under emulation too: the guest has measured this CPU's time-stamp counter.
    hostCpu: cpuIdentity(platform.hostCpu, platform.hardware),
    vmm: platform.vmm.version,
    kernel: platform.kernel.sha256,
    initramfs: platform.initramfs.sha256,
    append: platform.driver.kernelAppend({ ...platform, sharesFolders: false }),
    mac: platform.mac,
    vcpus: shape.vcpus,
    memMib: shape.memMib,
  };
  return createHash('sha256').update(JSON.stringify(parts)).digest('hex').slice(0, 32);
}
