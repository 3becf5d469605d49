export { mintApiKey, revokeApiKey, type MintedKey } from './platform/auth/api-keys.ts';
export { ensureBootstrap, type Bootstrap, type BootstrapOptions } from './platform/auth/bootstrap.ts';
export {
  BILLING_MODES,
  BILLING_SETTINGS,
  OVERDRAFT_DEFAULT,
  type BillingMode,
  type BillingSettings,
} from './tenancy/billing/settings.ts';
export type { BlobStore } from './storage/artifacts/blob-store.ts';
export type { StoreOptions } from './storage/artifacts/open-store.ts';
export type { ControlTokens, TokenSet } from './platform/credentials/token-set.ts';
export { addKey, fileKeys, promoteKey } from './platform/encryption/key-file.ts';
export { KeysUnavailableError, type KeyEncryptionKeys, type WrappedKey } from './platform/encryption/keys.ts';
export { startControl, type Control, type ControlOptions } from './control.ts';
export type { ControlServices } from './services.ts';
export type { Module } from './platform/module.ts';
export type { PeriodicTask, TaskRun, TaskStats } from './platform/work/task.ts';
export { type RateLimits } from './platform/http/rate-limits.ts';
export { CONTROL_LIMITS, type ControlLimits } from './limits.ts';
export type { Overcommit, OvercommitTier } from './compute/scheduler/overcommit.ts';
export { ensureRegion, type RegionConfig } from './fleet/regions/regions.ts';
export {
  CONDITIONS,
  CREATIONS,
  STATE_DEADLINES,
  TRANSITIONS,
  EVENTS,
  type StateDeadlines,
  type Transition,
  type SandboxEvent,
} from './compute/sandboxes/transitions.ts';
export type { Caller } from './platform/auth/caller.ts';
export type { OidcOptions } from './platform/auth/oidc/verifier.ts';
export {
  requireOrg,
  requireProject,
  type OrgAccess,
  type ProjectAccess,
} from './tenancy/management/access.ts';
export { writeAudit, type Actor, type AuditRecord } from './tenancy/management/audit.ts';
