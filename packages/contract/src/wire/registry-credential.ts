/** Credentials for registries: one per registry host and project. A password is never read back. */
import { Type, type Static } from 'typebox';
import { badRequest, notFound, quote } from '../rules/errors.ts';
import { ImageReferenceError, normalizeRegistryHost } from '../rules/image-reference.ts';
import { BOUNDS, LIMITS } from './limits.ts';

export const REGISTRY_KINDS = ['basic', 'ghcr', 'gcr', 'ecr'] as const;
export const RegistryKind = Type.Enum(REGISTRY_KINDS);
export type RegistryKind = Static<typeof RegistryKind>;

export const RegistryWrite = Type.Object({
  kind: Type.Optional(
    Type.Enum(REGISTRY_KINDS, {
      default: 'basic',
      description: 'Which hosts it may be for. All of them are sent as user name and password.',
    }),
  ),
  username: Type.String({ minLength: 1, maxLength: BOUNDS.registryUsernameChars }),
  password: Type.String({
    minLength: 1,
    writeOnly: true,
    expected: 'a non-empty string of at most 64 KiB',
    description: 'Password or token. Never given back.',
  }),
  description: Type.Optional(Type.String({ maxLength: BOUNDS.descriptionChars })),
});
export type RegistryWrite = Static<typeof RegistryWrite>;

/** The same where the path does not name the host. */
export const HostedRegistryWrite = Type.Object({
  host: Type.String({ expected: 'a registry, host[:port]' }),
  ...RegistryWrite.properties,
});
export type HostedRegistryWrite = Static<typeof HostedRegistryWrite>;

export const RegistryRecord = Type.Object({
  host: Type.String({ description: 'Lower case; Docker Hub is `index.docker.io`.' }),
  kind: RegistryKind,
  username: Type.String(),
  description: Type.Optional(Type.String()),
  updated_at: Type.String({ format: 'date-time' }),
});
export type RegistryRecord = Static<typeof RegistryRecord>;

export const RegistryList = Type.Object({ registries: Type.Array(RegistryRecord) });
export type RegistryList = Static<typeof RegistryList>;

/** A write after every rule that needs no look-up. */
export interface ResolvedRegistry {
  /** In its one spelling. */
  host: string;
  kind: RegistryKind;
  username: string;
  password: string;
  description: string | null;
}

/** Which hosts a kind is for, as a test and in words. */
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

/** Throws a 400 with the first rule that is broken; it never shows the password. */
export function resolveRegistryWrite(hostText: string, body: RegistryWrite): ResolvedRegistry {
  const host = checkRegistryHost(hostText);
  const kind = body.kind ?? 'basic';
  if (!KIND_HOSTS[kind].fits(host))
    throw badRequest(`kind ${quote(kind)} is for ${KIND_HOSTS[kind].words}, but host was ${quote(host)}`);
  // RFC 7617 §2: a colon would end the user name where it is sent, and control characters cannot be sent.
  // oxlint-disable-next-line no-control-regex -- control characters are what is looked for
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

/** A registry's `host[:port]` in its one spelling. Throws a 400 on what is none. */
export function checkRegistryHost(text: string): string {
  try {
    return normalizeRegistryHost(text);
  } catch (error) {
    if (error instanceof ImageReferenceError) throw badRequest(error.message);
    throw error;
  }
}

/** An unknown host and another project's must be told in the same words. */
export function registryNotFound(host: string): Error {
  return notFound(`no registry credential for ${quote(host)}`);
}
