/** Whether sandboxes with volumes can run here: what the runner tries at its start. */
import { existsSync } from 'node:fs';
import { join } from 'node:path';
import { virtiofsdFolder, volumeProbe } from '@releap/contract/volume-probe';
import type { Check } from './check.ts';
import { runTool } from './tool.ts';

/** @param root the checkout, whose `build` folder set-up fills */
export async function checkVolumes(
  root: string,
  env: Readonly<Record<string, string | undefined>>,
  signal: AbortSignal,
): Promise<Check> {
  const check = (status: Check['status'], detail: string, packages?: string[]): Check => ({
    id: 'volumes',
    title: 'Volumes',
    status,
    detail,
    ...(packages && { packages }),
  });
  const build = join(root, 'build');
  const { program, args, deadlineMs } = volumeProbe(build);
  if (!existsSync(program)) return check('warn', 'whether they work cannot be tried before set-up has run');
  if (!existsSync(virtiofsdFolder(build)))
    return check(
      'warn',
      'what they need is not made yet: set-up makes it after the first start, or run `npm run setup`',
    );
  if (process.getuid?.() !== 0) return check('warn', 'whether they work was not tried: only root can');
  const { exitCode, timedOut, output } = await runTool(program, args, { timeoutMs: deadlineMs, signal, env });
  if (exitCode === 0) return check('ok', 'sandboxes mount them: XFS in loop devices, virtiofsd');
  const problem = timedOut ? `the probe did not end within ${deadlineMs / 1000} s` : output.trim();
  return check(
    'warn',
    `this host cannot mount volumes: ${problem}`,
    problem.includes('package xfsprogs') && problem.includes('not found') ? ['xfsprogs'] : undefined,
  );
}
