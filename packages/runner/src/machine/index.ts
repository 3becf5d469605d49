export { Admission } from './admission.ts';
export { Machines } from './machines.ts';
export type { MachinesOptions } from './machines.ts';
export type { BootOptions, RunningVm, VmSlot } from './boot-options.ts';
export {
  DURABLE_FILE,
  MemoryBlockedError,
  NotResumableError,
  SuspendImage,
  SUSPENSION_FILE,
} from './suspend-image.ts';
export { checkGuestHasSpace, isBlockedOnSpace } from './guest-space.ts';
export { GuestLostError } from './pausing.ts';
export type { Pausing } from './pausing.ts';
export type { LocalState } from './persistent-machines.ts';
export { openMachines } from './open-machines.ts';
export type { OpenMachinesOptions } from './open-machines.ts';
export { WarmPools } from './warm-pool.ts';
export type { WarmPoolStats } from './warm-pool.ts';
export { WarmVms } from './warm-vms.ts';
export type { SlotSource } from './warm-vms.ts';
export type { WantedVm, WarmVm, WarmVmm } from './warm-vm.ts';
export type { TakeVmm } from './fork-memory-cache.ts';
export type { ForkOrigin } from './captures.ts';
export type { GuestHold } from './checkpoint.ts';
export { FACTS_FILE, parseFacts, SnapshotFolders } from './snapshot-folder.ts';
export type { CapturedImage, SnapshotFacts } from './snapshot-folder.ts';
export { heldImagePath, heldSystemPath, ROOT_IMAGE_FILE } from './vm-folder.ts';
