import { setTimeout as sleep } from 'node:timers/promises';
import { HostCertificate, REVERSE_FIRST_BYTE, reverseAddress } from '@releap/certificates/hosts';
import { COMPAT_PREFIX, newUuid } from '@releap/contract';
import { prepareDatabase } from '@releap/database';
import { answerCompatError, answerUnlisted } from './edge/compat/errors.ts';
import { audited } from './tenancy/operator/audit.ts';
import { type ControlServices, createServices } from './services.ts';
import { type ClientGuards, createPlanes } from './platform/http/planes.ts';
import { UpgradeRouter } from './platform/http/upgrade-router.ts';
import { createHttpServer, type HttpServer } from './platform/http/server.ts';
import { ensureBuiltinImages } from './storage/images/images.ts';
import { requestMetrics, taskMetrics } from './platform/metrics/instruments.ts';
import type { FastifyPluginCallback } from 'fastify';
import type { Module } from './platform/module.ts';
import { createModules, type CreateModule } from './modules.ts';
import type { ServiceOptions } from './options.ts';
import { setDefaultQuotas } from './tenancy/quotas/quotas.ts';
import { ensureRegion } from './fleet/regions/regions.ts';
import { createLeases, LEASE_MS, LEASES_RELEASED } from './platform/work/leases.ts';
import { createTaskRunner } from './platform/work/task-runner.ts';

export interface ControlOptions extends ServiceOptions {
  /** Additional modules. */
  modules?: readonly CreateModule[];
  /** `wait`: another process migrates the database, and this server waits for it. Default `start`: it migrates. */
  migrations?: 'start' | 'wait';
  /** Ends that wait. */
  signal?: AbortSignal;
}

export interface Control extends AsyncDisposable {
  /** Base URL of the API. */
  readonly url: string;
  readonly port: number;
  /** Base URL of the internal listener. */
  readonly internalUrl: string;
  readonly internalPort: number;
  /** Runs every periodic task once, now. */
  sweep(): Promise<void>;
  /** Runs one periodic task now. */
  runTask(name: string): Promise<void>;
  /** Charges everything that is due now. */
  charge(): Promise<void>;
  /**
   * Lets calls of functions end, for at most this long: `/readyz` and `/healthz` answer 503, connections are not kept alive, and no
   * further invocation is leased. `close` follows.
   * @param hurry aborted to end it early
   */
  drain(ms: number, hurry?: AbortSignal): Promise<void>;
  /** Ends open requests, disconnects the runners and closes the database. Sandboxes continue. */
  close(): Promise<void>;
}

/**
 * Starts a control server: migrates the database (or waits for that), listens, and resumes the reconciliation of every sandbox.
 * Several servers may run on one database.
 * @throws when the database cannot be reached or migrated, or the address cannot be bound
 */
export async function startControl(options: ControlOptions): Promise<Control> {
  const { log } = options;
  await prepareDatabase({ ...options, url: options.databaseUrl });

  await using cleanup = new AsyncDisposableStack();
  const context = await createServices(options, cleanup);
  const { database, metrics, runners, changes, serverId } = context;
  await ensureRegion(database.pool, options.region);
  await setDefaultQuotas(database.pool, context.limits.quotas);
  await ensureBuiltinImages(database.pool, options.builtinImages ?? []);

  const modules = createModules(context, options.modules);
  const { planes, guards, clientPlugins, internalPlugins } = createPlanes({
    ...context,
    ...options,
    auditKeys: (plane) => context.keyAudit.audited(plane),
    auditOperator: (plane) => audited(plane, database),
    facade: { answerError: answerCompatError, answerNotFound: answerUnlisted },
    onAnswer: requestMetrics(metrics),
  });
  for (const module of modules) {
    module.routes?.(planes);
    module.metrics?.(metrics);
  }
  const api = createHttpServer({
    plugins: [...clientPlugins, ...modules.map((module) => clientRoutes(module, guards))],
    trustedProxies: options.trustedProxies ?? [],
    answers: [{ prefix: COMPAT_PREFIX, answerError: answerCompatError }],
    log,
  });
  const internal = createHttpServer({ plugins: internalPlugins, log });
  runners.reconcile(modules.flatMap((module) => module.kinds ?? []));
  const upgrades = new UpgradeRouter(log);
  runners.attach(upgrades);
  for (const module of modules) module.upgrades?.(upgrades);
  upgrades.attach(internal.server);
  cleanup.defer(async () => {
    // Refuse new requests, end long polls as if they had timed out, and only then disconnect the runners.
    changes.close();
    for (const module of modules) module.disconnect?.();
    await Promise.all([api.close(), internal.close(), runners.close()]);
  });
  // First: a server whose API answers `/readyz` is also sent runners and gateways.
  const certificate = options.internalTls === true ? listenerCertificate(context) : undefined;
  const internalUrl = await internal.listen(
    options.internalListen ?? { host: '127.0.0.1', port: 0 },
    certificate,
    { firstByte: REVERSE_FIRST_BYTE, accept: (socket) => context.reverse.accept(socket) },
  );
  if (certificate !== undefined)
    context.reverse.listensAt(reverseAddress(internalUrl, options.internalListen?.host));
  const url = await api.listen(options.listen);

  const leases = createLeases(context.heartbeats.pool, serverId, LEASE_MS, () =>
    context.cluster.publish([[newUuid(), null, 0, LEASES_RELEASED]]),
  );
  context.events.on('changed-elsewhere', (changed) => {
    if (changed.some(([, , , kind]) => kind === LEASES_RELEASED)) leases.lookAgain();
  });
  const tasks = createTaskRunner({
    tasks: modules.flatMap((module) => module.tasks ?? []),
    leases,
    log,
    onRun: taskMetrics(metrics),
  });
  cleanup.defer(() => tasks.close());
  tasks.start();
  log.info(
    { url, internalUrl, server: serverId, region: options.region.id },
    'the control plane is listening',
  );

  const owned = cleanup.move();
  const close = (): Promise<void> => owned.disposeAsync();
  return {
    url,
    port: portOf(api),
    internalUrl,
    internalPort: portOf(internal),
    sweep: () => tasks.runOnce(),
    runTask: (name) => tasks.runOnce(name),
    async charge() {
      await tasks.runOnce('charge');
      await tasks.runOnce('charge-bursts');
    },
    async drain(ms, hurry) {
      context.draining.abort();
      api.drain();
      const ended = new AbortController();
      const signal = hurry === undefined ? ended.signal : AbortSignal.any([ended.signal, hurry]);
      await Promise.race([
        Promise.all(modules.map(async (module) => await module.drain?.())),
        sleep(ms, undefined, { signal }).catch(() => undefined),
      ]);
      ended.abort();
    },
    close,
    [Symbol.asyncDispose]: close,
  };
}

const clientRoutes =
  (module: Module, guards: ClientGuards): FastifyPluginCallback =>
  (scope, _options, done) => {
    module.clientRoutes?.(scope, guards);
    done();
  };

function listenerCertificate({
  certificates,
  hostAuthority,
  cleanup,
  log,
}: ControlServices): HostCertificate {
  const certificate = new HostCertificate({
    issue: (request) => hostAuthority.issueListener(request),
    log,
  });
  cleanup.defer(() => certificate.close());
  certificates.push(certificate);
  return certificate;
}

const portOf = ({ server }: HttpServer): number => (server.address() as { port: number }).port;
