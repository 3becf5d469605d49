export { mintApiKey, revokeApiKey, type MintedKey } from './auth/api-keys.ts';
export { ensureBootstrap, type Bootstrap, type BootstrapOptions } from './auth/bootstrap.ts';
export {
  BILLING_MODES,
  BILLING_SETTINGS,
  OVERDRAFT_DEFAULT,
  type BillingMode,
  type BillingSettings,
} from './billing/settings.ts';
export type { BlobStore } from './artifacts/blob-store.ts';
export type { StoreOptions } from './artifacts/open-store.ts';
export type { ControlTokens, TokenSet } from './credentials/token-set.ts';
export { addKey, fileKeys, promoteKey } from './encryption/key-file.ts';
export { KeysUnavailableError, type KeyEncryptionKeys, type WrappedKey } from './encryption/keys.ts';
export { startControl, type Control, type ControlOptions } from './control.ts';
export type { ControlContext } from './context.ts';
export type { Module } from './module.ts';
export type { PeriodicTask, TaskRun, TaskStats } from './tasks/task.ts';
export { type RateLimits } from './http/rate-limits.ts';
export { CONTROL_LIMITS, type ControlLimits, type Overcommit, type OvercommitTier } from './limits.ts';
export { ensureRegion, type RegionConfig } from './regions/regions.ts';
export {
  CONDITIONS,
  CREATIONS,
  STATE_DEADLINES,
  TRANSITIONS,
  EVENTS,
  type StateDeadlines,
  type Transition,
  type SandboxEvent,
} from './sandboxes/transitions.ts';
export type { Caller } from './auth/caller.ts';
export type { OidcOptions } from './auth/oidc/verifier.ts';
export { requireOrg, requireProject, type OrgAccess, type ProjectAccess } from './management/access.ts';
export { writeAudit, type Actor, type AuditRecord } from './management/audit.ts';
