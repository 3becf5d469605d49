/** Resolves the create of a volume, and tells how a host is tried for what volumes need. */
import { join } from 'node:path';
import { LIMITS } from '../../wire/platform/limits.ts';
import { VOLUME_NAME_FORM, type VolumeCreateRequest } from '../../wire/storage/volume.ts';
import { badRequest, notFound, quote } from '../errors.ts';

/** A create after every rule that needs no lookup. */
export type ResolvedVolume = Required<VolumeCreateRequest>;

/** Throws a 400 for an invalid name; the schema has checked the rest. */
export function resolveVolumeCreate(body: VolumeCreateRequest): ResolvedVolume {
  const { name, type = 'blockmount', size_gb = LIMITS.volumeGbDefault } = body;
  if (name.length > LIMITS.volumeNameChars || !/^[A-Za-z0-9._-]+$/.test(name))
    throw badRequest(`name must be ${VOLUME_NAME_FORM}, but was ${quote(name)}`);
  return { name, type, size_gb };
}

/** The same 404 for an unknown id or name, a deleted volume, and another project's. */
export function volumeNotFound(idOrName: string): Error {
  return notFound(`volume ${quote(idOrName)} not found`, 'volume_not_found');
}

export interface VolumeProbe {
  program: string;
  args: string[];
  deadlineMs: number;
}

/** Where set-up unpacks virtiofsd: the last part that it makes of what volumes need. @param build folder that set-up fills */
export function virtiofsdFolder(build: string): string {
  return join(build, 'virtiofsd/current');
}

/** Less than a second on an idle machine. */
const DEADLINE_MS = 60_000;

/**
 * The program that tries all that volumes need of the host and its kernel; leaves nothing. It exits with 0 when all work, else
 * with the first part that does not, and why, on its standard error.
 * @param build folder that set-up fills
 */
export function volumeProbe(build: string): VolumeProbe {
  return {
    program: join(build, 'host/hostd'),
    args: ['probe-volumes', virtiofsdFolder(build)],
    deadlineMs: DEADLINE_MS,
  };
}
