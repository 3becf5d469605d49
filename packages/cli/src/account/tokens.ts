/** Maps an issuer's response to the stored tokens. */
import type { TokenEndpointResponse } from 'openid-client';
import { CliError } from '../cli-error.ts';
import { EXIT } from '../exit-codes.ts';

export interface Tokens {
  token: string;
  expires_at: string;
  refresh_token?: string;
}

interface Claims {
  aud?: string | string[];
  exp?: number | undefined;
}

const DEFAULT_LIFE_SECS = 300;

/**
 * The token that is made out to the service: most issuers give access tokens that are, some only ID tokens. The
 * service judges it; here is only chosen.
 */
export function chooseTokens(answer: TokenEndpointResponse, audience: string, now = Date.now()): Tokens {
  const candidates = [answer.access_token, answer.id_token].filter((token) => token !== undefined);
  const told = candidates.map((token) => ({ token, claims: claimsOf(token) }));
  const chosen =
    told.find(({ claims }) => [claims?.aud].flat().includes(audience)) ??
    told.find(({ claims }) => claims !== undefined);
  if (chosen?.claims === undefined)
    throw new CliError(
      `the issuer gives no token that a service can read: it must be set to make out access tokens (JWT) for ${audience}`,
      { exitCode: EXIT.unavailable },
    );
  const end = chosen.claims.exp ?? now / 1000 + (answer.expires_in ?? DEFAULT_LIFE_SECS);
  return {
    token: chosen.token,
    expires_at: new Date(end * 1000).toISOString(),
    ...(answer.refresh_token === undefined ? {} : { refresh_token: answer.refresh_token }),
  };
}

/** Not verified, which is up to the service. Undefined if it is not a JWT. */
function claimsOf(token: string): Claims | undefined {
  const parts = token.split('.');
  if (parts.length !== 3) return undefined;
  try {
    const claims = JSON.parse(Buffer.from(parts[1] ?? '', 'base64url').toString('utf8')) as Claims | null;
    if (typeof claims !== 'object' || claims === null) return undefined;
    return typeof claims.exp === 'number' && Number.isFinite(claims.exp)
      ? claims
      : { ...claims, exp: undefined };
  } catch {
    return undefined;
  }
}
