/** Whether sandboxes with volumes can run here: what the runner tries at its start. */
import { existsSync } from 'node:fs';
import { join } from 'node:path';
import type { Check } from './check.ts';
import { runTool } from './tool.ts';

const PROBE_MS = 60_000;

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
  const hostd = join(root, 'build/host/hostd');
  if (!existsSync(hostd)) return check('warn', 'whether they work cannot be tried before set-up has run');
  if (process.getuid?.() !== 0) return check('warn', 'whether they work was not tried: only root can');
  const probe = ['probe-volumes', join(root, 'build/virtiofsd/current')];
  const { exitCode, timedOut, output } = await runTool(hostd, probe, { timeoutMs: PROBE_MS, signal, env });
  if (exitCode === 0) return check('ok', 'sandboxes mount them: XFS in loop devices, virtiofsd');
  const problem = timedOut ? `the probe did not end within ${PROBE_MS / 1000} s` : output.trim();
  return check(
    'warn',
    `this host cannot mount volumes: ${problem}`,
    problem.includes('package xfsprogs') && problem.includes('not found') ? ['xfsprogs'] : undefined,
  );
}
