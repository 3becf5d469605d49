/** Whether something keeps the clock of this machine right. */
import { existsSync } from 'node:fs';
import { join } from 'node:path';
import type { Check } from './check.ts';
import { runTool } from './tool.ts';

const CLOCK_MS = 10_000;
/** What depends on it: docs/security.md, and Signature Version 4 of object stores. */
const COST =
  'hosts whose clocks differ by more than 30 s refuse requests of gateways, and object stores those that are 15 minutes off';

export async function checkClock(root: string, signal: AbortSignal): Promise<Check> {
  const check = (status: Check['status'], detail: string): Check => ({
    id: 'clock',
    title: 'Clock',
    status,
    detail,
  });
  const hostd = join(root, 'build/host/hostd');
  if (!existsSync(hostd))
    return check('warn', 'whether it is synchronized cannot be tried before set-up has run');
  const { exitCode, output } = await runTool(hostd, ['clock'], { timeoutMs: CLOCK_MS, signal });
  return exitCode === 0
    ? judge(output, check)
    : check('warn', `whether it is synchronized is not known: ${output.trim()}`);
}

function judge(output: string, check: (status: Check['status'], detail: string) => Check): Check {
  const [state, maxErrorUs] = output.trim().split(' ');
  if (state === 'synchronized')
    return check('ok', `synchronized, wrong by ${Math.ceil(Number(maxErrorUs) / 1000)} ms at most`);
  return check('warn', `not synchronized (adjtimex): run chrony or systemd-timesyncd. ${COST}`);
}
