import { newUuid, PLATFORM_LIMITS, type PlatformLimits } from '@releap/contract';
import { migrate, openDatabase } from '@releap/database';
import type { Logger } from 'pino';
import { createAuthenticator } from './auth/authenticator.ts';
import { startBilling } from './billing/billing.ts';
import { creditOperatorRoutes } from './billing/operator-routes.ts';
import { creditRoutes } from './billing/routes.ts';
import { BILLING_SETTINGS, type BillingSettings } from './billing/settings.ts';
import { createCallerAuthenticator } from './auth/caller.ts';
import type { OidcOptions } from './auth/oidc/verifier.ts';
import { createEncryption } from './encryption/encryption.ts';
import { startKeeper } from './encryption/keeper.ts';
import { noKeys, type KeyEncryptionKeys } from './encryption/keys.ts';
import { openBridge, type ChangedSandbox } from './events/bridge.ts';
import { createHub } from './events/hub.ts';
import { hostRoutes } from './hosts/routes.ts';
import { createApp, type App } from './http/app.ts';
import { internalRoutes } from './http/internal.ts';
import type { RateLimits } from './http/rate-limits.ts';
import { serviceRoutes } from './http/service.ts';
import { createIdempotency } from './idempotency/idempotency.ts';
import { createBuildQueue } from './images/build-queue.ts';
import { ensureBuiltinImages } from './images/images.ts';
import { imageRoutes } from './images/routes.ts';
import { jobRoutes } from './jobs/routes.ts';
import { CONTROL_LIMITS, type ControlLimits } from './limits.ts';
import { managementRoutes } from './management/routes.ts';
import { createTeardown } from './management/teardown.ts';
import { createRegions, ensureRegion, type RegionConfig } from './regions/regions.ts';
import { regionRoutes } from './regions/routes.ts';
import { createPullCredentials } from './registries/pull-credentials.ts';
import { createRegistries } from './registries/registries.ts';
import { registryRoutes } from './registries/routes.ts';
import { createRegistry, type RunnerRegistry } from './runners/registry.ts';
import { createLifecycle } from './sandboxes/lifecycle.ts';
import { createHostClient } from './sandboxes/logs.ts';
import { sandboxRoutes } from './sandboxes/routes.ts';
import { snapshotRoutes } from './snapshots/routes.ts';
import { createSnapshots } from './snapshots/snapshots.ts';
import { createScheduler } from './scheduler/scheduler.ts';
import { secretRoutes } from './secrets/routes.ts';
import { createSecrets, hasEncrypted } from './secrets/secrets.ts';
import { startSweeper } from './scheduler/sweeper.ts';

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
  /** Shared by the processes of one installation: runners and gateways show it. */
  internalToken: string;
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
  log: Logger;
}

export interface Control extends AsyncDisposable {
  /** Base URL of the API, as it listens. */
  readonly url: string;
  readonly port: number;
  /** Base URL of the internal listener. */
  readonly internalUrl: string;
  readonly internalPort: number;
  /** Runs one pass of the sweeper now. */
  sweep(): Promise<void>;
  /** Charges all that is due now. */
  charge(): Promise<void>;
  /** Answers what waits, lets go of the runners and closes the database. Sandboxes go on. */
  close(): Promise<void>;
}

/**
 * Starts a control server: migrates, listens, and leads every sandbox on from where the last one left it.
 * Several may run on one database.
 * @throws when the database cannot be reached or migrated, or the address cannot be had.
 */
