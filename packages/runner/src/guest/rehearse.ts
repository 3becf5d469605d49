import type { Logger } from 'pino';
import { GuestClient } from './guest-client.ts';

const REHEARSAL_DEADLINE_MS = 20_000;

/**
 * Runs one harmless command in a machine that waits for a sandbox: the agent itself, which walks the ways of a
 * sandbox's first moments on disks that are exchanged afterwards, and leaves nothing behind. Under emulation what was walked once is translated; where
 * there is hardware virtualisation it warms caches.
 */
export async function rehearse(agentSocketPath: string, log: Logger): Promise<void> {
  await using guest = await GuestClient.connect(agentSocketPath, { log, deadlineMs: REHEARSAL_DEADLINE_MS });
  const signal = AbortSignal.timeout(REHEARSAL_DEADLINE_MS);
  for (let i = 0; i < 2; i++) {
    const process = guest.exec({ argv: ['/init', '-rehearse', 'vda', 'vdb'] }, { signal });
    process.stdout.resume();
    let said = '';
    process.stderr.on('data', (chunk: Buffer) => (said = `${said}${chunk.toString()}`.slice(-500)));
    const { exitCode, error } = await process.exit;
    if (exitCode !== 0) throw new Error(`the rehearsal in a waiting machine failed: ${error ?? said.trim()}`);
  }
}
