import type { LocalRunner } from '@releap/certificates/hosts';
import type { PlatformLimits } from '@releap/contract';
import type { Logger } from 'pino';
import type { StoreOptions } from './storage/artifacts/open-store.ts';
import type { OidcOptions } from './platform/auth/oidc/verifier.ts';
import type { BillingSettings } from './tenancy/billing/settings.ts';
import type { UsageSettings } from './compute/usage/settings.ts';
import type { ControlTokens } from './platform/credentials/token-set.ts';
import type { KeyEncryptionKeys } from './platform/encryption/keys.ts';
import type { RateLimits } from './platform/http/rate-limits.ts';
import type { ControlLimits } from './limits.ts';
import type { RegionConfig } from './fleet/regions/regions.ts';

/** What the shared services of a control server are made with. */
export interface ServiceOptions {
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
  /** Other machines reach the internal listener over TLS alone. */
  internalTls?: boolean;
  /** Credentials of the operator, of gateways and of machines that join. */
  tokens: ControlTokens;
  /** The region that this server registers. The first one of an installation becomes its default. */
  region: RegionConfig;
  /** Names of the images that runners have built in. */
  builtinImages?: readonly string[];
  /** Keys that encrypt secrets and registry passwords. Without them neither can be written. */
  keys?: KeyEncryptionKeys;
  /** Where images, snapshots and build contexts are stored. The same for all servers of a deployment. */
  store: StoreOptions;
  limits?: Partial<ControlLimits>;
  platform?: PlatformLimits;
  /** Prices, and whether credits are enforced. */
  billing?: Partial<BillingSettings>;
  /** Whether use is recorded, and how long it is kept. */
  usage?: Partial<UsageSettings>;
  /** Requests per minute allowed to callers. Unlimited when absent. */
  rateLimits?: RateLimits;
  /** The OIDC issuer of the management plane. Without it that plane answers 503. */
  oidc?: OidcOptions;
  /** Base URL that callers use, for the OpenAPI document. */
  publicUrl?: string;
  /** What a create of the compatibility facade starts that names no snapshot; without it such a create is refused. */
  compatSnapshot?: string | undefined;
  /** The runner of the same home, which is reached over its Unix socket. */
  localRunner?: LocalRunner;
  /** Addresses and CIDR blocks of proxies whose `X-Forwarded-For` is believed. */
  trustedProxies?: readonly string[];
  log: Logger;
}
