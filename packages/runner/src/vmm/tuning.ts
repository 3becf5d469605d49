/**
 * Deadlines and sizes of micro-VMs, with their reasons. Those that depend on how guests are executed are in `tuning`, by accelerator.
 *
 * The values for KVM follow from how KVM works and from runs in a machine with emulated virtualisation; they were not measured on hardware yet.
 */
import { KVM_BOOT } from '@releap/contract/boot-watch';
import type { BootPatience } from '@releap/contract/boot-watch';
import type { Accelerator } from './hardware.ts';

/**
 * Deadlines of single steps, in milliseconds. They end steps that hang, so that a VMM never blocks the runner. A host that is overloaded,
 * or virtualised itself, makes each of them a hundred times slower than it is on an idle machine, and still must not reach them: so
 * they are the same for all accelerators.
 */
export const DEADLINES_MS = {
  /** From the start of a VMM to its QMP connection: 30 ms. */
  vmmStart: 30_000,
  /** Until a VMM that was killed has ended. */
  vmmKill: 10_000,
  /** A VMM that quits may have to write the metadata of its disks. Then it is killed. */
  vmmQuit: 1_000,
  /** A VMM may be flushing its disks while it is adopted, and does not respond meanwhile. */
  vmmAdopt: 20_000,
  /** QMP commands that only read: a millisecond. */
  qmpQuery: 5_000,
  /**
   * QMP commands that change a machine may flush its disks first (`stop`, `blockdev-snapshot`), and the VMM does not respond
   * meanwhile: this takes seconds when the disk of the host is under load.
   */
  qmpChange: 60_000,
  /** Loading 90 KB of device state: 3 ms. */
  loadState: 30_000,
  /** Saving it: 3 ms. */
  saveState: 30_000,
  /** Until the agent of a restored guest answers: 20 ms. */
  agent: 60_000,
  /** Removing the empty pages of a template's memory: a second a GiB. */
  compact: 300_000,
  /** Mounting three disks and starting the entrypoint: 10 ms. */
  configure: 60_000,
  /** The same for a guest with volumes, which is booting meanwhile. Less than `bootWithVolumes`. */
  bootAndConfigure: 150_000,
  /** Setting the clock and thawing the processes of a guest: 5 ms. */
  renewIdentity: 60_000,
  /** All steps of a create, start or resume, without pulls and templates. */
  boot: 90_000,
  /** The same for a sandbox with volumes, which is not restored from a template. Less than control's deadline for `booting`. */
  bootWithVolumes: 160_000,
} as const;

export interface Tuning {
  /** Of a boot whose guest prints from its start. */
  boot: BootPatience;
  /**
   * After its agent has responded, a kernel still finishes some initialisation, such as switching to the time-stamp counter a
   * second after its detection. It belongs into the template, and not into each VM that is restored from it.
   */
  settleMs: number;
  /** Memory of a VMM besides its guest's, in MiB: code, heap and caches of disks, and the cache of translated code. */
  vmmMib: number;
  /** Page tables of the host for each page of the guest, as a share of its memory. The kernel charges them to the VMM's cgroup. */
  pageTableShare: number;
  /** What a guest writes while it boots, in MiB. */
  bootMib: number;
}

/** Size of the emulator's cache of translated code (`tb-size`), in MiB. QEMU's default is 1 GiB, in addition to the guest's memory. */
export const TCG_CACHE_MIB = 128;

/** An entry of 8 bytes for each page of 4 KiB. */
const ENTRY_PER_PAGE = 8 / 4096;

const VMM_MIB = 96;

const TUNING: Readonly<Record<Accelerator, Tuning>> = {
  tcg: {
    // The emulator always executes: a boot that prints nothing at first has a host that is overloaded.
    boot: { ...KVM_BOOT, first: KVM_BOOT.silence },
    settleMs: 1_500,
    vmmMib: VMM_MIB + TCG_CACHE_MIB,
    pageTableShare: ENTRY_PER_PAGE,
    bootMib: 96,
  },
  kvm: {
    boot: KVM_BOOT,
    settleMs: 1_500,
    vmmMib: VMM_MIB,
    // And those of the processor's second stage (EPT, NPT).
    pageTableShare: 2 * ENTRY_PER_PAGE,
    bootMib: 96,
  },
};

export function tuning(accelerator: Accelerator): Tuning {
  return TUNING[accelerator];
}

/** Memory of the host that a VMM needs besides its guest's, in MiB. */
export function overheadMib(accelerator: Accelerator, memMib: number): number {
  const { vmmMib, pageTableShare } = tuning(accelerator);
  return vmmMib + Math.ceil(memMib * pageTableShare);
}
