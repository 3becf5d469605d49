/** Resolves the create of a volume. Pure. */
import { LIMITS } from '../wire/platform/limits.ts';
import { VOLUME_NAME_FORM, type VolumeCreateRequest } from '../wire/storage/volume.ts';
import { badRequest, notFound } from './errors.ts';
import { quote } from './quote.ts';

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
