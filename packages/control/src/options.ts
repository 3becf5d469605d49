import type { PlatformLimits } from '@releap/contract';
import type { Logger } from 'pino';
import type { OidcOptions } from './auth/oidc/verifier.ts';
import type { BillingSettings } from './billing/settings.ts';
import type { ControlTokens } from './credentials/token-set.ts';
import type { KeyEncryptionKeys } from './encryption/keys.ts';
import type { RateLimits } from './http/rate-limits.ts';
import type { ControlContext } from './context.ts';
import type { ControlLimits } from './limits.ts';
import type { Module } from './module.ts';
import type { RegionConfig } from './regions/regions.ts';

export interface ControlOptions {
  databaseUrl: string;
  /** Most database connections of this process. */
  databaseConnections?: number;
  /** Where the API listens. Port 0 takes any free one. */
  listen: { host: string; port: number };
  /**
   * Where runners, gateways and the operator connect: `/internal/…`, `/operator/…`, `/metrics`. Default: any free port
   * of 127.0.0.1.
   */
  internalListen?: { host: string; port: number };
  /** What the operator, gateways and machines that join must show. */
  tokens: ControlTokens;
  /** Shared token of version 0.1, where this home has one. It opens nothing; see docs/security.md. */
  previousToken?: string | undefined;
  /** The region that this server makes known. The first one of an installation becomes its default. */
  region: RegionConfig;
  /** Names of the images that runners can make by themselves. */
  builtinImages?: readonly string[];
  /** What encrypts secrets and registry passwords. Without it they cannot be written. */
  keys?: KeyEncryptionKeys;
  limits?: Partial<ControlLimits>;
  platform?: PlatformLimits;
  /** Prices, and whether credits are enforced. */
  billing?: Partial<BillingSettings>;
  /** Requests a minute that callers may make. No limits when absent. */
  rateLimits?: RateLimits;
  /** Who issues the tokens of the management plane. Without it that plane answers 503. */
  oidc?: OidcOptions;
  /** Base URL that callers use, for the OpenAPI document. */
  publicUrl?: string;
  /** Addresses and CIDR blocks of proxies whose `X-Forwarded-For` is believed. */
  trustedProxies?: readonly string[];
  /** Further modules, beside those of the control plane. */
  modules?: readonly ((context: ControlContext) => Module)[];
  log: Logger;
}
