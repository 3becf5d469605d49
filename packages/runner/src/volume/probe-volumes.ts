/** Whether this host can mount volumes in sandboxes. */
import { HOSTD } from '../host/hostd.ts';
import { ProcessError, runToExit } from '../process/index.ts';

/** Less than a second on an idle machine. */
const DEADLINE_MS = 60_000;

/**
 * Tries all that volumes need of the host and its kernel (`hostd probe-volumes`); leaves nothing.
 * @param virtiofsd folder with the unpacked program
 * @returns the first part that does not work, and why, in the words of `rlp doctor`; undefined when all work
 */
export async function findVolumeProblem(virtiofsd: string): Promise<string | undefined> {
  try {
    const probe = ['probe-volumes', virtiofsd];
    const { code, stderr } = await runToExit(HOSTD, probe, { deadlineMs: DEADLINE_MS });
    return code === 0 ? undefined : stderr.trim() || 'no reason was given';
  } catch (error) {
    if (error instanceof ProcessError) return error.message;
    throw error;
  }
}
