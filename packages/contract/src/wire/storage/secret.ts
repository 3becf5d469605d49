/**
 * Secrets of a project, and its credentials for registries, one per registry host: writes, and the metadata of reads. A value
 * is never returned.
 */
import { Type, type Static } from 'typebox';
import { BOUNDS, LIMITS } from '../platform/limits.ts';
import type { ApiResource } from '../platform/operation.ts';
import { nextPage, OptionalPageQuery, pageFields } from '../platform/paging.ts';
import { ofProject, ProjectParams } from '../tenancy/project.ts';

/** The allowed names of a secret, in words. */
export const SECRET_NAME_FORM = `[A-Za-z_][A-Za-z0-9_]* with at most ${LIMITS.secretNameChars} characters`;

export const SecretWrite = Type.Object({
  value: Type.String({
    writeOnly: true,
    expected: 'a string of at most 64 KiB',
    description: 'Never given back.',
  }),
  allowed_domains: Type.Optional(
    Type.Array(Type.String(), {
      maxItems: BOUNDS.domainsPerSecret,
      default: [],
      description:
        'Where the value may be sent: exact host names, or `*.` and a domain for every name below it. No schemes, paths or ports.',
    }),
  ),
  allow_http: Type.Optional(
    Type.Boolean({
      default: false,
      description:
        'Also send the value over plain HTTP, where everyone on the way can read it. Otherwise such a request is refused.',
    }),
  ),
  description: Type.Optional(Type.String({ maxLength: BOUNDS.descriptionChars })),
});
export type SecretWrite = Static<typeof SecretWrite>;

/** The same with the name in the body. */
export const NamedSecretWrite = Type.Object({
  name: Type.String({ expected: `a string that matches ${SECRET_NAME_FORM}` }),
  ...SecretWrite.properties,
});
export type NamedSecretWrite = Static<typeof NamedSecretWrite>;

export const SecretListQuery = Type.Object({
  ...pageFields,
  include_object_store: Type.Optional(
    Type.Boolean({
      default: false,
      description: 'Also list credentials of object stores; each item then has `object_store`.',
    }),
  ),
});

export const SecretRecord = Type.Object({
  name: Type.String(),
  allowed_domains: Type.Array(Type.String()),
  allow_http: Type.Optional(Type.Boolean({ description: 'Only where it is true.' })),
  description: Type.Optional(Type.String()),
  object_store: Type.Optional(
    Type.Boolean({
      description: 'Whether an object store uses it; in lists with `include_object_store` only.',
    }),
  ),
  created_at: Type.String({ format: 'date-time' }),
  updated_at: Type.String({ format: 'date-time' }),
});
export type SecretRecord = Static<typeof SecretRecord>;

export const SecretList = Type.Object({ secrets: Type.Array(SecretRecord), ...nextPage });
export type SecretList = Static<typeof SecretList>;

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

/** `refusal`: an invalid name in the path is a bad request, not an unknown path. */
const SecretParams = Type.Object({ name: Type.String() }, { refusal: 400 });
const RegistryParams = Type.Object({ host: Type.String() }, { refusal: 400 });

const ProjectSecretParams = Type.Object(
  { ...ProjectParams.properties, ...SecretParams.properties },
  { refusal: 400 },
);
const ProjectRegistryParams = Type.Object(
  { ...ProjectParams.properties, ...RegistryParams.properties },
  { refusal: 400 },
);

const noEncryption = 'Encryption is temporarily unavailable. Nothing was written.';
const badSecret =
  'The name, an entry of `allowed_domains` or a field is not valid, the value is larger than 64 KiB, or the project has as many secrets as it may.';
const badRegistry =
  'Not a registry host, a kind that does not fit the host, an empty or invalid user name, an empty password or one larger than 64 KiB, or the project has as many credentials as it may.';
const badHost = 'Not a registry host.';

