import type { Logger } from 'pino';
import { GuestClient } from './guest-client.ts';
import { configParams } from './requests.ts';
import type { GuestConfig } from './requests.ts';

const WARM_UP_DEADLINE_MS = 30_000;
/** The second time, an emulator links the code that it translated in the first one. */
const ROUNDS = 2;

/**
 * Has the guest of a VM that waits for a sandbox configure one that does not exist, with the disks that the VM has
 * meanwhile. Under emulation the code of a create is translated then; with hardware virtualisation it is in the caches. What
 * stays is the mounted root image: a sandbox that gets the same one says so (`mounted`).
 * @throws when it fails; the VM must not be used then
 */
export async function warmUp(agentSocketPath: string, config: GuestConfig, log: Logger): Promise<void> {
  await using guest = await GuestClient.connect(agentSocketPath, { log, deadlineMs: WARM_UP_DEADLINE_MS });
  const signal = AbortSignal.timeout(WARM_UP_DEADLINE_MS);
  const argv = ['/init', '-warm-up', JSON.stringify(configParams(config))];
  for (let round = 0; round < ROUNDS; round++) {
    const process = guest.exec({ argv }, { signal });
    process.stdout.resume();
    let stderr = '';
    process.stderr.on('data', (chunk: Buffer) => (stderr = `${stderr}${chunk.toString()}`.slice(-500)));
    const { exitCode, error } = await process.exit;
    if (exitCode !== 0) throw new Error(`the warm-up of a waiting VM failed: ${error ?? stderr.trim()}`);
  }
}
