/** Credentials for registries: one per registry host and project. A password is never returned. */
import { Type, type Static } from 'typebox';
import { BOUNDS } from './platform/limits.ts';
import { nextPage } from './platform/paging.ts';

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
    description: 'Password or token. Never returned.',
  }),
  description: Type.Optional(Type.String({ maxLength: BOUNDS.descriptionChars })),
});
export type RegistryWrite = Static<typeof RegistryWrite>;

/** The same with the host in the body. */
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

export const RegistryList = Type.Object({ registries: Type.Array(RegistryRecord), ...nextPage });
export type RegistryList = Static<typeof RegistryList>;
