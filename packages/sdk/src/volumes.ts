import type { VolumeDetail } from '@releap/contract/wire';
import type { Service } from './service.ts';

/** The service answers within a minute, with 504 if hosts take longer. */
const ANSWER_MS = 75_000;

/** Commits a volume. @param volume its id or name */
export async function commitVolume({ patient }: Service, volume: string): Promise<VolumeDetail> {
  return await patient.commitVolume({ params: { id_or_name: volume } }, { timeoutMs: ANSWER_MS });
}
