/** Where volumes and object stores may be mounted inside a sandbox. Pure. */
import { BOUNDS, RESERVED_MOUNT_PATHS } from '../wire/platform/limits.ts';
import { badRequest } from './errors.ts';
import { quote } from './quote.ts';

/**
 * The path without doubled or final slashes. Throws a 400 naming `field` on a path that is relative, contains `..`,
 * or would hide what the guest needs (a reserved path or anything below one; of `/` only the root itself).
 */
export function checkMountPath(path: string, field: string): string {
  const refuse = (why: string): Error => badRequest(`${field} ${quote(path)} is not usable: ${why}`);
  if (!path.startsWith('/')) throw refuse('it must be absolute');
  if (path.length > BOUNDS.mountPathChars)
    throw refuse(`it has more than ${BOUNDS.mountPathChars} characters`);
  // oxlint-disable-next-line no-control-regex -- it searches for control characters
  if (/[\u0000-\u001f\u007f]/.test(path)) throw refuse('it must not have control characters');
  const parts = path.split('/').filter((part) => part !== '' && part !== '.');
  if (parts.includes('..')) throw refuse('it must not have ..');
  const clean = `/${parts.join('/')}`;
  for (const reserved of RESERVED_MOUNT_PATHS) {
    if (clean === reserved || (reserved !== '/' && clean.startsWith(`${reserved}/`)))
      throw refuse(`${reserved} is reserved`);
  }
  return clean;
}

/** Throws a 400 when two mounts have the same path. */
export function checkMountPathsDiffer(paths: readonly string[]): void {
  const seen = new Set<string>();
  for (const path of paths) {
    if (seen.has(path))
      throw badRequest(`mount_path ${quote(path)} is used twice: give each mount another path`);
    seen.add(path);
  }
}

/** Throws a 400 when one path is below another: each mount is served by another process, which may not respond. */
export function checkMountPathsApart(paths: readonly string[]): void {
  for (const path of paths) {
    const inside = paths.find((other) => other.startsWith(`${path}/`));
    if (inside !== undefined)
      throw badRequest(
        `mount_path ${quote(inside)} is below mount_path ${quote(path)}, another mount: choose another path`,
      );
  }
}

/** Longest name of one folder, in bytes: NAME_MAX of Linux. */
const NAME_BYTES = 255;

/**
 * The path below the root of a volume, without doubled, leading or final slashes; null for the whole volume. Throws a 400 naming
 * `field`. Whether a link in the volume leads elsewhere is checked by the host that mounts it.
 */
export function checkSubpath(path: string | undefined, field: string): string | null {
  const refuse = (why: string): Error => badRequest(`${field} ${quote(path)} is not usable: ${why}`);
  const parts = (path ?? '').split('/').filter((part) => part !== '' && part !== '.');
  if (parts.includes('..')) throw refuse('it must not have ..');
  const clean = parts.join('/');
  if (clean.length > BOUNDS.mountPathChars)
    throw refuse(`it has more than ${BOUNDS.mountPathChars} characters`);
  // oxlint-disable-next-line no-control-regex -- it searches for control characters
  if (/[\u0000-\u001f\u007f]/.test(clean) || !clean.isWellFormed())
    throw refuse('it must not have control characters');
  if (parts.some((part) => Buffer.byteLength(part) > NAME_BYTES))
    throw refuse(`a name in it has more than ${NAME_BYTES} bytes`);
  return parts.length === 0 ? null : clean;
}
