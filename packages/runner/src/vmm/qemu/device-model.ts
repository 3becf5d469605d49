import { architectureOf } from '@releap/contract/architecture';
import type { Architecture } from '@releap/contract/architecture';
import type { Accelerator, Hardware } from '../hardware.ts';

/**
 * The virtual hardware of a machine. A saved state can only be loaded into the model that it was saved with, so a released
 * entry never changes: a change is a new entry, and the old one stays while memory saved with it may be resumed.
 */
export interface DeviceModel {
  /** Of host and guest. */
  architecture: Architecture;
  /** Machine type, without its options. */
  machineType: 'microvm';
  /** Value of `-machine`, by what executes the guest. */
  machine: Readonly<Record<Accelerator, string>>;
  /** Value of `-cpu`, likewise. */
  cpu: Readonly<Record<Accelerator, string>>;
  /** Where it is this one that executes the guest, a thread of its own serves the disks. */
  diskThread?: Accelerator;
  /** Name of the read-only system disk in the guest. It follows the sandbox's own disks. */
  systemDisk: 'vdd';
  /** Number of spare virtio-blk devices of size 0; vde and following in the guest. */
  spareDisks: number;
  /** `max_ports` of the virtio-serial controller, and its ports besides the agent's. */
  serialPorts: { max: number; spares: readonly { nr: number; name: string }[] };
}

const COMMON_MICROVM = 'rtc=on,isa-serial=on,auto-kernel-cmdline=off,memory-backend=ram';
/** An emulated guest measures its processor's frequency by the PIT. */
const MICROVM = `microvm,acpi=on,pit=on,pic=on,${COMMON_MICROVM}`;
/**
 * Under KVM a guest reads its clock's frequency from kvm-clock and its timer is the time-stamp counter's deadline, so neither the
 * 8254 timer nor the 8259 interrupt controller is used. QEMU emulates them: they would only be more that a hostile guest can reach.
 */
const MICROVM_OF_KVM = `microvm,acpi=on,pit=off,pic=off,${COMMON_MICROVM}`;
const FORMER_MICROVM = { kvm: MICROVM, tcg: MICROVM } as const;

/**
 * The vendor matters: Linux assumes synchronised time-stamp counters on several CPUs only on Intel, and without them a `microvm`
 * has no better clock source than the 4 ms tick. Five-level page tables would only slow guests down.
 */
const EMULATED_CPU = 'max,la57=off,vendor=GenuineIntel';
/**
 * A processor that names these features says that it moves strings of single bytes fast. So the kernel, C libraries and Go copy
 * and clear memory a byte at a time, which the emulator does one by one: without them they take a tenth of the time.
 */
const WITHOUT_FAST_STRINGS = 'erms=off,fsrm=off';

/**
 * The processor of the host, without what tenants must not have: nested virtualisation, whose emulation by the host's kernel is
 * where most escapes from guests began, and performance counters, which measure other tenants of the core. Five-level page tables
 * only slow a guest of this size down.
 */
const HOST_CPU = 'host,migratable=on';
const WITHOUT_NESTING = 'vmx=off,svm=off,pmu=off';
/** Features that no guest has under KVM. */
export const SWITCHED_OFF = ['vmx', 'svm', 'pmu', 'la57'] as const;
/** The VMM does not start on a host that lacks a feature. KVM has the deadline timer on any processor, and not all models name it. */
const NAMED_CPU = 'enforce=on,tsc-deadline=on';

/** The device model that templates are made with. */
export const DEVICE_MODEL = 6;
const NEWEST: Readonly<Partial<Record<Architecture['name'], number>>> = { amd64: DEVICE_MODEL };

const WITH_SYSTEM_DISK = {
  architecture: architectureOf('x64'),
  machineType: 'microvm',
  systemDisk: 'vdd',
  spareDisks: 2,
  serialPorts: { max: 8, spares: [{ nr: 2, name: 'releap.spare' }] },
} as const;

const WITHOUT_VIRTUALISATION = {
  kvm: `${HOST_CPU},${WITHOUT_NESTING},la57=off`,
  tcg: `${EMULATED_CPU},${WITHOUT_FAST_STRINGS},${WITHOUT_NESTING}`,
} as const;

const DEVICE_MODELS: Readonly<Record<number, DeviceModel>> = {
  4: {
    ...WITH_SYSTEM_DISK,
    machine: FORMER_MICROVM,
    cpu: { kvm: HOST_CPU, tcg: `${EMULATED_CPU},${WITHOUT_FAST_STRINGS}` },
  },
  5: { ...WITH_SYSTEM_DISK, machine: FORMER_MICROVM, cpu: WITHOUT_VIRTUALISATION },
  6: {
    ...WITH_SYSTEM_DISK,
    machine: { kvm: MICROVM_OF_KVM, tcg: MICROVM },
    // Under emulation a guest's notifications reach QEMU's main loop only.
    diskThread: 'kvm',
    cpu: WITHOUT_VIRTUALISATION,
  },
};

/** @throws when this version does not know that model */
export function deviceModel(version: number): DeviceModel {
  const model = DEVICE_MODELS[version];
  if (model === undefined) {
    throw new Error(
      `there is no device model ${version}; this version of Releap knows ${Object.keys(DEVICE_MODELS).join(' and ')}`,
    );
  }
  return model;
}

/** Value of `-cpu` for an accelerator, of a known device model. */
export function cpuModel(
  accelerator: Accelerator,
  { deviceModel: version, cpu }: Pick<Hardware, 'deviceModel' | 'cpu'>,
): string {
  const value = deviceModel(version).cpu[accelerator];
  if (accelerator === 'tcg' || cpu === undefined) return value;
  return value.replace(HOST_CPU, `${cpu.model},${NAMED_CPU}`);
}

/** Whether memory that was saved with that model can be resumed. */
export function isKnownDeviceModel(version: number, { name }: Architecture): boolean {
  return DEVICE_MODELS[version]?.architecture.name === name;
}

/** The device model that templates of a host are made with. @throws Error for operators where there is none */
export function newestDeviceModel({ name }: Architecture): number {
  const newest = NEWEST[name];
  if (newest === undefined)
    throw new Error(
      `this version of Releap has no device model for ${name}: sandboxes run on ${Object.keys(NEWEST).join(' and ')}`,
    );
  return newest;
}
