export { Machines } from './machines.ts';
export type { BootOptions, MachinesOptions, RunningVm, VmSlot } from './machines.ts';
export { GuestLostError, NotResumableError } from './persistent-machines.ts';
export type { Remains } from './persistent-machines.ts';
export { openMachines } from './open-machines.ts';
export type { OpenMachinesOptions } from './open-machines.ts';
export { WarmPool } from './warm-pool.ts';
export type { SlotSource, WarmPoolOptions, WarmVm } from './warm-pool.ts';
