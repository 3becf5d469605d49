/** Whether this host can mount volumes in sandboxes. */
import { volumeProbe } from '@releap/contract/volume-probe';
import { ProcessError, runToExit } from '../process/index.ts';

/**
 * @param buildDir folder that set-up fills
 * @returns the first part that does not work, and why, in the words of `rlp doctor`; undefined when all work
 */
export async function findVolumeProblem(buildDir: string): Promise<string | undefined> {
  const { program, args, deadlineMs } = volumeProbe(buildDir);
  try {
    const { code, stderr } = await runToExit(program, args, { deadlineMs });
    return code === 0 ? undefined : stderr.trim() || 'no reason was given';
  } catch (error) {
    if (error instanceof ProcessError) return error.message;
    throw error;
  }
}
