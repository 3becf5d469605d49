/** `rlp login|logout`. */
import * as openid from 'openid-client';
import { hasStatus } from '@releap/sdk';
import { changeCredentials, readCredentials, type Session } from '../account/credentials.ts';
import { findIssuer } from '../account/issuer.ts';
import { openAccount } from '../account/session.ts';
import { signInWithBrowser, signInWithDevice } from '../account/sign-in.ts';
import { connect } from '../connect.ts';
import { EXIT } from '../exit-codes.ts';
import { findService } from '../settings.ts';
import { type Context, printable, printJson, remark, show } from '../terminal.ts';

/** A new sign-in of the same user keeps the project in use. */
export async function login(context: Context, options: { device?: boolean }): Promise<number> {
  const url = findService(context);
  const issuer = await findIssuer(context, url);
  const tokens = await (options.device ? signInWithDevice : signInWithBrowser)(context, issuer);
  const { id, email } = await connect({ url, credential: tokens.token, signal: context.signal }).getMe();
  await changeCredentials(context.terminal.env, (credentials) => {
    const before = credentials.services[url];
    const { project, keys } = before?.user.id === id ? before : ({} as Partial<Session>);
    credentials.services[url] = {
      issuer: issuer.settings.issuer,
      client_id: issuer.settings.client_id,
      ...tokens,
      user: { id, email },
      ...(project === undefined ? {} : { project }),
      ...(keys === undefined ? {} : { keys }),
    };
    credentials.current = url;
  });
  return show(
    context,
    { url, user: { id, email } },
    () => `signed in to ${url} as ${printable(email || id)}`,
  );
}

/** Forgets the tokens, and revokes them and the keys that were made for this machine, as far as that can be done. */
export async function logout(context: Context): Promise<number> {
  const url = findService(context);
  const { env } = context.terminal;
  const session = readCredentials(env).services[url];
  if (session !== undefined) {
    const problem = await revokeAll(context, url, session);
    if (problem !== undefined)
      context.terminal.stderr.write(`rlp: signed out here, but not all was revoked: ${problem}\n`);
    await changeCredentials(env, (credentials) => {
      delete credentials.services[url];
      if (credentials.current === url) delete credentials.current;
    });
  }
  if (context.options.json) printJson(context, { url, signed_out: session !== undefined });
  else remark(context, session ? `signed out of ${url}` : `not signed in to ${url}`);
  return EXIT.ok;
}

/** The obstacle, if any. */
async function revokeAll(context: Context, url: string, before: Session): Promise<string | undefined> {
  try {
    const keys = Object.values(before.keys ?? {});
    if (keys.length > 0) {
      const account = await openAccount(context);
      for (const { id } of keys) await account.api.revokeApiKey({ params: { id } }).catch(ifStillThere);
    }
    const refreshToken = readCredentials(context.terminal.env).services[url]?.refresh_token;
    if (refreshToken === undefined) return undefined;
    const { configuration, settings } = await findIssuer(context, url);
    if (settings.issuer !== before.issuer || !configuration.serverMetadata().revocation_endpoint)
      return undefined;
    await openid.tokenRevocation(configuration, refreshToken, { token_type_hint: 'refresh_token' });
    return undefined;
  } catch (error) {
    if (context.signal.aborted) throw error;
    return error instanceof Error ? printable(error.message) : 'for no reason that was given';
  }
}

/** The key of a deleted project is invalid too. */
function ifStillThere(error: unknown): void {
  if (!hasStatus(error, 404)) throw error;
}
