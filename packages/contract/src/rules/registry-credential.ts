/** Resolves the write of a registry credential. Pure. */
import { LIMITS } from '../wire/platform/limits.ts';
import type { RegistryKind, RegistryWrite } from '../wire/storage/secret.ts';
import { badRequest, notFound } from './errors.ts';
import { ImageReferenceError, normalizeRegistryHost } from './image-reference.ts';
import { quote } from './quote.ts';

/** A write after every rule that needs no lookup. */
export interface ResolvedRegistry {
  /** Canonical. */
  host: string;
  kind: RegistryKind;
  username: string;
  password: string;
  description: string | null;
}

/** The hosts of a kind, as a test and in words. */
const KIND_HOSTS: Record<RegistryKind, { fits: (host: string) => boolean; words: string }> = {
  basic: { fits: () => true, words: 'any host' },
  ghcr: { fits: (host) => host === 'ghcr.io', words: 'ghcr.io' },
  gcr: {
    fits: (host) =>
      host === 'gcr.io' || /^[a-z0-9-]+\.gcr\.io$/.test(host) || /^[a-z0-9-]+-docker\.pkg\.dev$/.test(host),
    words: 'gcr.io, <region>.gcr.io or <region>-docker.pkg.dev',
  },
  ecr: {
    fits: (host) => /^[a-z0-9-]+\.dkr\.ecr\.[a-z0-9-]+\.amazonaws\.com$/.test(host),
    words: '<account>.dkr.ecr.<region>.amazonaws.com',
  },
};

/** Throws a 400 for the first violated rule; it never contains the password. */
export function resolveRegistryWrite(hostText: string, body: RegistryWrite): ResolvedRegistry {
  const host = checkRegistryHost(hostText);
  const kind = body.kind ?? 'basic';
  if (!KIND_HOSTS[kind].fits(host))
    throw badRequest(`kind ${quote(kind)} is for ${KIND_HOSTS[kind].words}, but host was ${quote(host)}`);
  // RFC 7617 §2: a colon would end the user name where it is sent, and control characters cannot be sent.
  // oxlint-disable-next-line no-control-regex -- it searches for control characters
  if (/[:\u0000-\u001f\u007f]/.test(body.username))
    throw badRequest(
      `username must have no colon and no control characters, but was ${quote(body.username)}`,
    );
  const bytes = Buffer.byteLength(body.password, 'utf8');
  if (bytes > LIMITS.secretValueBytes)
    throw badRequest(`password has ${bytes} bytes; at most ${LIMITS.secretValueBytes} (64 KiB) are allowed`);
  return {
    host,
    kind,
    username: body.username,
    password: body.password,
    description: body.description || null,
  };
}

/** A registry's canonical `host[:port]`. Throws a 400 for an invalid one. */
export function checkRegistryHost(text: string): string {
  try {
    return normalizeRegistryHost(text);
  } catch (error) {
    if (error instanceof ImageReferenceError) throw badRequest(error.message);
    throw error;
  }
}

/** The same 404 for an unknown host and another project's. */
export function registryNotFound(host: string): Error {
  return notFound(`no registry credential for ${quote(host)}`, 'registry_not_found');
}
