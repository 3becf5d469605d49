/** How the memory of a running sandbox is copied here, which decides how long a pause, a snapshot or a fork freezes it. */
import { existsSync } from 'node:fs';
import { join } from 'node:path';
import type { Check } from './check.ts';
import { runTool } from './tool.ts';

const PROBE_MS = 10_000;

const UPGRADE = 'Linux 6.7 or newer (Debian 13, Ubuntu 24.04, or a kernel of backports) copies in rounds';
/** By what `hostd probe-precopy` prints. */
const WAYS: Readonly<Record<string, Pick<Check, 'status' | 'detail'>>> = {
  tracked: {
    status: 'ok',
    detail:
      'in rounds while the guest runs (userfaultfd, PAGEMAP_SCAN): it is frozen for 4 MiB at most, unless it writes as fast',
  },
  marked: {
    status: 'warn',
    detail: `in one round while the guest runs (soft-dirty): it is frozen for all that it writes meanwhile, and each fork copies all of its memory. ${UPGRADE}`,
  },
  untracked: {
    status: 'warn',
    detail: `while the guest is frozen, and each fork copies all of its memory: this kernel does not tell what a process writes. ${UPGRADE}`,
  },
};

export async function checkMemoryCopies(root: string, signal: AbortSignal): Promise<Check> {
  const check = (found: Pick<Check, 'status' | 'detail'>): Check => ({
    id: 'memory-copies',
    title: 'Memory copies',
    ...found,
  });
  const hostd = join(root, 'build/host/hostd');
  if (!existsSync(hostd)) return check({ status: 'warn', detail: 'cannot be tried before set-up has run' });
  const { output } = await runTool(hostd, ['probe-precopy'], { timeoutMs: PROBE_MS, signal });
  return check(WAYS[output.trim()] ?? { status: 'warn', detail: `not known: ${output.trim()}` });
}
