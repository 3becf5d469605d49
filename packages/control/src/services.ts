/** The services that modules share: one typed container for each server. */
import { newUuid, PLATFORM_LIMITS, type PlatformLimits } from '@releap/contract';
import { openDatabase, queryOne, type Database } from '@releap/database';
import type { Logger } from 'pino';
import { Registry } from 'prom-client';
import { createArtifacts, type Artifacts } from './storage/artifacts/artifacts.ts';
import type { BlobStore } from './storage/artifacts/blob-store.ts';
import { openStore } from './storage/artifacts/open-store.ts';
import { createStores, type Stores } from './storage/artifacts/stores.ts';
import { DEPLOYMENT_STORE } from './storage/artifacts/blob-rows.ts';
import { createAuthenticator, type Authenticator } from './platform/auth/authenticator.ts';
import { createCallerAuthenticator, type CallerAuthenticator } from './platform/auth/caller.ts';
import { createBilling, type Billing } from './tenancy/billing/billing.ts';
import { BILLING_SETTINGS } from './tenancy/billing/settings.ts';
import { createDataTokens, type DataTokens } from './platform/credentials/data-tokens.ts';
import { createPreviewTokens, type PreviewTokens } from './edge/endpoints/preview-tokens.ts';
import {
  createRunnerCredentials,
  type RunnerCredentials,
} from './platform/credentials/runner-credentials.ts';
import { createServiceKeys } from './platform/credentials/service-keys.ts';
import { DataHosts, HostCertificate, ReverseConnections } from '@releap/certificates/hosts';
import { createHostAuthority, makeHostRoot, type HostAuthority } from './fleet/authority/host-authority.ts';
import { createEgressRoot, makeEgressRoot, type EgressRoot } from './fleet/egress/egress-root.ts';
import { createEncryption, type Encryption } from './platform/encryption/encryption.ts';
import { noKeys } from './platform/encryption/keys.ts';
import { createChangeNotifier, type ChangeNotifier } from './platform/events/change-notifier.ts';
import { openClusterNotifier, type ClusterNotifier } from './platform/events/cluster-notifier.ts';
import { createEventBus, type EventBus } from './platform/events/event-bus.ts';
import { createDispatchTokens, type DispatchTokens } from './functions/versions/dispatch-token.ts';
import { createFunctionTemplates, type FunctionTemplates } from './functions/templates/templates.ts';
import { createFunctionInstances, type FunctionInstances } from './functions/instances/instances.ts';
import { createIdempotency, type Idempotency } from './platform/idempotency/idempotency.ts';
import { createBuildQueue, type BuildQueue } from './storage/images/build-queue.ts';
import { createImageReader, type ReadImage } from './storage/images/resolve-root.ts';
import { CONTROL_LIMITS, type ControlLimits } from './limits.ts';
import { createKeyAudit, type KeyAudit } from './tenancy/management/key-audit.ts';
import { transitionMetrics } from './platform/metrics/instruments.ts';
import type { ServiceOptions } from './options.ts';
import { createHardwareClasses, type HardwareClasses } from './fleet/classes/hardware-classes.ts';
import { createRegions, type Regions } from './fleet/regions/regions.ts';
import { createPullCredentials, type PullCredentials } from './storage/registries/pull-credentials.ts';
import { endConnection } from './fleet/runners/operator-marks.ts';
import { DEPLOYMENT } from './fleet/runners/queries.ts';
import { createHostClient, type HostClient } from './fleet/runners/host-client.ts';
import { createRegistry, type RunnerRegistry } from './fleet/runners/registry.ts';
import { moveMetrics } from './compute/moves/metrics.ts';
import { createMoves, type Moves } from './compute/moves/moves.ts';
import { createLifecycle, type Lifecycle } from './compute/sandboxes/lifecycle.ts';
import { createRecordReader, type ReadRecord } from './compute/sandboxes/queries.ts';
import { traceTransition } from './compute/sandboxes/trace.ts';
import { createScheduler, type Scheduler } from './compute/scheduler/scheduler.ts';
import { hasEncrypted } from './storage/secrets/secrets.ts';
import { createSnapshots, type Snapshots } from './compute/snapshots/snapshots.ts';
import { USAGE_SETTINGS } from './compute/usage/settings.ts';
import { createUsage, type Usage } from './compute/usage/usage.ts';

