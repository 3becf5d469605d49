/**
 * Image references by the container-registry convention: `[host/]path[:tag][@digest]`.
 * The grammar is the `distribution` reference grammar that Docker and other tools share, restricted to
 * sha256 digests. Pure: no I/O, linear time, bounded input.
 */
import { quote } from '../errors.ts';

/** Longest reference accepted, in characters: a 255 character name, a 128 character tag and a digest fit. */
export const IMAGE_REFERENCE_MAX_LENGTH = 512;
/** Longest `host/path`, in characters, as in registries. */
export const IMAGE_NAME_MAX_LENGTH = 255;
/** The host of an unqualified reference such as `node:20`. */
export const DEFAULT_REGISTRY_HOST = 'index.docker.io';

/** Names the wrong part of a reference, its value, and what is allowed. */
export class ImageReferenceError extends Error {
  override readonly name = 'ImageReferenceError';
}

export interface ImageReference {
  /** `host[:port]`, lower case; Docker Hub's aliases are `index.docker.io`. */
  readonly host: string;
  /** Path inside the registry, e.g. `library/node`. */
  readonly repository: string;
  /** `latest` when neither a tag nor a digest was given; absent when only a digest was. */
  readonly tag?: string;
  /** `sha256:` and 64 hex digits. Wins over a tag. */
  readonly digest?: string;
  /** The whole reference in its full form: two references are the same image exactly if this is equal. */
  readonly canonical: string;
}

const HUB_ALIASES = new Set([
  'docker.io',
  'index.docker.io',
  'registry-1.docker.io',
  'registry.hub.docker.com',
]);
const HOST_LABEL = /^[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?$/;
const IPV6_HOST = /^\[[0-9a-f:.]{2,45}\]$/;
const PATH_COMPONENT = /^[a-z0-9]+(?:(?:[._]|__|-+)[a-z0-9]+)*$/;
const TAG = /^[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}$/;
const DIGEST = /^sha256:[0-9a-f]{64}$/;
const BARE_DIGEST = /^[0-9a-f]{64}$/;

/** True for `sha256:` followed by 64 lower-case hex digits. */
export function isImageDigest(text: string): boolean {
  return DIGEST.test(text);
}

/**
 * A registry's canonical `host[:port]`: lower case, Docker Hub's aliases as `index.docker.io`.
 * @throws ImageReferenceError for a scheme, a path or anything that is not a host with an optional port.
 */
export function normalizeRegistryHost(text: string): string {
  const shown = quote(text);
  if (text.includes('://'))
    throw new ImageReferenceError(`registry host ${shown} has a scheme; give only host[:port]`);
  if (text.includes('/'))
    throw new ImageReferenceError(`registry host ${shown} has a path; give only host[:port]`);
  const lower = text.toLowerCase();
  const portAt = lower.startsWith('[') ? lower.indexOf(']:') + 1 : lower.indexOf(':');
  const name = portAt > 0 ? lower.slice(0, portAt) : lower;
  const port = portAt > 0 ? lower.slice(portAt + 1) : undefined;
  const nameFits =
    name.length <= 253 && (IPV6_HOST.test(name) || name.split('.').every((label) => HOST_LABEL.test(label)));
  if (!nameFits) {
    throw new ImageReferenceError(
      `registry host ${shown} is not a host name, an IP address, or either with a port`,
    );
  }
  if (port !== undefined && !(/^[0-9]{1,5}$/.test(port) && Number(port) >= 1 && Number(port) <= 65_535)) {
    throw new ImageReferenceError(`registry host ${shown} has a port that is not between 1 and 65535`);
  }
  return HUB_ALIASES.has(lower) ? DEFAULT_REGISTRY_HOST : lower;
}

/**
 * Parses a reference and adds the implied parts: `node:20` is `index.docker.io/library/node:20`.
 * The first part is a host when it contains a dot or a colon, or is `localhost`. (Other readers also take an upper-case
 * first part for a host; its canonical form in lower case would then be a path on Docker Hub.)
 * @throws ImageReferenceError that names the invalid part
 */
export function parseImageReference(text: string): ImageReference {
  if (text.length === 0) throw new ImageReferenceError('image reference is empty');
  if (text.length > IMAGE_REFERENCE_MAX_LENGTH) {
    throw new ImageReferenceError(
      `image reference has ${text.length} characters, at most ${IMAGE_REFERENCE_MAX_LENGTH} are allowed`,
    );
  }
  const shown = quote(text);
  if (text.includes('://')) {
    throw new ImageReferenceError(
      `image reference ${shown} has a scheme; write it as [host/]name[:tag][@digest]`,
    );
  }
  if (BARE_DIGEST.test(text)) {
    throw new ImageReferenceError(`image reference ${shown} is a bare image id; write it as name@sha256:…`);
  }

  const at = text.indexOf('@');
  const digest = at < 0 ? undefined : text.slice(at + 1);
  if (digest !== undefined && !DIGEST.test(digest)) {
    throw new ImageReferenceError(
      `image reference ${shown} has the digest ${quote(digest)}; only sha256: with 64 lower-case hex digits is allowed`,
    );
  }
  const nameAndTag = at < 0 ? text : text.slice(0, at);

  const slash = nameAndTag.indexOf('/');
  const first = slash < 0 ? '' : nameAndTag.slice(0, slash);
  const hasHost =
    slash > 0 && (/[.:]/.test(first) || first.toLowerCase() === 'localhost' || first.startsWith('['));
  const host = hasHost ? normalizeRegistryHost(first) : DEFAULT_REGISTRY_HOST;
  const pathAndTag = hasHost ? nameAndTag.slice(slash + 1) : nameAndTag;

  const colon = pathAndTag.indexOf(':');
  const givenTag = colon < 0 ? undefined : pathAndTag.slice(colon + 1);
  if (givenTag !== undefined && !TAG.test(givenTag)) {
    throw new ImageReferenceError(
      `image reference ${shown} has the tag ${quote(givenTag)}; a tag has 1 to 128 characters of A-Z a-z 0-9 _ . - and does not start with . or -`,
    );
  }
  const path = colon < 0 ? pathAndTag : pathAndTag.slice(0, colon);
  if (!path.split('/').every((part) => PATH_COMPONENT.test(part))) {
    const hint = /[A-Z]/.test(path) ? '; names are lower case' : '';
    throw new ImageReferenceError(
      `image reference ${shown} has the name ${quote(path)}; its parts consist of a-z and 0-9, with . _ __ or - between them${hint}`,
    );
  }
  const repository = host === DEFAULT_REGISTRY_HOST && !path.includes('/') ? `library/${path}` : path;
  if (host.length + 1 + repository.length > IMAGE_NAME_MAX_LENGTH) {
    throw new ImageReferenceError(
      `image reference ${shown} has a name of ${host.length + 1 + repository.length} characters, at most ${IMAGE_NAME_MAX_LENGTH} are allowed`,
    );
  }

  const tag = givenTag ?? (digest === undefined ? 'latest' : undefined);
  const canonical = `${host}/${repository}${tag === undefined ? '' : `:${tag}`}${digest === undefined ? '' : `@${digest}`}`;
  return {
    host,
    repository,
    ...(tag === undefined ? {} : { tag }),
    ...(digest === undefined ? {} : { digest }),
    canonical,
  };
}
