import { DISKS, type DiskName } from '../../disk/vm-disks.ts';
import type { MachineSpec } from '../driver.ts';
import { TCG_CACHE_MIB } from '../tuning.ts';
import { cpuModel, deviceModel } from './device-model.ts';
import { SOCKETS } from './vmm-paths.ts';
import type { VmmPaths } from './vmm-paths.ts';

/** A block graph as QMP's BlockdevOptions, for `-blockdev` and `blockdev-add`. */
export type BlockNode = Record<string, unknown>;

export interface MachineOptions extends MachineSpec {
  /** Version of QEMU, e.g. `10.0.2`. */
  vmmVersion: string;
  /** Tags of the folders of the host that the guest can mount (virtiofs). They need `own` memory. */
  shares?: readonly string[] | undefined;
  /** Command line of a kernel to boot. Without one the VMM waits for an incoming migration (`-incoming defer`). */
  append?: string | undefined;
  /** Identifies the VMM in process lists and for `QemuVm.adopt`. */
  name: string;
  /** Unprivileged user and group of the VMM. */
  owner: { uid: number; gid: number };
  paths: VmmPaths;
}

/** Largest disk of a guest. Placeholders of templates have this size, so that any disk can replace them. */
export const PLACEHOLDER_BYTES = 1024 ** 4;

/** Requests of a shared folder that a guest may have under way: the most that virtiofsd takes. */
const SHARE_QUEUE_SIZE = 1024;

/** An empty block node that stands in for a disk until the disk is attached. */
export function placeholderNode(name: DiskName): BlockNode {
  return {
    driver: 'null-co',
    'node-name': `${nodeName(name)}-placeholder`,
    size: PLACEHOLDER_BYTES,
    'read-zeroes': true,
    'read-only': name === 'root',
  };
}

/** A spare device for later use. Its size is 0, so that tools in the guest neither list nor read it. */
function spareNode(index: number): BlockNode {
  return { driver: 'null-co', 'node-name': `spare-${index}-placeholder`, size: 0, 'read-zeroes': true };
}

/** Opened before privileges are dropped, which is safe as no guest can write to it. */
function systemNode({ system: filename }: VmmPaths): BlockNode {
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

/** The object that is the guest's memory. */
function memoryBackend({ sharing, memMib, paths }: MachineOptions): string {
  const common = `id=ram,size=${memMib}M,merge=off,dump=off`;
  if (sharing === 'own') return `memory-backend-memfd,${common},share=on`;
  const file = `memory-backend-file,${common},mem-path=${option(paths.memory)}`;
  if (sharing === 'shared') return `${file},share=on`;
  // Mapped privately, and not opened for writing. Huge pages of the host fit only where both its address and the guest's are aligned.
  return `${file},share=off,readonly=on,rom=off,align=2M`;
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
 * QEMU's arguments for one machine. Pure: equal options give equal arguments. Everything that a saved state depends on is
 * the same for a boot and a restore, and the guest's hardware follows from the version of the device model alone.
 *
 * A machine starts with placeholder disks. Real disks are attached once the VMM is in its jail, so that no file that a
 * guest could have written is opened with privileges (disks.ts).
 *
 * `microvm` with ACPI has no PCI and only the firmware tables that virtio-mmio needs: a state has 90 KB instead of 600,
 * and a hostile guest can reach a tenth of the emulated hardware.
 */
export function commandLine(options: MachineOptions): string[] {
  const { accelerator, vcpus, memMib, append, paths, owner } = options;
  const model = deviceModel(options.hardware.deviceModel);
  const args = ['-name', option(options.name), '-nodefaults', '-no-user-config', '-nographic', '-no-reboot'];
  args.push('-machine', model.machine[accelerator]);
  args.push('-accel', accelerator === 'tcg' ? `tcg,thread=multi,tb-size=${TCG_CACHE_MIB}` : 'kvm');
  args.push(
    '-cpu',
    cpuModel(accelerator, options.hardware),
    '-smp',
    `${vcpus},sockets=1,cores=${vcpus},threads=1`,
    '-m',
    `${memMib}M`,
  );
  args.push('-object', memoryBackend(options));
  for (const name of SOCKETS) {
    args.push('-chardev', `socket,id=${name},${paths.sockets[name]},server=on,wait=off`);
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
  // Otherwise the main loop serves the disks, and QMP and the agent's port wait for them. While the guest is paused they are the
  // main loop's again, so that placeholders can be exchanged.
  const threaded = model.diskThread === accelerator;
  if (threaded) args.push('-object', 'iothread,id=disks');
  const addDisk = (id: string, node: BlockNode): void => {
    args.push('-blockdev', JSON.stringify(node));
    // ENOSPC pauses the guest (`EnospcMonitor`); other errors are reported to it.
    args.push(
      '-device',
      `virtio-blk-device,id=${id},drive=${String(node['node-name'])},num-queues=1,rerror=report,werror=enospc${threaded ? ',iothread=disks' : ''}`,
    );
  };
  for (const name of DISKS) addDisk(name, placeholderNode(name));
  addDisk('system', systemNode(paths));
  for (let index = 0; index < model.spareDisks; index++) addDisk(`spare-${index}`, spareNode(index));
  args.push('-netdev', `tap,id=net,${paths.tap},vhost=off`);
  args.push('-device', `virtio-net-device,netdev=net,mac=${options.mac},guest_announce=off`);
  args.push('-object', 'rng-builtin,id=rng', '-device', 'virtio-rng-device,rng=rng');
  for (const [index, tag] of (options.shares ?? []).entries()) {
    args.push('-chardev', `socket,id=share-${index},${paths.share(index)}`);
    const queue = `queue-size=${SHARE_QUEUE_SIZE}`;
    args.push('-device', `vhost-user-fs-device,chardev=share-${index},tag=${option(tag)},${queue}`);
  }
  // A saved state has the devices only, without the configuration section of a migration stream.
  args.push('-global', 'migration.send-configuration=off');
  if (append === undefined) args.push('-S', '-incoming', 'defer');
  else args.push('-kernel', paths.kernel, '-initrd', paths.initramfs, '-append', append);
  // A machine with a template is made in one go; that of a sandbox gets its disks before it boots.
  if (append !== undefined && options.sharing === 'own') args.push('-S');
  const user = `${owner.uid}:${owner.gid}`;
  // QEMU 8.2, that of Ubuntu 24.04, has only the older options, which QEMU 10 removed.
  if (isAtLeast(options.vmmVersion, 9, 0))
    args.push('-run-with', `chroot=${option(paths.root)},user=${user}`);
  else args.push('-chroot', paths.root, '-runas', user);
  // Not `elevateprivileges=deny`: that filter is installed before the change of user and would kill the VMM there. What it
  // forbids is impossible anyway without root and capabilities, and with no_new_privs, which libseccomp sets.
  args.push('-sandbox', 'on,obsolete=deny,elevateprivileges=allow,spawn=deny,resourcecontrol=deny');
  return args;
}
