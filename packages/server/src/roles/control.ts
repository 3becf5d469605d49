import { CONTROL_LIMITS, startControl, type OidcOptions } from '@releap/control';
import type { Logger } from 'pino';
import { writeBootstrap } from '../bootstrap.ts';
import { urlHost, type Config } from '../config/config.ts';
import type { IdentityServer } from '../identity/server.ts';
import type { RoleContext, RunningRole } from './run-role.ts';

/** The control plane: REST API, scheduler, link to the runners. */
export async function controlRole({
  config,
  internalToken,
  log,
  supervised,
}: RoleContext): Promise<RunningRole> {
  const { databaseUrl, host, port } = config;
  if (databaseUrl === undefined) throw new Error('the role control needs DATABASE_URL');
  const baseUrl = config.publicUrl ?? `http://${urlHost(host)}:${port}`;
  const signIn = await issuerOf(config, supervised, log);
  await using cleanup = new AsyncDisposableStack();
  cleanup.defer(() => signIn.identity?.close() ?? Promise.resolve());
  const control = await startControl({
    databaseUrl,
    databaseConnections: config.databaseConnections,
    listen: { host, port },
    internalToken,
    region: { ...config.region, toolboxProxyUrl: config.toolboxUrl },
    builtinImages: config.builtinImages,
    limits: {
      ...CONTROL_LIMITS,
      createQueue: config.createQueue,
      overcommit: { ...config.overcommit },
    },
    billing: config.billing,
    rateLimits: config.rateLimits,
    publicUrl: baseUrl,
    trustedProxies: config.trustedProxies ?? [],
    ...(signIn.oidc === undefined ? {} : { oidc: signIn.oidc }),
    log,
  });
  cleanup.use(control);
  const issuer = signIn.oidc?.issuer;
  if (supervised) {
    const image = config.builtinImages[0] ?? 'busybox';
    await writeBootstrap({ home: config.home, databaseUrl, baseUrl, issuer, image, log });
  }
  const owned = cleanup.move();
  const close = (): Promise<void> => owned.disposeAsync();
  return { facts: { url: baseUrl, issuer: issuer ?? '' }, stop: close, letGo: close };
}

/** Users of the development identity provider are kept under this name: its port is not the same everywhere. */
const DEVELOPMENT = 'development';

/** The configured issuer; else, in the all-in-one server, one of its own. */
async function issuerOf(
  config: Config,
  supervised: boolean,
  log: Logger,
): Promise<{ oidc?: OidcOptions; identity?: IdentityServer }> {
  const { issuer, audience, clientId } = config.oidc;
  if (issuer !== undefined) return { oidc: { issuer, audience, clientId } };
  if (!supervised) return {};
  const { startIdentity } = await quietly(() => import('../identity/server.ts'));
  const port = config.identityPort ?? 0;
  const identity = await startIdentity({ home: config.home, port, audience, log });
  return { identity, oidc: { issuer: identity.issuer, audience, usersOf: DEVELOPMENT } };
}

/**
 * Loads a module without what it says about the Node version: oidc-provider knows release lines by a mark that the
 * first releases of a line do not have yet.
 */
async function quietly<T>(load: () => Promise<T>): Promise<T> {
  const { warn } = console;
  console.warn = () => undefined;
  try {
    return await load();
  } finally {
    console.warn = warn;
  }
}
