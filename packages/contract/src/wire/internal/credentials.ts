/**
 * What runners are told of the secrets and the mounted object stores of their sandboxes: values and credentials, when they
 * have changed.
 */
import { Type, type Static } from 'typebox';
import { Uuid } from '../platform/fields.ts';
import { LIMITS } from '../platform/limits.ts';
import type { Operation } from '../platform/operation.ts';
import { OBJECT_STORE_PROVIDERS } from '../storage/object-store.ts';

const Revision = Type.String({ minLength: 1, maxLength: 64 });

/** Most sandboxes of one request. */
export const RUNNER_REVISIONS_MAX = 1_000;

/** Which sandboxes are asked for; those whose revision has not changed are left out of the answer. */
const RunnerRevisions = Type.Object({
  sandboxes: Type.Array(
    Type.Object({
      id: Uuid,
      /** What the runner has; absent for nothing. */
      revision: Type.Optional(Revision),
    }),
    { maxItems: RUNNER_REVISIONS_MAX },
  ),
});

const Sha256 = Type.String({ pattern: '^[0-9a-f]{64}$' });
/** `POST`, by a runner: the values of the secrets of its sandboxes that have changed. */
export const RUNNER_SECRETS_PATH = '/internal/runners/secrets';
/** One secret of a sandbox. */
export const SandboxSecret = Type.Object({
  name: Type.String(),
  value: Type.String({ writeOnly: true }),
  /** Host names and `*.` patterns. */
  allowed_domains: Type.Array(Type.String()),
  /** Absent: the value may not be sent over plain HTTP. */
  allow_http: Type.Optional(Type.Boolean()),
  /** SHA-256 of the placeholders that stand for it in this sandbox. */
  placeholders: Type.Array(Sha256),
});
export type SandboxSecret = Static<typeof SandboxSecret>;

export const RunnerSecrets = Type.Object({
  /** Those whose secrets differ from the revision of the request. A sandbox without secrets has an empty list. */
  sandboxes: Type.Array(
    Type.Object({ id: Uuid, revision: Revision, secrets: Type.Array(SandboxSecret, { maxItems: 4_096 }) }),
  ),
  /** The answer is full: others have changed too. */
  more: Type.Boolean(),
});
export type RunnerSecrets = Static<typeof RunnerSecrets>;

const GuestKey = Type.String({ minLength: 1, maxLength: 128 });

/** A mount as the guest sees it: none of its keys is of use outside of the sandbox. */
export const GuestStore = Type.Object({
  path: Type.String({ minLength: 1, maxLength: 1024 }),
  bucket: Type.String({ minLength: 1, maxLength: 255 }),
  prefix: Type.String({ maxLength: 1024 }),
  region: Type.String({ maxLength: 64 }),
  provider: Type.Enum(OBJECT_STORE_PROVIDERS),
  read_only: Type.Boolean(),
  dir_cache_secs: Type.Integer({ minimum: 0, maximum: LIMITS.dirCacheSecsMax }),
  access_key: GuestKey,
  secret_key: GuestKey,
});
export type GuestStore = Static<typeof GuestStore>;

/** Answer of a host that was asked to mount a store. */
export interface StoreMounted {
  /** This very mount was there already. */
  existed: boolean;
}

/** `POST`, by a runner: the mounted stores of its sandboxes that have changed, with their credentials. */
export const RUNNER_STORES_PATH = '/internal/runners/object-stores';
const Secret = Type.String({ writeOnly: true });

/** A mounted store as the host's proxy needs it. */
export const MountedStore = Type.Object({
  guest_access_key: GuestKey,
  guest_secret_key: GuestKey,
  endpoint: Type.String(),
  region: Type.String(),
  path_style: Type.Boolean(),
  bucket: Type.String(),
  prefix: Type.String(),
  read_only: Type.Boolean(),
  credentials: Type.Optional(
    Type.Object({ access_key: Secret, secret_key: Secret, session_token: Type.Optional(Secret) }),
  ),
  /** Why there are no credentials. */
  unusable: Type.Optional(Type.String()),
});
export type MountedStore = Static<typeof MountedStore>;

export const RunnerStores = Type.Object({
  /** Those whose stores differ from the revision of the request. A sandbox without mounts has an empty list. */
  sandboxes: Type.Array(
    Type.Object({ id: Uuid, revision: Revision, stores: Type.Array(MountedStore, { maxItems: 64 }) }),
  ),
  /** The answer is full: others have changed too. */
  more: Type.Boolean(),
});
export type RunnerStores = Static<typeof RunnerStores>;

export const internalCredentialOperations = {
  readRunnerSecrets: {
    method: 'POST',
    path: RUNNER_SECRETS_PATH,
    tag: 'Runner',
    summary: 'Read the values of the secrets of sandboxes that are assigned to this runner',
    description: 'Only of those whose revision has changed. A sandbox of another runner has no secrets here.',
    security: 'runner',
    body: RunnerRevisions,
    success: { status: 200, response: { description: 'What has changed.', schema: RunnerSecrets } },
    errors: { 503: 'The key-encryption key is temporarily unavailable.' },
  },
  readRunnerStores: {
    method: 'POST',
    path: RUNNER_STORES_PATH,
    tag: 'Runner',
    summary:
      'Read the mounted object stores of sandboxes that are assigned to this runner, with their credentials',
    description: 'Only of those whose revision has changed. A sandbox of another runner has no stores here.',
    security: 'runner',
    body: RunnerRevisions,
    success: { status: 200, response: { description: 'What has changed.', schema: RunnerStores } },
    errors: { 503: 'The key-encryption key is temporarily unavailable.' },
  },
} as const satisfies Record<string, Operation>;
