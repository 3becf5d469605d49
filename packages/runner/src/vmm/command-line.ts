import type { Accelerator } from './accelerator.ts';
import { deviceModel, DISKS } from './device-model.ts';
import type { DiskName, Hardware } from './device-model.ts';
import { SOCKETS } from './places.ts';
import type { Places } from './places.ts';

/** One `-blockdev` graph, as QMP's BlockdevOptions (also what `blockdev-add` takes). */
export type BlockNode = Record<string, unknown>;

export interface MachineOptions {
  /** Version of QEMU, e.g. `10.0.2`. */
  vmmVersion: string;
  accelerator: Accelerator;
  /** The devices, and the file of the system disk where there is one. */
  hardware: Hardware;
  /** Value of `-cpu`. */
  cpuModel: string;
  vcpus: number;
  memMib: number;
  /** `shared` while a template is made: what the guest writes goes to the file. `private`: copy on write. */
  sharing: 'shared' | 'private';
  /** Of the guest's network device. */
  mac: string;
  /** Parameters of a kernel to boot, or nothing: then the VMM waits for a state to come in over QMP. */
  append?: string | undefined;
  /** Says whose VMM it is to those who list processes, and to us (`Vm.adopt`). */
  name: string;
  /** Whom it becomes. */
  owner: { uid: number; gid: number };
  places: Places;
}

/** Largest disk a guest may be given. Templates have placeholders of this size, so a real one always fits. */
export const PLACEHOLDER_BYTES = 1024 ** 4;

/** Bytes that the emulator may keep of translated code. The default is a gigabyte, outside the guest's memory. */
export const TCG_CACHE_MIB = 128;

/**
 * What `-cpu` is for an accelerator.
 *
 * Under emulation the vendor matters: a kernel believes the time-stamp counters of several CPUs to be in step only on
 * Intel, and without them a `microvm` has no better clock than the 4 ms tick. Five-level page tables only cost.
 */
export function cpuModel(accelerator: Accelerator): string {
  return accelerator === 'kvm' ? 'host,migratable=on' : 'max,la57=off,vendor=GenuineIntel';
}

/** A disk without content that takes the place of a real one until that is attached. */
export function placeholderNode(name: DiskName): BlockNode {
  return {
    driver: 'null-co',
    'node-name': `${nodeName(name)}-placeholder`,
    size: PLACEHOLDER_BYTES,
    'read-zeroes': true,
    'read-only': name === 'root',
  };
}

/** A device that waits for a use. Without a size, so that tools in the guest do not list it and nothing reads it. */
function spareNode(index: number): BlockNode {
  return { driver: 'null-co', 'node-name': `spare-${index}-placeholder`, size: 0, 'read-zeroes': true };
}

/** No guest writes it, so it may be opened with privileges. */
function systemNode({ system: filename }: Places): BlockNode {
  return {
    driver: 'raw',
    'node-name': 'disk-system',
    'read-only': true,
    file: { driver: 'file', filename, 'read-only': true, locking: 'off' },
  };
}

/** Base of the names of a disk's nodes. */
export function nodeName(name: DiskName): string {
  return `disk-${name}`;
}

/** Whether it maps memory privately without opening it for writing. */
export function mapsReadOnly(vmmVersion: string): boolean {
  return isAtLeast(vmmVersion, 8, 2);
}

function mapping({ sharing, vmmVersion }: MachineOptions): string {
  if (sharing === 'shared') return 'share=on';
  return mapsReadOnly(vmmVersion) ? 'share=off,readonly=on,rom=off' : 'share=off';
}

/** @param version of a VMM, e.g. `10.0.2` */
function isAtLeast(version: string, major: number, minor: number): boolean {
  const [have = 0, haveMinor = 0] = version.split('.').map(Number);
  return have > major || (have === major && haveMinor >= minor);
}

/** Escapes a value for QEMU's comma-separated option syntax. */
export function option(value: string): string {
  return value.replaceAll(',', ',,');
}

