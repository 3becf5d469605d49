/** A reading of what one micro-VM has used, and how two of them make a period. */

/** Counters that only grow during a life of one VMM. */
export interface Counters {
  /** Microseconds of one core. */
  cpuMicros: number;
  diskReadBytes: number;
  diskWriteBytes: number;
  netRxBytes: number;
  netTxBytes: number;
}

export interface Reading extends Counters {
  /** Identifies the life of the VMM: another one counts from zero. */
  life: string;
  /** Time of day, milliseconds since 1970: it places use in a minute. */
  atMs: number;
  /** Monotonic clock of this boot of the host, in milliseconds: it measures time. */
  uptimeMs: number;
  memoryKib: number;
  /** Space that the disks take, without the image. */
  diskBytes: number;
}

export const COUNTERS = [
  'cpuMicros',
  'diskReadBytes',
  'diskWriteBytes',
  'netRxBytes',
  'netTxBytes',
] as const satisfies readonly (keyof Counters)[];

/**
 * Growth of a counter. One that is smaller than before has been reset, and has counted its value since.
 */
export function growth(before: number, after: number): number {
  return after >= before ? after - before : after;
}
