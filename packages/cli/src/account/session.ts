/** The signed-in user's calls on the management plane. */
import type { Api } from '@releap/sdk';
import { CliError } from '../cli-error.ts';
import { connect } from '../connect.ts';
import { EXIT } from '../exit-codes.ts';
import { findService } from '../settings.ts';
import type { Context } from '../terminal.ts';
import { changeCredentials, readCredentials, type Session } from './credentials.ts';

/** A token that ends so soon may end on the way. */
const SPARE_MS = 30_000;

export interface Account {
  api: Api;
  url: string;
  session: Session;
}

/** Of the service that the options, the environment or the last sign-in say. */
export async function openAccount(context: Context): Promise<Account> {
  const url = findService(context);
  const session = await freshSession(context, url);
  const api = connect({ url, credential: session.token, hint401: SIGN_IN, signal: context.signal });
  return { api, url, session };
}

const SIGN_IN = 'rlp login signs in again';

async function freshSession(context: Context, url: string): Promise<Session> {
  const { env } = context.terminal;
  const known = readCredentials(env).services[url];
  if (known === undefined)
    throw new CliError(`not signed in to ${url}: run rlp login`, { exitCode: EXIT.unavailable });
  if (!endsSoon(known)) return known;
  return await changeCredentials(env, async ({ services }) => {
    // Another rlp may have signed out, or refreshed it, while this one waited for its turn.
    const session = services[url];
    if (session?.refresh_token === undefined)
      throw new CliError(`the sign-in to ${url} has ended: ${SIGN_IN}`, { exitCode: EXIT.unavailable });
    if (!endsSoon(session)) return session;
    // Loaded only here: it would slow the start of every other command.
    const [{ findIssuer }, { refreshTokens }] = await Promise.all([
      import('./issuer.ts'),
      import('./sign-in.ts'),
    ]);
    const issuer = await findIssuer(context, url);
    // A refresh token is sent only to the issuer that gave it.
    if (issuer.settings.issuer !== session.issuer || issuer.settings.client_id !== session.client_id)
      throw new CliError(`${url} has another issuer than when you signed in: ${SIGN_IN}`, {
        exitCode: EXIT.unavailable,
      });
    return Object.assign(session, await refreshTokens(context, issuer, session.refresh_token));
  });
}

function endsSoon({ expires_at }: Session): boolean {
  // Also what cannot be read.
  return !(Date.parse(expires_at) - Date.now() > SPARE_MS);
}
