/** `restore.json` of a home: a restore has begun and not ended. Nothing starts on such a home. */
import { rm } from 'node:fs/promises';
import path from 'node:path';
import { readIfThere, writePrivateFile } from '@releap/certificates/private-file';
import type { Config } from '../config/config.ts';
import type { Move } from './restore-target.ts';

export interface RestoreMarker {
  /** Of the backup. */
  backup: string;
  file: string;
  started_at: string;
  /** What is set aside, because it was there before. */
  moves: readonly Move[];
}

const markerFile = (home: string): string => path.join(home, 'restore.json');

export async function readMarker(home: string): Promise<RestoreMarker | undefined> {
  const text = await readIfThere(markerFile(home));
  return text === undefined ? undefined : (JSON.parse(text) as RestoreMarker);
}

export async function writeMarker(home: string, marker: RestoreMarker): Promise<void> {
  await writePrivateFile(markerFile(home), `${JSON.stringify(marker, null, 2)}\n`);
}

export async function removeMarker(home: string): Promise<void> {
  await rm(markerFile(home), { force: true });
}

/** @throws on a home that was restored in part */
export async function assertRestored({ home }: Pick<Config, 'home'>): Promise<void> {
  const marker = await readMarker(home);
  if (marker === undefined) return;
  throw new Error(
    `the restore of ${marker.file} into ${home}, which began at ${marker.started_at}, has not ended: run it again ` +
      `(releap restore ${marker.file}). Until then this home has only a part of its state`,
  );
}
