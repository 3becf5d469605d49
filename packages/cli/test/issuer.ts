/** An OpenID Connect issuer: authorization code with PKCE, device code, refresh tokens that are good once. */
import { createHash, generateKeyPairSync, type KeyObject, randomUUID, sign } from 'node:crypto';
import { createServer, type IncomingMessage, type ServerResponse } from 'node:http';
import type { AddressInfo } from 'node:net';
import { send } from './service-http.ts';

export interface TestUser {
  id: string;
  email: string;
  name: string;
}

export interface TestIssuer extends AsyncDisposable {
  url: string;
  /** Who signs in next. */
  user: TestUser;
  /** Access tokens that are good, and whose. */
  tokens: Map<string, TestUser>;
  refreshTokens: Map<string, TestUser>;
  /** How long tokens are good. */
  lifeSecs: number;
  /** What becomes of the next device codes: each poll takes one; none left is `granted`. */
  polls: string[];
  /** Makes sign-ins in the browser fail. */
  refuse: string | undefined;
  /** Access tokens that no service can read. */
  opaque: boolean;
  /** Grants and other calls, in order. */
  calls: string[];
  authorizations: URLSearchParams[];
}

export const CLIENT = 'releap-cli';
export const AUDIENCE = 'releap';

export function testUser(name: string): TestUser {
  return { id: randomUUID(), email: `${name}@example.com`, name };
}

interface Code {
  user: TestUser;
  challenge: string;
  redirect: string;
  nonce: string;
}

export async function startIssuer(): Promise<TestIssuer> {
  const { privateKey, publicKey } = generateKeyPairSync('rsa', { modulusLength: 2048 });
  const codes = new Map<string, Code>();
  const server = createServer((request, response) => {
    answer(request, response).catch((error: unknown) => send(response, 500, { error: String(error) }));
  });
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
  const issuer: TestIssuer = {
    url: `http://127.0.0.1:${(server.address() as AddressInfo).port}`,
    user: testUser('ada'),
    tokens: new Map(),
    refreshTokens: new Map(),
    lifeSecs: 3600,
    polls: [],
    refuse: undefined,
    opaque: false,
    calls: [],
    authorizations: [],
    [Symbol.asyncDispose]: async () => {
      server.closeAllConnections();
      await new Promise((resolve) => server.close(resolve));
    },
  };

  async function answer(request: IncomingMessage, response: ServerResponse): Promise<void> {
    const url = new URL(request.url ?? '/', issuer.url);
    switch (url.pathname) {
      case '/.well-known/openid-configuration':
        return send(response, 200, {
          issuer: issuer.url,
          authorization_endpoint: `${issuer.url}/authorize`,
          token_endpoint: `${issuer.url}/token`,
          device_authorization_endpoint: `${issuer.url}/device`,
          revocation_endpoint: `${issuer.url}/revoke`,
          jwks_uri: `${issuer.url}/jwks`,
          response_types_supported: ['code'],
          subject_types_supported: ['public'],
          id_token_signing_alg_values_supported: ['RS256'],
        });
      case '/jwks':
        return send(response, 200, {
          keys: [{ ...publicKey.export({ format: 'jwk' }), kid: 'one', alg: 'RS256' }],
        });
      case '/authorize':
        return authorize(url.searchParams, response);
      default:
        return form(url.pathname, new URLSearchParams(await text(request)), response);
    }
  }

  function authorize(query: URLSearchParams, response: ServerResponse): void {
    issuer.authorizations.push(query);
    const back = new URL(query.get('redirect_uri') ?? '');
    back.searchParams.set('state', query.get('state') ?? '');
    if (issuer.refuse !== undefined) back.searchParams.set('error', issuer.refuse);
    else {
      const code = randomUUID();
      back.searchParams.set('code', code);
      codes.set(code, {
        user: issuer.user,
        challenge: query.get('code_challenge') ?? '',
        redirect: query.get('redirect_uri') ?? '',
        nonce: query.get('nonce') ?? '',
      });
    }
    response.writeHead(302, { location: back.href }).end();
  }

  function form(path: string, body: URLSearchParams, response: ServerResponse): void {
    const refused = (error: string): void => send(response, 400, { error });
    if (body.get('client_id') !== CLIENT) return refused('invalid_client');
    issuer.calls.push(body.get('grant_type') ?? path);
    if (path === '/revoke') {
      issuer.refreshTokens.delete(body.get('token') ?? '');
      return send(response, 200, {});
    }
    if (path === '/device')
      return send(response, 200, {
        device_code: 'device',
        user_code: 'WDJB-MJHT',
        verification_uri: `${issuer.url}/activate`,
        verification_uri_complete: `${issuer.url}/activate?code=WDJB-MJHT`,
        expires_in: 600,
        interval: 0.05,
      });
    switch (body.get('grant_type')) {
      case 'authorization_code': {
        const code = codes.get(body.get('code') ?? '');
        codes.delete(body.get('code') ?? '');
        const challenge = createHash('sha256')
          .update(body.get('code_verifier') ?? '')
          .digest('base64url');
        if (code?.challenge !== challenge || code.redirect !== body.get('redirect_uri'))
          return refused('invalid_grant');
        return send(response, 200, tokensFor(code.user, code.nonce));
      }
      case 'urn:ietf:params:oauth:grant-type:device_code': {
        const poll = issuer.polls.shift();
        return poll === undefined ? send(response, 200, tokensFor(issuer.user)) : refused(poll);
      }
      case 'refresh_token': {
        const old = body.get('refresh_token') ?? '';
        const user = issuer.refreshTokens.get(old);
        issuer.refreshTokens.delete(old);
        return user === undefined ? refused('invalid_grant') : send(response, 200, tokensFor(user));
      }
      default:
        return refused('unsupported_grant_type');
    }
  }

  function tokensFor(user: TestUser, nonce?: string): Record<string, unknown> {
    const iat = Math.floor(Date.now() / 1000);
    const claims = { iss: issuer.url, sub: user.id, iat, exp: iat + issuer.lifeSecs };
    const jti = randomUUID();
    const access = issuer.opaque ? jti : jwt(privateKey, { ...claims, aud: AUDIENCE, jti });
    const refresh = `refresh-${randomUUID()}`;
    issuer.tokens.set(access, user);
    issuer.refreshTokens.set(refresh, user);
    return {
      token_type: 'Bearer',
      access_token: access,
      expires_in: issuer.lifeSecs,
      refresh_token: refresh,
      id_token: jwt(privateKey, { ...claims, aud: CLIENT, ...(nonce ? { nonce } : {}) }),
    };
  }

  return issuer;
}

function jwt(key: KeyObject, claims: object): string {
  const part = (value: object): string => Buffer.from(JSON.stringify(value)).toString('base64url');
  const signed = `${part({ alg: 'RS256', kid: 'one' })}.${part(claims)}`;
  return `${signed}.${sign('sha256', Buffer.from(signed), key).toString('base64url')}`;
}

async function text(request: IncomingMessage): Promise<string> {
  let all = '';
  for await (const chunk of request as AsyncIterable<Buffer>) all += chunk.toString('utf8');
  return all;
}