export async function startControl(options: ControlOptions): Promise<Control> {
  const { log } = options;
  const limits: ControlLimits = { ...CONTROL_LIMITS, ...options.limits };
  const serverId = newUuid();
  await migrate({ url: options.databaseUrl, log });

  await using cleanup = new AsyncDisposableStack();
  const database = openDatabase({
    url: options.databaseUrl,
    log,
    applicationName: 'releap-control',
    ...(options.databaseConnections === undefined ? {} : { connections: options.databaseConnections }),
  });
  cleanup.use(database);
  await ensureRegion(database.pool, options.region);
  await ensureBuiltinImages(database.pool, options.builtinImages ?? []);

  const keys = options.keys ?? noKeys();
  await keys.prepare(!(await hasEncrypted(database.pool)));
  const encryption = createEncryption(keys);
  const credentials = createPullCredentials(database, encryption, log);

  const hub = createHub();
  const authenticator = createAuthenticator(database);
  cleanup.defer(() =>
    authenticator
      .flush()
      .catch((error: unknown) => log.warn({ err: error }, 'last use of keys was not written')),
  );
  let registry: RunnerRegistry | undefined;

  const heard = (changed: readonly ChangedSandbox[]): void => {
    hub.changed(changed.map(([id]) => id));
    const byRunner = new Map<string, string[]>();
    for (const [id, runnerId] of changed) {
      if (runnerId === null || !registry?.isConnected(runnerId)) continue;
      byRunner.set(runnerId, [...(byRunner.get(runnerId) ?? []), id]);
    }
    for (const [runnerId, ids] of byRunner) {
      registry
        ?.pushById(runnerId, ids)
        .catch((error: unknown) => log.error({ err: error, runner: runnerId }, 'a runner could not be told'));
    }
  };
  const bridge = await openBridge({
    database,
    serverId,
    log,
    onChanged: heard,
    onGap() {
      hub.changedAll();
      registry
        ?.catchUp()
        .catch((error: unknown) =>
          log.warn({ err: error }, 'runners are told by the sweeper what they missed'),
        );
    },
  });
  cleanup.use(bridge);

  const lifecycle = createLifecycle({
    database,
    deadlines: limits.deadlines,
    onMoved(rows) {
      registry?.push(rows);
      hub.changed(rows.map((row) => row.id));
      bridge.publish(
        rows.map((row) => [row.id, row.assigned_to_runner ? row.runner_id : null, row.generation]),
      );
    },
  });
  const billing = startBilling({
    database,
    lifecycle,
    settings: { ...BILLING_SETTINGS, ...options.billing },
    log,
  });
  cleanup.defer(() => billing.close());
  const idempotency = createIdempotency({ database, secret: options.internalToken });
  const snapshots = createSnapshots({
    database,
    log,
    onMoved(rows) {
      registry?.pushSnapshots(rows);
      hub.changed(rows.map((row) => row.id));
      bridge.publish(
        rows.map((row) => [row.id, row.assigned_to_runner ? row.runner_id : null, row.generation]),
      );
    },
  });
  const scheduler = createScheduler({ database, lifecycle, limits, log });
  cleanup.defer(() => scheduler.close());
  const builds = createBuildQueue({
    database,
    credentials,
    limits,
    log,
    links: () => registry?.links() ?? [],
  });
  cleanup.defer(() => builds.close());
  const hosts = createHostClient(options.internalToken);
  cleanup.use(hosts);
  const regions = createRegions(database);
  const teardown = createTeardown({ database, lifecycle, snapshots, log, graceMs: limits.teardownGraceMs });
  cleanup.defer(() => teardown.close());

  const callers = createCallerAuthenticator(database, options.oidc, log);
  const app = createApp({
    authenticator,
    callers,
    idempotency,
    trustedProxies: options.trustedProxies ?? [],
    ...(options.rateLimits === undefined ? {} : { rateLimits: options.rateLimits }),
    log,
  });
  const internalApp = createApp({ authenticator, callers, idempotency, trustedProxies: [], log });
  registry = createRegistry({
    database,
    server: internalApp.server,
    serverId,
    internalToken: options.internalToken,
    lifecycle,
    credentials,
    snapshots,
    limits,
    log,
    onCapacityReleased: () => scheduler.capacityReleased(),
    onReady(link) {
      builds
        .adopt(link)
        .then(() => builds.retryBuiltins())
        .catch((error: unknown) => log.error({ err: error }, 'builds of a runner could not be resumed'));
    },
    onUsage: (runnerId, readings) => billing.readings(runnerId, readings),
    onBuildResult: (link, { result }) => builds.finish(link, result),
    onBuildsAbandoned: (link) => builds.abandon(link),
  });
  const platform = options.platform ?? PLATFORM_LIMITS;
  const requireCredits = (orgId: string): Promise<void> => billing.requireCredits(orgId);
  sandboxRoutes(app, {
    database,
    regions,
    scheduler,
    limits,
    platform,
    requireCredits,
    lifecycle,
    hub,
    hosts,
    snapshots,
  });
  snapshotRoutes(app, { database, snapshots, limits, hub });
  imageRoutes(app, { database, regions, scheduler, builds });
  jobRoutes(app, { database });
  secretRoutes(app, { database, secrets: createSecrets(database, encryption) });
  registryRoutes(app, { database, registries: createRegistries(database, encryption) });
  regionRoutes(app, { regions });
  managementRoutes(app, { database, authenticator, teardown, oidc: options.oidc });
  serviceRoutes(app, { database, publicUrl: options.publicUrl });
  hostRoutes(internalApp, { database, lifecycle, scheduler, limits, internalToken: options.internalToken });
  internalRoutes(internalApp, { database, authenticator, internalToken: options.internalToken });
  creditRoutes(app, { database, billing });
  creditOperatorRoutes(internalApp, { database, billing, idempotency, internalToken: options.internalToken });

  const links = registry;
  cleanup.defer(async () => {
    // New requests are refused, waits end as if their time were over, and only then the runners are let go.
    hub.close();
    await Promise.all([app.close(), internalApp.close(), links.close()]);
  });
  const url = await app.fastify.listen(options.listen);
  const internalUrl = await internalApp.fastify.listen(
    options.internalListen ?? { host: '127.0.0.1', port: 0 },
  );
  const sweeper = startSweeper({
    database,
    lifecycle,
    scheduler,
    registry: links,
    snapshots,
    builds,
    teardown,
    authenticator,
    idempotency,
    bridge,
    hub,
    limits,
    log,
  });
  cleanup.defer(() => sweeper.close());
  const keeper = startKeeper({ database, encryption, log });
  cleanup.defer(() => keeper.close());
  log.info({ url, internalUrl, server: serverId, region: options.region.id }, 'the control plane listens');

  const owned = cleanup.move();
  const portOf = ({ server }: App): number => (server.address() as { port: number }).port;
  const close = (): Promise<void> => owned.disposeAsync();
  return {
    url,
    port: portOf(app),
    internalUrl,
    internalPort: portOf(internalApp),
    sweep: () => sweeper.sweep(),
    charge: () => billing.pass(),
    close,
    [Symbol.asyncDispose]: close,
  };
}
