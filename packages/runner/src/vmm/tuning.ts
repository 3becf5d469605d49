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
  /** Copying memory between files and VMMs that do not run, at 2 to 3 GB/s. */
  copyMemory: 120_000,
  /** Replacing the holes of the memory of a VMM: a few milliseconds. */
  mapHoles: 30_000,
  /** Of a helper that copies the memory of a VM, until it knows how it learns what is written meanwhile: a few milliseconds. */
  precopyStart: 15_000,
  /** One round of a copy, in addition to the time that all of the memory takes at `SLOWEST_COPY_BYTES_A_MS`. */
  precopyRound: 120_000,
  /** The last round of a guest whose writes are tracked, while it is paused: a few milliseconds. */
  precopyLast: 30_000,
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

/** Memory is copied at 2 to 3 GB/s; at this rate on a host that is busy, to a disk that is slow. */
export const SLOWEST_COPY_BYTES_A_MS = 100_000;

/** Of copies of a guest's memory while it runs, in rounds: each copies what was written during the one before. */
export interface PrecopyTuning {
  /** The guest is paused once a round has copied at most so many bytes: as many are copied in a few milliseconds. */
  restBytes: number;
  /** A round that leaves more than this share of the one before is the last: the guest writes as fast as it is copied. */
  converges: number;
  /** No round begins later than this after the first one, in milliseconds. */
  roundsMs: number;
}

/** Of the memory that forks of one source share. */
export interface ForkTuning {
  /**
   * Most bytes of the file with what the source has written since its memory was copied. With more, the memory is copied anew, and later
   * children share that copy.
   */
  changesMaxBytes: number;
  /** How long the memory is held for more forks after the last one, in milliseconds. Running children hold references of their own. */
  heldMs: number;
}

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
  precopy: PrecopyTuning;
  fork: ForkTuning;
}

/** Size of the emulator's cache of translated code (`tb-size`), in MiB. QEMU's default is 1 GiB, in addition to the guest's memory. */
export const TCG_CACHE_MIB = 128;

/** An entry of 8 bytes for each page of 4 KiB. */
const ENTRY_PER_PAGE = 8 / 4096;

const VMM_MIB = 96;

const PRECOPY: PrecopyTuning = { restBytes: 4 * 2 ** 20, converges: 3 / 4, roundsMs: 30_000 };
const FORK: ForkTuning = { changesMaxBytes: 24 * 2 ** 20, heldMs: 5 * 60_000 };

const TUNING: Readonly<Record<Accelerator, Tuning>> = {
  tcg: {
    // The emulator always executes: a boot that prints nothing at first has a host that is overloaded.
    boot: { ...KVM_BOOT, first: KVM_BOOT.silence },
    settleMs: 1_500,
    vmmMib: VMM_MIB + TCG_CACHE_MIB,
    pageTableShare: ENTRY_PER_PAGE,
    bootMib: 96,
    precopy: PRECOPY,
    fork: FORK,
  },
  kvm: {
    boot: KVM_BOOT,
    settleMs: 1_500,
    vmmMib: VMM_MIB,
    // And those of the processor's second stage (EPT, NPT).
    pageTableShare: 2 * ENTRY_PER_PAGE,
    bootMib: 96,
    precopy: PRECOPY,
    fork: FORK,
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