/**
 * QEMU's arguments for one machine. Pure: equal options give equal arguments, and everything that a saved state
 * depends on is the same whether the machine boots or is restored. What the guest finds follows from the version of the
 * device model alone.
 *
 * A machine starts with placeholders for disks: a real one is attached once the VMM is in its jail, so that no file that a
 * guest could have written is opened with privileges (machine/guest-disks.ts).
 *
 * `microvm` with ACPI: no PCI, no firmware tables beyond what virtio-mmio needs; a state is 90 KB instead of 600 and
 * the emulated hardware that a hostile guest can reach is a tenth.
 */
export function commandLine(options: MachineOptions): string[] {
  const { accelerator, vcpus, memMib, append, places, owner } = options;
  const model = deviceModel(options.hardware.deviceModel);
  const args = ['-name', option(options.name), '-nodefaults', '-no-user-config', '-nographic', '-no-reboot'];
  args.push('-machine', model.machine);
  args.push('-accel', accelerator === 'tcg' ? `tcg,thread=multi,tb-size=${TCG_CACHE_MIB}` : 'kvm');
  args.push(
    '-cpu',
    options.cpuModel,
    '-smp',
    `${vcpus},sockets=1,cores=${vcpus},threads=1`,
    '-m',
    `${memMib}M`,
  );
  args.push(
    '-object',
    `memory-backend-file,id=ram,size=${memMib}M,mem-path=${option(places.memory)},merge=off,dump=off,${mapping(options)}`,
  );
  for (const name of SOCKETS) {
    args.push('-chardev', `socket,id=${name},${places.sockets[name]},server=on,wait=off`);
  }
  args.push('-mon', 'chardev=qmp,mode=control');
  args.push('-device', 'isa-serial,chardev=console');
  const { max, spares } = model.serialPorts;
  args.push('-device', `virtio-serial-device,id=serial,max_ports=${max}`);
  args.push('-device', 'virtserialport,bus=serial.0,nr=1,chardev=agent,name=releap.agent');
  for (const { nr, name } of spares) {
    args.push('-chardev', `null,id=spare-${nr}`);
    args.push('-device', `virtserialport,bus=serial.0,nr=${nr},chardev=spare-${nr},name=${name}`);
  }
  const addDisk = (id: string, node: BlockNode): void => {
    args.push('-blockdev', JSON.stringify(node));
    // A guest whose host disk is full is paused (`EnospcMonitor`); any other error is reported to it.
    args.push(
      '-device',
      `virtio-blk-device,id=${id},drive=${String(node['node-name'])},num-queues=1,rerror=report,werror=enospc`,
    );
  };
  for (const name of DISKS) addDisk(name, placeholderNode(name));
  if (model.systemDisk !== undefined) {
    if (options.hardware.system === undefined)
      throw new Error('a machine of this device model has a system disk');
    addDisk('system', systemNode(places));
  }
  for (let index = 0; index < model.spareDisks; index++) addDisk(`spare-${index}`, spareNode(index));
  args.push('-netdev', `tap,id=net,${places.tap},vhost=off`);
  args.push('-device', `virtio-net-device,netdev=net,mac=${options.mac},guest_announce=off`);
  args.push('-object', 'rng-builtin,id=rng', '-device', 'virtio-rng-device,rng=rng');
  // A saved state is the devices alone, without the section that a migration begins with.
  args.push('-global', 'migration.send-configuration=off');
  if (append === undefined) args.push('-S', '-incoming', 'defer');
  else args.push('-kernel', places.kernel, '-initrd', places.initramfs, '-append', append);
  const user = `${owner.uid}:${owner.gid}`;
  // The older options are gone from QEMU 10 on.
  if (isAtLeast(options.vmmVersion, 9, 0))
    args.push('-run-with', `chroot=${option(places.root)},user=${user}`);
  else args.push('-chroot', places.root, '-runas', user);
  // Not `elevateprivileges=deny`: that filter is in force before the change of user and would kill the VMM there. What it forbids
  // is impossible anyway for a process without root, capabilities or (libseccomp sets no_new_privs) a way to them.
  args.push('-sandbox', 'on,obsolete=deny,elevateprivileges=allow,spawn=deny,resourcecontrol=deny');
  return args;
}
