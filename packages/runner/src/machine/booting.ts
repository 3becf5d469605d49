import type { Logger } from 'pino';
import type { CgroupLimits } from '../cgroup/cgroup-files.ts';
import type { CgroupTree } from '../cgroup/cgroup-tree.ts';
import type { OomKills } from '../cgroup/oom-kills.ts';
import type { Platform } from '../template/machine-size.ts';
import type { Vm } from '../vmm/driver.ts';
import type { Share } from '../volume/share-server.ts';
import { failpoint } from '../failpoint.ts';
import { allSettled } from './all-settled.ts';
import type { BootOptions } from './boot-options.ts';
import { cgroupName, fileMaxMib, ownerOf, recordedHardware } from './restoring.ts';
import type { RestoredVm, RestoreSource } from './restoring.ts';
import type { ShareServers } from './share-servers.ts';
import type { Stopwatch } from './stopwatch.ts';
import { hardwareOf, holdSystemDisk } from './vm-folder.ts';
import type { VmFolders, VmRecord } from './vm-folder.ts';

export interface BootingOptions {
  folders: VmFolders;
  cgroups: CgroupTree;
  oomKills: OomKills;
  platform: () => Promise<Platform>;
  servers: ShareServers;
  /** Limits of the cgroup of a VM. */
  limits: (record: VmRecord, cpu: BootOptions['cpu']) => CgroupLimits;
  log: Logger;
}

type Prepare = (
  jail: string,
  owner: { uid: number; gid: number },
) => Promise<Pick<RestoreSource, 'disks' | 'diskMaxMib'>>;

/**
 * The start path of VMs that share folders of the host: they boot. The servers of the folders map the guest's memory, so it
 * cannot be a private copy of a template's; and a guest's kernel finds only the devices that it has booted with.
 */
export class Booting {
  readonly #options: BootingOptions;

  constructor(options: BootingOptions) {
    this.#options = options;
  }

  /**
   * Starts servers and VMM in cgroups of their own, and attaches the disks. The guest boots when it is resumed.
   * @param prepare provides the disks, concurrently
   * @throws when a step fails; no VMM is left then, and `Machines.destroy` removes the rest
   */
  async boot(
    options: Omit<BootOptions, 'disks' | 'shares'> & { shares: readonly Share[] },
    clock: Stopwatch,
    prepare: Prepare,
  ): Promise<RestoredVm> {
    const { folders, cgroups, oomKills, servers, limits, log } = this.#options;
    const { vmId, slot, shape, cpu, shares } = options;
    const platform = await this.#options.platform();
    const { driver, hardware, vmm } = platform;
    const folder = folders.path(vmId);
    const record: VmRecord = {
      cgroup: cgroupName(vmId),
      uid: slot.uid,
      shape,
      startedIn: folder,
      hardware: recordedHardware(hardware),
      vmm: vmm.version,
      shares: shares.map(({ tag }) => ({ tag })),
      // It has no file of memory.
      fileHolesMib: 0,
    };
    await folders.create(vmId, record);
    const [source, cgroupProcs, served] = await allSettled([
      prepare(folders.jail(vmId), ownerOf(slot)),
      cgroups.create(record.cgroup, limits(record, cpu)),
      servers.start(shares, { vmId, uid: slot.uid, folder, shape, cpu }),
    ]);
    failpoint('volume:served');
    record.shares = served.map(({ tag, process }) => ({ tag, process }));
    await holdSystemDisk(hardware, folder);
    clock.mark('prepare');
    const disks = source.disks?.();
    const disksSettled = Promise.allSettled([disks]);
    let vm: Vm | undefined;
    try {
      vm = await driver.start({
        vmm,
        machine: {
          accelerator: platform.accelerator,
          hardware: hardwareOf(record, folder),
          vcpus: shape.vcpus,
          memMib: shape.memMib,
          sharing: 'own',
          mac: platform.mac,
        },
        boot: {
          kernel: platform.kernel.path,
          initramfs: platform.initramfs.path,
          append: driver.kernelAppend({ ...platform, sharesFolders: true, verbose: options.verbose }),
        },
        shares: served,
        dir: folder,
        jail: { root: folders.jail(vmId), ...ownerOf(slot) },
        netns: slot.netnsPath,
        tap: slot.tap,
        cgroupProcs,
        // Its memory is a file, too.
        fileMaxMib: Math.max(fileMaxMib(source.diskMaxMib), shape.memMib),
        onConsole: options.onConsole,
        signal: options.signal,
        explainKill: oomKills.watch(record.cgroup),
        log: log.child({ vm: vmId }),
      });
      clock.mark('start');
      const attached = await disks;
      const whole = {
        ...record,
        process: vm.identity,
        diskBytes: attached?.bytes ?? { scratch: 0, docker: 0 },
      };
      await allSettled([
        folders.save(vmId, whole),
        attached === undefined ? Promise.resolve() : vm.disks.attach(attached, 'placeholders'),
      ]);
      clock.mark('attach');
      return { vm, record: whole };
    } catch (error) {
      await vm?.kill();
      await disksSettled;
      throw error;
    }
  }
}
