import type { OidcOptions } from '@releap/control';
import type { Logger } from 'pino';
import type { Config } from '../config/config.ts';
import type { IdentityServer } from './server.ts';

/** The issuer name of users of the development identity provider, whose port differs between machines. */
const DEVELOPMENT = 'development';

/** The configured issuer; else, in the all-in-one server, a development issuer, which the caller closes. */
export async function issuerOf(
  config: Pick<Config, 'home' | 'oidc' | 'identityPort'>,
  supervised: boolean,
  log: Logger,
): Promise<{ oidc?: OidcOptions; identity?: IdentityServer }> {
  const { issuer, audience, clientId, trustEmail } = config.oidc;
  if (issuer !== undefined) return { oidc: { issuer, audience, clientId, trustEmail } };
  if (!supervised) return {};
  const { startIdentity } = await quietly(() => import('./server.ts'));
  const port = config.identityPort ?? 0;
  const identity = await startIdentity({ home: config.home, port, audience, log });
  return { identity, oidc: { issuer: identity.issuer, audience, usersOf: DEVELOPMENT } };
}

/**
 * Loads a module without its warning about the Node version: oidc-provider detects release lines by a mark that the
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
