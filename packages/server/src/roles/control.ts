import { mkdir } from 'node:fs/promises';
import { CONTROL_LIMITS, fileKeys, startControl } from '@releap/control';
import { writeBootstrap } from '../bootstrap.ts';
import { internalUrlOf, isLoopback, previewUrlOf, urlHost } from '../config/config.ts';
import { plainHttpWarning } from '../config/plain-http.ts';
import { PREVIEW_PORT_OFFSET } from '../supervisor/ports.ts';
import { localRunner } from '../local-runner.ts';
import { issuerOf } from '../identity/issuer.ts';
import { acceptedTokens, ensureTokens } from '../tokens.ts';
import type { RoleContext, RunningRole } from './run-role.ts';

/** The control plane: REST API, scheduler, link to the runners. */
export async function controlRole({ config, log, supervised, stopping }: RoleContext): Promise<RunningRole> {
  const { databaseUrl, host, port } = config;
  if (databaseUrl === undefined) throw new Error('the role control needs DATABASE_URL');
  const baseUrl = config.publicUrl ?? `http://${urlHost(host)}:${port}`;
  const signIn = await issuerOf(config, supervised, log);
  await ensureTokens(config);
  // A folder that cannot be written is reported now, and not by the first upload.
  if (config.store.type === 'folder') await mkdir(config.store.path, { recursive: true, mode: 0o700 });
  await using cleanup = new AsyncDisposableStack();
  cleanup.defer(() => signIn.identity?.close() ?? Promise.resolve());
  const control = await startControl({
    databaseUrl,
    databaseConnections: config.databaseConnections,
    migrations: config.migrations,
    signal: stopping,
    listen: { host, port },
    internalListen: { host: config.internalHost, port: config.internalPort ?? port + 2 },
    internalTls: !isLoopback(config.internalHost),
    tokens: acceptedTokens(config, log),
    region: {
      ...config.region,
      toolboxProxyUrl: config.toolboxUrl,
      previewUrl: previewUrlOf(config, config.previewPort ?? port + PREVIEW_PORT_OFFSET),
    },
    builtinImages: config.builtinImages,
    compatSnapshot:
      config.compatSnapshot ??
      config.builtinImages.find((image) => image === 'debian') ??
      config.builtinImages[0],
    keys: fileKeys(config.keyFile, log),
    store: config.store,
    limits: {
      ...CONTROL_LIMITS,
      createQueue: config.createQueue,
      createQueueShare: config.createQueueShare,
      quotas: config.quotas,
      buildsPerProject: config.buildsPerProject,
      buildContextBytes: config.buildContextBytes,
      retentionDays: config.retentionDays,
      auditRetentionDays: config.auditRetentionDays,
      invocationRetentionDays: config.invocationRetentionDays,
      functionWindowMaxS: config.functionWindowMaxS,
      volumeHistoryMs: config.volumeHistoryMs,
      // A machine of one's own is for trying things out: many idle sandboxes matter more than guarantees under load.
      // So 20 sandboxes of the SDK, of a dedicated core each, run on 2 cores.
      overcommit: {
        ...config.overcommit,
        cpu: config.overcommit.cpu ?? (supervised ? 16 : CONTROL_LIMITS.overcommit.cpu),
        tier: config.overcommit.tier ?? (supervised ? 'all' : 'spot'),
      },
    },
    billing: config.billing,
    usage: config.usage,
    rateLimits: config.rateLimits,
    localRunner: localRunner(config),
    publicUrl: baseUrl,
    trustedProxies: config.trustedProxies ?? [],
    ...(signIn.oidc === undefined ? {} : { oidc: signIn.oidc }),
    log,
  });
  cleanup.use(control);
  const warning = plainHttpWarning(config, 'control');
  if (warning !== undefined) log.warn({ host }, warning);
  const issuer = signIn.oidc?.issuer;
  if (supervised) {
    const image = config.builtinImages[0] ?? 'busybox';
    const internalUrl = internalUrlOf(config);
    await writeBootstrap({ home: config.home, databaseUrl, baseUrl, internalUrl, issuer, image, log });
  }
  const owned = cleanup.move();
  const close = (): Promise<void> => owned.disposeAsync();
  // The service of one machine stops as a whole: what its calls lead to ends, too.
  const drainMs = supervised ? 0 : config.controlDrainS * 1000;
  const hurry = new AbortController();
  return {
    facts: { url: baseUrl, issuer: issuer ?? '' },
    stop: close,
    async detach() {
      await control.drain(drainMs, hurry.signal);
      await close();
    },
    drainMs,
    hurry: () => hurry.abort(),
  };
}
