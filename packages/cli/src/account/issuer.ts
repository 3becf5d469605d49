/** The issuer of tokens that a service trusts: where to sign in, and as which client. */
import type { AuthConfig } from '@releap/contract';
import { hasStatus } from '@releap/sdk';
import * as openid from 'openid-client';
import { CliError, interruptedError, toCliError } from '../cli-error.ts';
import { connect } from '../connect.ts';
import { EXIT } from '../exit-codes.ts';
import { isLoopback } from '../settings.ts';
import { type Context, printable } from '../terminal.ts';

export interface Issuer {
  settings: AuthConfig;
  configuration: openid.Configuration;
}

const ISSUER_SECS = 15;

/** What the service says about signing in, and the issuer's own discovery document. */
export async function findIssuer(context: Context, url: string): Promise<Issuer> {
  const api = connect({ url, signal: context.signal });
  let settings: AuthConfig;
  try {
    settings = await api.getAuthConfig();
  } catch (error) {
    if (hasStatus(error, 404))
      throw new CliError(`${url} has no sign-in configuration: is it a Releap service?`, {
        exitCode: EXIT.unavailable,
      });
    throw error;
  }
  const server = URL.parse(settings?.issuer);
  if (!server || typeof settings.client_id !== 'string' || !Array.isArray(settings.scopes))
    throw new CliError(`${url} has no sign-in configuration: is it a Releap service?`, {
      exitCode: EXIT.unavailable,
    });
  return { settings, configuration: await discover(context, server, settings.client_id) };
}

async function discover(context: Context, server: URL, clientId: string): Promise<openid.Configuration> {
  const plain = server.protocol === 'http:';
  if (plain ? !isLoopback(server.href) : server.protocol !== 'https:')
    throw new CliError(`the issuer ${server.href} must use https: the traffic could be intercepted`, {
      exitCode: EXIT.unavailable,
    });
  return await askIssuer(context, server.href, () =>
    openid.discovery(server, clientId, undefined, openid.None(), {
      timeout: ISSUER_SECS,
      ...(plain ? { execute: [openid.allowInsecureRequests] } : {}),
    }),
  );
}

/** The message for a refusal of the issuer, or an unreachable one. */
export async function askIssuer<T>(context: Context, issuer: string, ask: () => Promise<T>): Promise<T> {
  try {
    return await ask();
  } catch (error) {
    if (context.signal.aborted) throw interruptedError();
    if (toCliError(error) !== undefined) throw error;
    throw new CliError(`signing in at ${printable(issuer)} did not work: ${reason(error)}`, {
      exitCode: EXIT.unavailable,
      cause: error,
    });
  }
}

/** The issuer's error, or what was wrong with its response; never the data that was sent. */
export function reason(error: unknown): string {
  if (error instanceof openid.ResponseBodyError || error instanceof openid.AuthorizationResponseError) {
    const { error: code, error_description: description } = error;
    return printable(description ? `${code}: ${description}` : code).slice(0, 500);
  }
  if (error instanceof Error) {
    const nested = error.cause instanceof Error ? error.cause : undefined;
    const deepest = nested?.cause instanceof Error ? nested.cause : nested;
    return printable(deepest === undefined ? error.message : `${error.message} (${deepest.message})`).slice(
      0,
      500,
    );
  }
  return 'no reason was given';
}

/** Scope and audience of the token: some issuers need them explicitly. */
export function tokenRequest({ settings }: Issuer): { scope: string; audience: string } {
  return { scope: settings.scopes.join(' '), audience: settings.audience };
}
