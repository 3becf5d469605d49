/**
 * Advisory lock keys of the whole service, in one place so that no two purposes share one.
 * All are taken in the two-key form `(RELEAP_LOCK_SPACE, key)`.
 */
export const RELEAP_LOCK_SPACE = 0x5e1ea9;

export const LOCKS = {
  /** Held by the server that migrates the schema. */
  migrate: 1,
  /** Held by servers of the release before while they allocate capacity, and shared by those of this one. */
  schedule: 2,
  /** Held while the default organization, project and key are created. */
  bootstrap: 3,
} as const;
