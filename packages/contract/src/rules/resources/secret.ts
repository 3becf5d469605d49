/** Resolves the writes of secrets and of credentials for registries. Pure. */
import { LIMITS } from '../../wire/platform/limits.ts';
import {
  type RegistryKind,
  type RegistryWrite,
  SECRET_NAME_FORM,
  type SecretWrite,
} from '../../wire/storage/secret.ts';
import { badRequest, notFound, quote } from '../errors.ts';
import { formatDomainPattern, parseDomainPattern } from '../network/egress.ts';
import { ImageReferenceError, normalizeRegistryHost } from './image-reference.ts';
import { isEnvName } from './names.ts';

/** A write after every rule that needs no lookup. */
export interface ResolvedSecret {
  name: string;
  value: string;
  /** Canonical, without duplicates. */
  allowedDomains: string[];
  allowHttp: boolean;
  description: string | null;
}

/** Throws a 400 for the first violated rule; it never contains the value. */
export function resolveSecretWrite(name: string, body: SecretWrite): ResolvedSecret {
  if (!isSecretName(name))
    throw badRequest(`a secret's name must match ${SECRET_NAME_FORM}, but was ${quote(name)}`);
  const bytes = Buffer.byteLength(body.value, 'utf8');
  if (bytes > LIMITS.secretValueBytes)
    throw badRequest(`value has ${bytes} bytes; at most ${LIMITS.secretValueBytes} (64 KiB) are allowed`);
  const domains = (body.allowed_domains ?? []).map((text, index) =>
    checkAllowedDomain(text, `allowed_domains[${index}]`),
  );
  return {
    name,
    value: body.value,
    allowedDomains: [...new Set(domains)],
    allowHttp: body.allow_http === true,
    description: body.description || null,
  };
}

/** Whether a secret may have this name, which is also the name of its variable. */
export function isSecretName(text: string): boolean {
  return text.length <= LIMITS.secretNameChars && isEnvName(text);
}

/** A canonical entry of `allowed_domains`. Throws a 400 naming `field` for an invalid one. */
export function checkAllowedDomain(text: string, field = 'allowed_domains'): string {
  const pattern = parseDomainPattern(text);
  if (pattern !== null) return formatDomainPattern(pattern);
  throw badRequest(
    `${field} must be a host name, or *. and a domain, without scheme, path and port, but was ${quote(text)}`,
  );
}

/** The same 404 for an unknown name and another project's. */
export function secretNotFound(name: string): Error {
  return notFound(`secret ${quote(name)} not found`, 'secret_not_found');
}

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
