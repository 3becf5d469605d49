import { interactionPolicy, Provider, type Configuration, type KoaContextWithOIDC } from 'oidc-provider';
import type { Accounts } from './accounts.ts';
import { createMemory } from './adapter.ts';
import type { IdentityKeys } from './keys.ts';
import { codePage, confirmPage, messagePage, PAGE_HEADERS } from './pages.ts';

export const SIGN_IN_PATH = '/sign-in';
const DEVICE_GRANT = 'urn:ietf:params:oauth:grant-type:device_code';
const SCOPES = ['openid', 'profile', 'email', 'offline_access'];
/** Access tokens are for this API unless a client asks for another, and there is none. */
const API = 'urn:releap:api';
const HOUR_S = 3_600;
const DAY_S = 24 * HOUR_S;

/**
 * Public clients: they cannot keep a secret. Their type allows redirects to any port of this machine (RFC 8252, section
 * 7.3), and only there.
 */
const CLIENTS = [
  {
    client_id: 'releap-cli',
    client_name: 'the Releap command line',
    redirect_uris: loopback('/callback'),
    grant_types: ['authorization_code', 'refresh_token', DEVICE_GRANT],
  },
  {
    client_id: 'releap-dashboard',
    client_name: 'the Releap dashboard',
    redirect_uris: loopback('/auth/callback'),
    post_logout_redirect_uris: loopback('/'),
    grant_types: ['authorization_code', 'refresh_token'],
  },
].map((client) => ({
  ...client,
  application_type: 'native' as const,
  response_types: ['code' as const],
  token_endpoint_auth_method: 'none' as const,
}));

function loopback(path: string): string[] {
  return ['127.0.0.1', '[::1]', 'localhost'].map((host) => `http://${host}${path}`);
}

export function isLoopbackOrigin(origin: string): boolean {
  return /^https?:\/\/(127\.0\.0\.1|\[::1\]|localhost)(:\d{1,5})?$/.test(origin);
}

export interface ProviderOptions {
  issuer: string;
  audience: string;
  keys: IdentityKeys;
  accounts: Accounts;
  onError: (error: Error) => void;
}

/** The OpenID provider itself: device code, and authorization code with PKCE, for the clients above. */
export function createProvider({ issuer, audience, keys, accounts, onError }: ProviderOptions): Provider {
  const policy = interactionPolicy.base();
  // Both clients are first-party and act for the user of this machine: no consent is needed.
  policy.get('consent')?.checks.remove('native_client_prompt');

  const show = (ctx: KoaContextWithOIDC, html: string): void => {
    for (const [name, value] of Object.entries(PAGE_HEADERS)) ctx.set(name, value);
    ctx.body = html;
  };

  const configuration: Configuration = {
    adapter: createMemory(),
    clients: CLIENTS,
    jwks: { keys: [keys.signing] },
    cookies: { keys: [keys.cookies], short: { sameSite: 'lax' }, long: { sameSite: 'lax' } },
    findAccount: (_ctx, id) => accounts.find(id),
    claims: { openid: ['sub'], email: ['email', 'email_verified'], profile: ['name'] },
    conformIdTokenClaims: false,
    extraTokenClaims: (_ctx, token) => {
      const person = 'accountId' in token ? accounts.find(token.accountId)?.person : undefined;
      return person && { email: person.email, email_verified: true, name: person.name };
    },
    scopes: SCOPES,
    pkce: { required: () => true },
    clientBasedCORS: (_ctx, origin) => isLoopbackOrigin(origin),
    issueRefreshToken: async (_ctx, client) => client.grantTypeAllowed('refresh_token'),
    interactions: { policy, url: (_ctx, interaction) => `${SIGN_IN_PATH}/${interaction.uid}` },
    async loadExistingGrant(ctx) {
      const { client, session, provider, result } = ctx.oidc;
      const clientId = client?.clientId ?? '';
      const grantId = result?.consent?.grantId ?? session?.grantIdFor(clientId);
      const known = grantId === undefined ? undefined : await provider.Grant.find(grantId);
      if (known !== undefined) return known;
      const grant = new provider.Grant({ clientId, accountId: session?.accountId ?? '' });
      grant.addOIDCScope(SCOPES.join(' '));
      grant.addResourceScope(API, SCOPES.join(' '));
      await grant.save();
      return grant;
    },
    features: {
      devInteractions: { enabled: false },
      revocation: { enabled: true },
      resourceIndicators: {
        enabled: true,
        defaultResource: () => API,
        useGrantedResource: () => true,
        getResourceServerInfo: () => ({
          audience,
          scope: SCOPES.join(' '),
          accessTokenFormat: 'jwt',
          accessTokenTTL: 12 * HOUR_S,
          jwt: { sign: { alg: 'RS256' } },
        }),
      },
      deviceFlow: {
        enabled: true,
        userCodeInputSource: (ctx, form, _out, error) => {
          show(ctx, codePage(form, codeProblem(error)));
        },
        userCodeConfirmSource: (ctx, form, client, _device, code) => {
          show(ctx, confirmPage(form, client.clientName ?? client.clientId, code));
        },
        successSource: (ctx) => {
          show(ctx, messagePage('You are signed in', 'Close this page and go back to your terminal.'));
        },
      },
      rpInitiatedLogout: {
        enabled: true,
        logoutSource: (ctx, form) => {
          const button =
            '<button type="submit" form="op.logoutForm" name="logout" value="yes">Sign out</button>';
          show(ctx, messagePage('Sign out?', '').replace('<p></p>', `${form}${button}`));
        },
        postLogoutSuccessSource: (ctx) => {
          show(ctx, messagePage('You are signed out', 'Close this page.'));
        },
      },
    },
    renderError: (ctx, out) => {
      show(ctx, messagePage('This did not work', `${out.error}: ${out.error_description ?? ''}`));
    },
    ttl: {
      AccessToken: 12 * HOUR_S,
      AuthorizationCode: 60,
      DeviceCode: 600,
      Grant: 30 * DAY_S,
      IdToken: HOUR_S,
      Interaction: HOUR_S,
      RefreshToken: 30 * DAY_S,
      Session: DAY_S,
    },
  };
  const provider = new Provider(issuer, configuration);
  provider.on('server_error', (_ctx, error) => onError(error));
  return provider;
}

function codeProblem(error: Error | undefined): string | undefined {
  if (error === undefined) return undefined;
  if (error.name === 'AbortedError') return 'The sign-in was cancelled. To start again, type a new code.';
  return 'This code is unknown or has expired. Type it as your terminal shows it.';
}
