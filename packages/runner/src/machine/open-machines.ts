import { existsSync } from 'node:fs';
import { mkdir } from 'node:fs/promises';
import { dirname, join } from 'node:path';
import type { Logger } from 'pino';
import { CgroupTree, limitsOfMachine } from '../cgroup/cgroup-tree.ts';
import { type DiskLimit, ioMaxLines } from '../cgroup/disk-limit.ts';
import { EmptyExt4Store } from '../disk/empty-ext4.ts';
import { LocalCopies } from '../disk/local-copies.ts';
import { fileSha256 } from '../disk/file-sha256.ts';
import type { Platform, MachineSize } from '../template/machine-size.ts';
import { TemplateStore } from '../template/template-store.ts';
import { findAccelerator, tryKvmAgain } from '../vmm/accelerator.ts';
import type { AcceleratorChoice, AcceleratorFacts, AcceleratorOptions } from '../vmm/accelerator.ts';
import { HOST_CPU_MODEL } from '../vmm/hardware.ts';
import { KvmWatch } from '../vmm/kvm-watch.ts';
import { qemuDriver } from '../vmm/qemu/driver.ts';
import { VmmStore } from '../vmm/qemu/vmm-store.ts';
import { virtiofsdFolder } from '@releap/contract/volume-probe';
import { countKvmImages } from './kvm-images.ts';
import { tryLifeCycle } from './life-cycle-trial.ts';
import { Machines } from './machines.ts';
import { placeSystemDisk, removeUnusedSystemDisks } from './system-disk.ts';

export interface OpenMachinesOptions {
  /** The service's home, absolute; it determines the names of its cgroups. */
  home: string;
  /** Folder of the VMs, absolute. */
  folder: string;
  cacheDir: string;
  /** Build folder of set-up, with the VMM. */
  buildDir: string;
  /** Uncompressed kernel image's bzImage and the initramfs that set-up has built. */
  kernel: string;
  initramfs: string;
  /** The system disk that set-up has built. */
  systemDisk: string;
  /**
   * Finds the parts of guests that share folders of the host; undefined when they are the same. Called when the first of them
   * starts, as set-up may make the parts after the service has started. @throws when they are missing
   */
  sharingGuest?: (() => GuestParts | undefined) | undefined;
  /** Device model of new machines; the newest one by default. */
  deviceModel?: number;
  /** Machine size whose template always stays loaded. */
  defaultShape?: MachineSize;
  /** MAC of all guests, and `address/prefix,gateway` that a template's guest configures. */
  guestNetwork: { mac: string; address: string };
  /** Unprivileged user and group of VMMs that boot templates; no VM has them. */
  templateUid: number;
  /** Of each VM. */
  diskLimit?: DiskLimit | undefined;
  /** Default: `auto`. */
  accelerator?: AcceleratorChoice | undefined;
  /** Processor of guests under KVM: `host`, or a name of QEMU's list. Default: `host`. */
  cpuModel?: string | undefined;
  /** Ends a trial of KVM. */
  signal?: AbortSignal | undefined;
  log: Logger;
}

/** Of a trial of KVM, beside the folder of the VMs: short, as sockets below it have short paths. */
const TRIAL_FOLDER = 'trial';
const TRIAL_SHAPE: MachineSize = { vcpus: 2, memMib: 256 };

/** Detects the capabilities of this host, and opens everything that starts of VMs need. Starts no VM but a trial of KVM. */
export async function openMachines(options: OpenMachinesOptions): Promise<{
  machines: Machines;
  cgroups: CgroupTree;
  facts: AcceleratorFacts;
  platform: Platform;
  /** Only where a trial decides, and it has failed. */
  kvmWatch: KvmWatch | undefined;
}> {
  const { initramfs, cacheDir, buildDir, log } = options;
  await mkdir(cacheDir, { recursive: true });
  const folder = dirname(options.folder);
  const [vmms, sha256] = await Promise.all([
    VmmStore.open({
      folder: join(folder, 'vmm'),
      buildDir,
      records: [options.folder, ...['snapshots', 'quarantine'].map((name) => join(folder, name))],
      log,
    }),
    fileSha256(options.kernel),
  ]);
  const driver = qemuDriver(vmms);
  const vmm = vmms.newest;
  const kernel = { path: options.kernel, sha256 };
  const systemFolder = join(folder, 'system');
  const [initramfsSha256, system] = await Promise.all([
    fileSha256(initramfs),
    placeSystemDisk(options.systemDisk, systemFolder),
  ]);
  await removeUnusedSystemDisks(systemFolder, system);
  await using opened = new AsyncDisposableStack();
  const cgroups = await CgroupTree.open(options.home, {
    ...limitsOfMachine(),
    ioMax: await ioMaxLines(options.diskLimit ?? {}, [folder, cacheDir]),
  });
  // Those of an earlier run's sandboxes stay.
  opened.defer(() => cgroups.abandon());
  const localCopies = await LocalCopies.open(join(folder, 'local'), cacheDir);
  if (localCopies.isNeeded) {
    log.warn({ cache: cacheDir, folder }, 'the cache lies on another file system: each image is copied once');
  }
  const platformOf = ({ accelerator, hostCpu, tscKhz }: AcceleratorFacts): Platform => ({
    accelerator,
    hostCpu,
    tscKhz,
    driver,
    vmm,
    kernel,
    initramfs: { path: initramfs, sha256: initramfsSha256 },
    hardware: {
      deviceModel: options.deviceModel ?? driver.deviceModel,
      system,
      ...(accelerator === 'kvm' && cpu && { cpu }),
    },
    mac: options.guestNetwork.mac,
    guestNet: options.guestNetwork.address,
  });
  const machinesOn = (platform: Platform, places: { folder: string; snapshots: string }): Machines =>
    new Machines({
      ...places,
      cgroups,
      templates: new TemplateStore({
        cacheDir,
        platform,
        jailUid: options.templateUid,
        cgroups,
        pinned: options.defaultShape,
        log,
      }),
      // Formatting a disk is cheaper than a copy for each VM.
      emptyDisks: new EmptyExt4Store(localCopies.isNeeded ? join(folder, 'local-disks') : cacheDir),
      localCopies,
      virtiofsd: virtiofsdFolder(buildDir),
      sharingPlatform: onceItSucceeds(async () => {
        const guest = options.sharingGuest?.();
        return guest === undefined ? platform : await otherGuest(platform, guest, systemFolder);
      }),
      log,
    });
  const choice = options.accelerator ?? 'auto';
  const { cpuModel = HOST_CPU_MODEL } = options;
  const cpu =
    cpuModel === HOST_CPU_MODEL || choice === 'tcg' ? undefined : await driver.namedCpu(cpuModel, log);
  const trial: AcceleratorOptions = {
    choice,
    vmm,
    kernel,
    initramfs,
    cpu,
    cacheDir,
    boot: async (guest) => await driver.bootUnderKvm(guest),
    countKvmImages: async () => await countKvmImages([options.folder, join(folder, 'snapshots')]),
    tryLifeCycle: async (facts, signal) => {
      const scratch = join(folder, TRIAL_FOLDER);
      const places = { folder: scratch, snapshots: join(scratch, 'snapshots') };
      const machines = machinesOn(platformOf(facts), places);
      const shape = options.defaultShape ?? TRIAL_SHAPE;
      try {
        return await tryLifeCycle({ machines, folder: scratch, shape, uid: options.templateUid, signal });
      } finally {
        await machines.templates.close();
      }
    },
    log,
    signal: options.signal,
  };
  const facts = await findAccelerator(trial);
  const platform = platformOf(facts);
  const machines = machinesOn(platform, { folder: options.folder, snapshots: join(folder, 'snapshots') });
  const isUndecided = trial.choice === 'auto' && facts.accelerator === 'tcg';
  const kvmWatch = isUndecided
    ? new KvmWatch({ tryKvm: (signal) => tryKvmAgain({ ...trial, signal }), log })
    : undefined;
  opened.move();
  return { machines, cgroups, facts, platform, kvmWatch };
}

