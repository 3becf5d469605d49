/** Disks of a sandbox, attached to every machine after its state was loaded; the guest sees vda, vdb and vdc. */
export const DISKS = ['root', 'scratch', 'docker'] as const;
export type DiskName = (typeof DISKS)[number];

/** A file system of ours that a machine was booted with, and that its guest's memory refers to from then on. */
export interface SystemDisk {
  path: string;
  sha256: string;
}

/** What a saved memory needs besides a VMM: the devices that the guest's kernel found when it booted. */
export interface Hardware {
  /** Version of the device model. */
  deviceModel: number;
  /** Absent where the model has none. */
  system?: SystemDisk | undefined;
}

/**
 * What a guest finds in its machine. A saved state fits only the model that it was saved with, so a published entry never
 * changes: a change is a new entry, and the old one stays as long as memory saved with it may be resumed.
 */
export interface DeviceModel {
  /** Machine type, without its options. */
  machineType: string;
  /** Value of `-machine`. */
  machine: string;
  /** Device in the guest of the read-only system disk; it follows the sandbox's own disks. */
  systemDisk?: 'vdd';
  /** virtio-blk devices of no size that wait for a use: the guest sees vde and further. */
  spareDisks: number;
  /** Ports that the serial controller can have, and those that it has besides the agent's. */
  serialPorts: { max: number; spares: readonly { nr: number; name: string }[] };
}

const MICROVM =
  'microvm,acpi=on,pit=on,pic=on,rtc=on,isa-serial=on,auto-kernel-cmdline=off,memory-backend=ram';

/** The device model that templates are made with. */
export const DEVICE_MODEL = 3;

const DEVICE_MODELS: Readonly<Record<number, DeviceModel>> = {
  2: { machineType: 'microvm', machine: MICROVM, spareDisks: 0, serialPorts: { max: 2, spares: [] } },
  3: {
    machineType: 'microvm',
    machine: MICROVM,
    systemDisk: 'vdd',
    spareDisks: 2,
    serialPorts: { max: 8, spares: [{ nr: 2, name: 'releap.spare' }] },
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

/** Whether memory that was saved with that model can be resumed. */
export function isKnownDeviceModel(version: number): boolean {
  return DEVICE_MODELS[version] !== undefined;
}
