/** Signing in: in a browser of this machine, or with a code that is typed in elsewhere. */
import * as openid from 'openid-client';
import { CliError } from '../cli-error.ts';
import { EXIT } from '../exit-codes.ts';
import { openBrowser } from '../output/open-browser.ts';
import { Spinner } from '../output/spinner.ts';
import { type Context, printable } from '../terminal.ts';
import { openCallback } from './callback.ts';
import { askIssuer, type Issuer, tokenRequest } from './issuer.ts';
import { chooseTokens, type Tokens } from './tokens.ts';

/** How long people take. */
const SIGN_IN_MS = 10 * 60_000;

/** Authorization code with PKCE, and a loopback address to come back to (RFC 8252). */
export async function signInWithBrowser(context: Context, issuer: Issuer): Promise<Tokens> {
  const { configuration, settings } = issuer;
  await using callback = await openCallback();
  const verifier = openid.randomPKCECodeVerifier();
  const [state, nonce] = [openid.randomState(), openid.randomNonce()];
  const address = openid.buildAuthorizationUrl(configuration, {
    ...tokenRequest(issuer),
    redirect_uri: callback.uri,
    code_challenge: await openid.calculatePKCECodeChallenge(verifier),
    code_challenge_method: 'S256',
    state,
    nonce,
  });
  say(context, `To sign in, open this address in a browser of this machine:\n\n  ${address.href}\n`);
  say(context, 'On another machine: rlp login --device');
  openBrowser(context, address.href);
  using _spinner = new Spinner(context, 'waiting for the browser');
  const returned = await callback.returned(state, { deadlineMs: SIGN_IN_MS, signal: context.signal });
  const answer = await askIssuer(context, settings.issuer, () =>
    openid.authorizationCodeGrant(configuration, returned, {
      pkceCodeVerifier: verifier,
      expectedState: state,
      expectedNonce: nonce,
      idTokenExpected: true,
    }),
  );
  return chooseTokens(answer, settings.audience);
}

/** Device code (RFC 8628): for machines without a browser. */
export async function signInWithDevice(context: Context, issuer: Issuer): Promise<Tokens> {
  const { configuration, settings } = issuer;
  if (configuration.serverMetadata().device_authorization_endpoint === undefined)
    throw new CliError(
      `the issuer ${printable(settings.issuer)} does not support device codes: omit --device`,
      {
        exitCode: EXIT.unavailable,
      },
    );
  const answer = await askIssuer(context, settings.issuer, async () => {
    const device = await openid.initiateDeviceAuthorization(configuration, tokenRequest(issuer));
    const { user_code: code, verification_uri: where, verification_uri_complete: complete } = device;
    say(context, `To sign in, open ${printable(where)} in any browser and enter\n\n  ${printable(code)}\n`);
    if (complete) say(context, `or open ${printable(complete)}`);
    using _spinner = new Spinner(context, 'waiting for the sign-in');
    return await openid.pollDeviceAuthorizationGrant(configuration, device, undefined, {
      signal: AbortSignal.any([context.signal, AbortSignal.timeout(SIGN_IN_MS)]),
    });
  });
  return chooseTokens(answer, settings.audience);
}

/** New tokens in exchange for a refresh token. Throws 401 when the issuer does not take it any more. */
export async function refreshTokens(context: Context, issuer: Issuer, refreshToken: string): Promise<Tokens> {
  const { configuration, settings } = issuer;
  const answer = await askIssuer(context, settings.issuer, async () => {
    try {
      return await openid.refreshTokenGrant(configuration, refreshToken);
    } catch (error) {
      if (!(error instanceof openid.ResponseBodyError) || error.error !== 'invalid_grant') throw error;
      throw new CliError('the sign-in has ended: rlp login signs in again', {
        exitCode: EXIT.unavailable,
        status: 401,
        cause: error,
      });
    }
  });
  return { refresh_token: refreshToken, ...chooseTokens(answer, settings.audience) };
}

/** Needed for the sign-in, so it is printed also without a terminal. */
function say(context: Context, text: string): void {
  context.terminal.stderr.write(`${text}\n`);
}