/** Calls it when its value is needed first, and again after a failure. */
function onceItSucceeds<T>(make: () => Promise<T>): () => Promise<T> {
  let made: Promise<T> | undefined;
  return async () => {
    const making = (made ??= make());
    making.catch(() => {
      if (made === making) made = undefined;
    });
    return await making;
  };
}

/** The same platform with another kernel, its initramfs and its system disk. */
async function otherGuest(
  platform: Platform,
  { kernel, initramfs, systemDisk }: GuestParts,
  systemFolder: string,
): Promise<Platform> {
  const [kernelSha256, initramfsSha256, system] = await Promise.all([
    fileSha256(kernel),
    fileSha256(initramfs),
    placeSystemDisk(systemDisk, systemFolder),
  ]);
  return {
    ...platform,
    kernel: { path: kernel, sha256: kernelSha256 },
    initramfs: { path: initramfs, sha256: initramfsSha256 },
    hardware: { ...platform.hardware, system },
  };
}

type GuestParts = Pick<OpenMachinesOptions, 'kernel' | 'initramfs' | 'systemDisk'>;

/** Paths of the parts of a guest in the build folder of set-up. */
export function builtGuest(buildDir: string): GuestParts & Pick<OpenMachinesOptions, 'sharingGuest'> {
  return {
    kernel: join(buildDir, 'kernel', 'vmlinuz'),
    initramfs: join(buildDir, 'initramfs.cpio.gz'),
    systemDisk: join(buildDir, 'system.squashfs'),
    sharingGuest: () => builtSharingGuest(buildDir),
  };
}

function builtSharingGuest(buildDir: string): GuestParts | undefined {
  // Set-up makes it after the others: without it, a missing kernel does not mean that none is needed.
  if (!existsSync(virtiofsdFolder(buildDir)))
    throw new Error('the parts of guests with volumes are missing: set-up makes them after the first start');
  const kernel = join(buildDir, 'volume-kernel', 'vmlinuz');
  if (!existsSync(kernel)) return undefined;
  return {
    kernel,
    initramfs: join(buildDir, 'volume-initramfs.cpio.gz'),
    systemDisk: join(buildDir, 'volume-system.squashfs'),
  };
}

/**
 * The parts of a guest with a kernel of the operator's own, as set-up has prepared it (setup/own-kernel.mjs).
 * @throws when it cannot be read, or was not prepared
 */
export async function guestWithKernel(buildDir: string, kernel: string): Promise<GuestParts> {
  const sha256 = await fileSha256(kernel).catch((error: unknown) => {
    throw new Error(`RELEAP_GUEST_KERNEL=${kernel} cannot be read: ${(error as Error).message}`, {
      cause: error,
    });
  });
  const folder = join(buildDir, 'own-kernel', sha256.slice(0, 32));
  const initramfs = join(folder, 'initramfs.cpio.gz');
  if (!existsSync(initramfs))
    throw new Error(
      `RELEAP_GUEST_KERNEL=${kernel} is not prepared: run the set-up (npm start) with this setting`,
    );
  const systemDisk = join(folder, 'system.squashfs');
  // A kernel without modules needs no system disk of its own.
  return {
    kernel,
    initramfs,
    systemDisk: existsSync(systemDisk) ? systemDisk : builtGuest(buildDir).systemDisk,
  };
}
