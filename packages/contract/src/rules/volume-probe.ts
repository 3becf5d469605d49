/** Whether a host can mount volumes in sandboxes: the runner tries it at its start, and `rlp doctor` whenever it runs. */
import { join } from 'node:path';

export interface VolumeProbe {
  program: string;
  args: string[];
  deadlineMs: number;
}

/** Where set-up unpacks virtiofsd: the last part that it makes of what volumes need. @param build folder that set-up fills */
export function virtiofsdFolder(build: string): string {
  return join(build, 'virtiofsd/current');
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
    args: ['probe-volumes', virtiofsdFolder(build)],
    deadlineMs: DEADLINE_MS,
  };
}