export interface ControlServices {
  readonly options: ServiceOptions;
  readonly limits: ControlLimits;
  readonly platform: PlatformLimits;
  readonly log: Logger;
  /** Identifies this process; a restart changes it. */
  readonly serverId: string;
  readonly deploymentId: string;
  readonly database: Database;
  /** A pool of one connection for heartbeats and leases, so that they never wait for other work. */
  readonly heartbeats: Database;
  /** This server's registry; a module adds to it with `Module.metrics`. */
  readonly metrics: Registry;
  readonly events: EventBus;
  /** Wakes requests that wait for a change. */
  readonly changes: ChangeNotifier;
  readonly cluster: ClusterNotifier;
  readonly encryption: Encryption;
  readonly credentials: PullCredentials;
  /** Runners' credentials. */
  readonly runnerCredentials: RunnerCredentials;
  /** Tokens for the data servers of hosts. */
  readonly dataTokens: DataTokens;
  /** Tokens that open preview endpoints. */
  readonly previewTokens: PreviewTokens;
  /** Tokens with which this server calls functions through a gateway. */
  readonly dispatchTokens: DispatchTokens;
  /** The root of the certificates with which runners intercept TLS for secrets. */
  readonly egressRoot: EgressRoot;
  /** Issues the certificates of runners, gateways and control servers. */
  readonly hostAuthority: HostAuthority;
  /** Certificates of this server: for runners, and of the internal listener where that serves other machines. */
  readonly certificates: HostCertificate[];
  /** Connections of hosts that accept none. */
  readonly reverse: ReverseConnections;
  readonly dataHosts: DataHosts;
  /** Reads logs from hosts. */
  readonly hosts: HostClient;
  readonly authenticator: Authenticator;
  readonly callers: CallerAuthenticator;
  /** Records what API keys change. */
  readonly keyAudit: KeyAudit;
  readonly idempotency: Idempotency;
  readonly regions: Regions;
  readonly classes: HardwareClasses;
  readonly lifecycle: Lifecycle;
  readonly snapshots: Snapshots;
  readonly scheduler: Scheduler;
  /** Moves of sandboxes between hosts. */
  readonly moves: Moves;
  readonly billing: Billing;
  /** Memory of functions that are ready. */
  readonly functionTemplates: FunctionTemplates;
  /** Sandboxes that serve functions. */
  readonly instances: FunctionInstances;
  readonly usage: Usage;
  readonly readRecord: ReadRecord;
  readonly readImage: ReadImage;
  readonly runners: RunnerRegistry;
  readonly builds: BuildQueue;
  /** The store of the deployment: of images, snapshots, build contexts and volumes. A blob that no row names is removed after a grace period. */
  readonly blobs: BlobStore;
  /** It, and those of regions. */
  readonly stores: Stores;
  readonly artifacts: Artifacts;
  /** Aborted when the server is about to stop: balancers are to lead clients elsewhere. */
  readonly draining: AbortController;
  /** Runs when the server stops, in reverse order. */
  readonly cleanup: AsyncDisposableStack;
}

