/** How other machines reach the deployment of this one, and know it. */
import { join } from 'node:path';
import { formatJoinToken, type JoinToken } from '@releap/contract/join-token';
import { CliError, usageError } from '../cli-error.ts';
import { EXIT } from '../exit-codes.ts';
import { openOperator } from '../operator.ts';
import { isLoopback, readBootstrap, releapHome } from '../settings.ts';
import type { Context } from '../terminal.ts';

/** @param given what other machines reach the internal listener with, if not as the service says */
export async function placeToJoin(
  context: Context,
  given: string | undefined,
): Promise<Omit<JoinToken, 'secret'>> {
  const controlUrl = given ?? internalUrl(context);
  if (!/^https:\/\/[^\s/?#@]+\/?$/.test(controlUrl))
    throw usageError(`--control-url ${controlUrl} must be https://host:port`);
  const { fingerprint } = await openOperator(context).api.getHostAuthority({});
  return { controlUrl, fingerprint };
}

/** The secret in a join token where other machines reach this one, else the secret alone, which is enough on this machine. */
export async function joinTokenOf(context: Context, secret: string): Promise<string> {
  if (listenerForOthers(context) === undefined) return secret;
  return formatJoinToken({ ...(await placeToJoin(context, undefined)), secret });
}

/** Where the service of this machine listens for others. */
function internalUrl(context: Context): string {
  const url = listenerForOthers(context);
  if (url === undefined)
    throw new CliError(
      'other machines cannot reach the internal listener of this one: start the service with RELEAP_INTERNAL_HOST, the address of this ' +
        'machine in the network between them, or name the listener with --control-url',
      { exitCode: EXIT.unavailable },
    );
  return url.replace(/^http:/, 'https:');
}

/** Undefined: it listens for this machine alone. */
function listenerForOthers({ terminal: { env } }: Context): string | undefined {
  const found = readBootstrap(join(releapHome(env), 'bootstrap.json'));
  const url = typeof found === 'string' ? undefined : found.internal_url;
  return url === undefined || isLoopback(url) ? undefined : url;
}