const workloadOperations = {
  putSecret: {
    method: 'PUT',
    path: '/secrets/:name',
    tag: 'Secrets',
    summary: 'Write a secret',
    description:
      'Creates or replaces it. Sandboxes that have it attached then use the new value and domains.',
    security: 'workload',
    params: SecretParams,
    body: SecretWrite,
    success: { status: 204, response: { description: 'Written.' } },
    codes: ['limit_reached'],
    errors: { 400: badSecret, 503: noEncryption },
  },
  listSecrets: {
    method: 'GET',
    path: '/secrets',
    tag: 'Secrets',
    summary: 'List the secrets, by name',
    security: 'workload',
    query: SecretListQuery,
    items: 'secrets',
    success: {
      status: 200,
      response: { description: 'Metadata, never a value.', schema: SecretList },
    },
    errors: { 400: 'A query parameter is not valid.' },
  },
  getSecret: {
    method: 'GET',
    path: '/secrets/:name',
    tag: 'Secrets',
    summary: 'Read the metadata of a secret',
    security: 'workload',
    params: SecretParams,
    success: { status: 200, response: { description: 'Never its value.', schema: SecretRecord } },
    errors: { 404: 'The project has no secret of this name.' },
  },
  deleteSecret: {
    method: 'DELETE',
    path: '/secrets/:name',
    tag: 'Secrets',
    summary: 'Delete a secret',
    description:
      'Idempotent. Sandboxes that have it attached can use it until they are deleted; its value is erased with the last of them.',
    security: 'workload',
    params: SecretParams,
    success: { status: 204, response: { description: 'No secret has this name any more.' } },
    errors: {},
  },
  putRegistry: {
    method: 'PUT',
    path: '/registries/:host',
    tag: 'Registries',
    summary: 'Write the credential for a registry',
    description: 'Creates or replaces it. Later pulls from this host use it.',
    security: 'workload',
    params: RegistryParams,
    body: RegistryWrite,
    success: { status: 204, response: { description: 'Written.' } },
    codes: ['limit_reached'],
    errors: { 400: badRegistry, 503: noEncryption },
  },
  putRegistryByBody: {
    method: 'PUT',
    path: '/registries',
    tag: 'Registries',
    summary: 'Write the credential for a registry that the body names',
    security: 'workload',
    body: HostedRegistryWrite,
    success: { status: 204, response: { description: 'Written.' } },
    codes: ['limit_reached'],
    errors: { 400: badRegistry, 503: noEncryption },
  },
  listRegistries: {
    method: 'GET',
    path: '/registries',
    tag: 'Registries',
    summary: 'List the registry credentials, by host',
    security: 'workload',
    query: OptionalPageQuery,
    items: 'registries',
    success: {
      status: 200,
      response: { description: 'Metadata, never a password.', schema: RegistryList },
    },
    errors: {},
  },
  getRegistry: {
    method: 'GET',
    path: '/registries/:host',
    tag: 'Registries',
    summary: 'Read the metadata of the credential for a registry',
    security: 'workload',
    params: RegistryParams,
    success: { status: 200, response: { description: 'Never its password.', schema: RegistryRecord } },
    errors: { 400: badHost, 404: 'The project has no credential for this host.' },
  },
  deleteRegistry: {
    method: 'DELETE',
    path: '/registries/:host',
    tag: 'Registries',
    summary: 'Delete the credential for a registry',
    description: 'May be repeated.',
    security: 'workload',
    params: RegistryParams,
    success: { status: 204, response: { description: 'No credential is for this host any more.' } },
    errors: { 400: badHost },
  },
} as const;

const {
  putSecret,
  listSecrets,
  getSecret,
  deleteSecret,
  putRegistry,
  putRegistryByBody,
  listRegistries,
  getRegistry,
  deleteRegistry,
} = workloadOperations;

export const secretOperations = {
  ...workloadOperations,
  putProjectSecret: ofProject(putSecret, ProjectSecretParams),
  putProjectSecretByBody: ofProject(
    {
      ...putSecret,
      path: '/secrets',
      summary: 'Write a secret that the body names',
      body: NamedSecretWrite,
    } as const,
    ProjectParams,
  ),
  listProjectSecrets: ofProject(listSecrets, ProjectParams),
  getProjectSecret: ofProject(getSecret, ProjectSecretParams),
  deleteProjectSecret: ofProject(deleteSecret, ProjectSecretParams),
  putProjectRegistry: ofProject(putRegistry, ProjectRegistryParams),
  putProjectRegistryByBody: ofProject(putRegistryByBody, ProjectParams),
  listProjectRegistries: ofProject(listRegistries, ProjectParams),
  getProjectRegistry: ofProject(getRegistry, ProjectRegistryParams),
  deleteProjectRegistry: ofProject(deleteRegistry, ProjectRegistryParams),
} as const;

export const secretResource = {
  tags: {
    Secrets:
      'Values that sandboxes may use and never see: inside, each has a placeholder. [secrets.md](secrets.md) describes them in full.',
    Registries: 'Credentials for pulls, one per registry host.',
  },
  operations: secretOperations,
  schemas: { Secret: SecretRecord, RegistryCredential: RegistryRecord },
} as const satisfies ApiResource;