/** The database must be migrated. `cleanup` closes what this opens. */
export async function createServices(
  options: ServiceOptions,
  cleanup: AsyncDisposableStack,
): Promise<ControlServices> {
  const { log } = options;
  const limits: ControlLimits = { ...CONTROL_LIMITS, ...options.limits };
  const serverId = newUuid();
  const database = cleanup.use(
    openDatabase({
      url: options.databaseUrl,
      log,
      applicationName: 'releap-control',
      ...(options.databaseConnections === undefined ? {} : { connections: options.databaseConnections }),
    }),
  );
  const heartbeats = cleanup.use(
    openDatabase({ url: options.databaseUrl, log, applicationName: 'releap-heartbeat', connections: 1 }),
  );

  const keys = options.keys ?? noKeys();
  await keys.prepare(!(await hasEncrypted(database.pool)));
  const encryption = createEncryption(keys);
  const credentials = createPullCredentials(database, encryption, log);
  const { tokens } = options;
  const deploymentId = await readDeploymentId(database);
  const serviceKeys = createServiceKeys({
    database,
    encryption: options.keys === undefined ? undefined : encryption,
    makers: {
      'egress-root': async () => makeEgressRoot(deploymentId),
      'host-root': async () => makeHostRoot(deploymentId),
    },
    log,
  });
  const egressRoot = createEgressRoot({ serviceKeys, label: async () => deploymentId });
  const hostAuthority = createHostAuthority({ serviceKeys, label: async () => deploymentId });
  const dataTokens = createDataTokens({ database, serviceKeys });
  const previewTokens = createPreviewTokens(serviceKeys);
  const dispatchTokens = createDispatchTokens(serviceKeys);
  const certificate = new HostCertificate({
    issue: (request) => hostAuthority.issue(request, { role: 'control', id: serverId }),
    log,
  });
  cleanup.defer(() => certificate.close());
  const events = createEventBus(log);
  const reverse = new ReverseConnections({
    certificate,
    ask: (runnerId, address) => events.emit('connections-wanted', { runnerId, address }),
    log,
  });
  cleanup.defer(() => reverse.close());
  const dataHosts = new DataHosts({ certificate, local: options.localRunner, reverse });
  const hosts = cleanup.use(createHostClient(dataTokens, dataHosts));
  const runnerCredentials = createRunnerCredentials({
    database,
    endConnection,
    joinTokens: tokens.join,
    log,
  });

  const changes = createChangeNotifier();
  const authenticator = createAuthenticator(database);
  const idempotency = createIdempotency({ database, secret: () => serviceKeys.get('idempotency'), log });

  const metrics = new Registry();
  const onTransition = transitionMetrics(metrics);
  const lifecycle = createLifecycle({
    database,
    deadlines: limits.deadlines,
    onMoved: (rows) => events.emit('sandboxes-changed', rows),
    onTransition(event, row) {
      onTransition('sandbox', event, row);
      traceTransition(event, row);
    },
  });
  const snapshots = createSnapshots({
    database,
    log,
    onMoved: (rows) => events.emit('snapshots-changed', rows),
    onTransition: (event, row) => onTransition('snapshot', event, row),
  });
  const artifacts = createArtifacts({
    database,
    storeAll: options.store.type === 's3',
    replicaIdleMs: limits.replicaIdleMs,
    onChanged: (rows) => events.emit('artifacts-changed', rows),
    onReplicate: () => events.emit('replications-pending'),
    log,
  });
  const scheduler = createScheduler({
    database,
    lifecycle,
    artifacts,
    onVolumesChanged: (changes) => events.emit('volumes-changed', changes),
    limits,
    log,
  });
  cleanup.defer(() => scheduler.close());
  events.on('capacity-released', () => scheduler.capacityReleased());

  const billing = createBilling({
    database,
    lifecycle,
    settings: { ...BILLING_SETTINGS, ...options.billing },
    log,
  });
  events.on('runner-usage', ({ runnerId, readings }) => billing.readings(runnerId, readings));

  const usage = createUsage({ database, settings: { ...USAGE_SETTINGS, ...options.usage }, log });

  const store = await openStore(options.store, deploymentId);
  cleanup.defer(() => store.close?.());
  const stores = createStores({ database, encryption, deploymentId, own: store });
  cleanup.defer(() => stores.close());
  const { blobs } = await stores.open(DEPLOYMENT_STORE);

  const runners = createRegistry({
    database,
    serverId,
    deploymentId,
    credentials: runnerCredentials,
    limits,
    log,
    onReady() {
      events.emit('runner-ready');
      events.emit('capacity-released');
    },
    onUsage: (runnerId, readings) => events.emit('runner-usage', { runnerId, readings }),
    usage,
  });
  const builds = createBuildQueue({
    database,
    credentials,
    limits,
    log,
    builders: () => runners.links(),
    onChanged: (resources) => runners.changed('build', resources),
  });
  cleanup.defer(() => builds.close());

  // Order: runners, then waiting requests, then other servers.
  events.on('sandboxes-changed', (rows) => runners.changed('sandbox', rows));
  events.on('snapshots-changed', (rows) => runners.changed('snapshot', rows));
  events.on('artifacts-changed', (rows) => runners.changed('artifact', rows));
  events.on('volumes-changed', (rows) => runners.changed('volume', rows));
  const cluster = await openClusterNotifier({
    database,
    serverId,
    log,
    onChanged: (changed) => events.emit('changed-elsewhere', changed),
    onGap: () => events.emit('notifications-missed'),
  });
  cleanup.use(cluster);

  const moves = createMoves({
    database,
    lifecycle,
    artifacts,
    onSandboxes(rows) {
      runners.changed('sandbox', rows);
      cluster.publish(rows.map((row) => [row.id, row.runner_id, row.generation, 'sandbox']));
    },
    onVolumes: (rows) => events.emit('volumes-changed', rows),
    onCapacityReleased: () => events.emit('capacity-released'),
    onPaused: moveMetrics(metrics),
    limits,
    log,
  });
  cleanup.defer(() => moves.close());
  events.on('sandboxes-changed', () => moves.changed());
  events.on('artifacts-changed', () => moves.changed());

  const functionTemplates = createFunctionTemplates({ changes, database, limits, log, snapshots });
  const instances = createFunctionInstances({
    templates: functionTemplates,
    database,
    lifecycle,
    scheduler,
    billing,
    changes,
    cluster,
    events,
    limits,
    log,
  });

  return {
    options,
    limits,
    readRecord: createRecordReader(database.pool),
    readImage: createImageReader(database.pool),
    platform: options.platform ?? PLATFORM_LIMITS,
    log,
    serverId,
    deploymentId,
    database,
    heartbeats,
    metrics,
    events,
    changes,
    cluster,
    encryption,
    credentials,
    runnerCredentials,
    dataTokens,
    previewTokens,
    dispatchTokens,
    egressRoot,
    hostAuthority,
    certificates: [certificate],
    reverse,
    dataHosts,
    hosts,
    authenticator,
    keyAudit: createKeyAudit({ database, log }),
    callers: createCallerAuthenticator(database, options.oidc, log),
    idempotency,
    regions: createRegions(database),
    classes: createHardwareClasses(database),
    lifecycle,
    snapshots,
    scheduler,
    moves,
    billing,
    functionTemplates,
    instances,
    usage,
    runners,
    builds,
    artifacts,
    blobs,
    stores,
    draining: new AbortController(),
    cleanup,
  };
}

async function readDeploymentId(database: Database): Promise<string> {
  const deployment = await queryOne(database.pool, DEPLOYMENT);
  if (deployment === undefined) throw new Error('the table deployment has no row');
  return deployment.id;
}
