import { setTimeout as sleep } from 'node:timers/promises';
import type { RunnerVolume } from '@releap/contract';
import type { Logger } from 'pino';
import type { VolumeClient } from './volume-client.ts';

/** How long an opening waits for what other hosts have not committed. It is merged later, if it comes later. */
const UNCOMMITTED_WAIT_MS = 30_000;
const UNCOMMITTED_POLL_MS = 300;

/**
 * The volume, once other hosts have committed the changes that they had at the call, or the wait has timed out.
 * @throws when it is deleted
 */
export async function newestVolume(
  volumeId: string,
  client: VolumeClient,
  log: Logger,
  signal: AbortSignal,
): Promise<RunnerVolume> {
  let volume = await client.open(volumeId, signal);
  const { commit } = volume;
  const until = performance.now() + UNCOMMITTED_WAIT_MS;
  while (volume.state === 'ready' && volume.uncommitted) {
    if (performance.now() > until) {
      log.warn({ volume: volumeId }, 'another host has not committed its changes to a volume in time');
      break;
    }
    await sleep(UNCOMMITTED_POLL_MS, undefined, { signal });
    volume = await client.get(volumeId, commit, signal);
  }
  if (volume.state === 'deleted') throw new Error(`the volume ${volumeId} is deleted`);
  return volume;
}
