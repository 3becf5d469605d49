/** Whether a host can mount volumes in sandboxes: the runner tries it at its start, and `rlp doctor` whenever it runs. */
import { join } from 'node:path';

export interface VolumeProbe {
  program: string;
  args: string[];
  deadlineMs: number;
}

/** Less than a second on an idle machine. */
const DEADLINE_MS = 60_000;

/**
 * The program that tries all that volumes need of the host and its kernel; leaves nothing. It exits with 0 when all work, else
 * with the first part that does not, and why, on its standard error.
 * @param build folder that set-up fills
 */
export function volumeProbe(build: string): VolumeProbe {
  return {
    program: join(build, 'host/hostd'),
    args: ['probe-volumes', join(build, 'virtiofsd/current')],
    deadlineMs: DEADLINE_MS,
  };
}
