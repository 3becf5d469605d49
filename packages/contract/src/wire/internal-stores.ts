/** What runners are told of mounted object stores, and the HTTP operation with which they read the credentials. */
import { Type, type Static } from 'typebox';
import { Uuid } from './platform/fields.ts';
import { Revision } from './internal-revisions.ts';
import { LIMITS } from './platform/limits.ts';
import { OBJECT_STORE_PROVIDERS } from './storage/object-store.ts';

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
