import { createHash } from 'node:crypto';
import { ApiError, unauthorized, unavailable } from '@releap/contract';
import { createLocalJWKSet, errors, jwtVerify, type JWTPayload, type JWTVerifyGetKey } from 'jose';
import type { Logger } from 'pino';
import { KeyCache, type KnownKeys } from './key-cache.ts';

export interface OidcOptions {
  /** Exactly as tokens and the discovery document have it. */
  issuer: string;
  audience: string;
  /** Public client of the CLI; `GET /auth/config` returns it. */
  clientId?: string;
  scopes?: readonly string[];
  /**
   * The issuer's name in the users table; default: the issuer's URL. For an issuer whose URL changes between starts.
   */
  usersOf?: string;
  /**
   * Treats e-mail addresses of tokens without `email_verified` as verified. Only for an issuer that verifies every address
   * or lets no user choose theirs: a user who can set another person's address can accept that person's invitations.
   */
  trustEmail?: boolean;
  /** Shortest time between two requests to the issuer; 30 s. */
  coolDownMs?: number;
  /** Maximum age of the keys; 10 min. */
  maxKeyAgeMs?: number;
}

/** The claims of a valid token. */
export interface TokenClaims extends JWTPayload {
  sub: string;
}

export interface OidcVerifier {
  /** @throws 401 with the reason, 503 when the issuer's keys are unavailable */
  verify(token: string): Promise<TokenClaims>;
}

/** Asymmetric signatures only: HS256 and `none` could be forged with the public key or without a key. */
const ALGORITHMS = [
  'RS256',
  'RS384',
  'RS512',
  'PS256',
  'PS384',
  'PS512',
  'ES256',
  'ES384',
  'ES512',
  'EdDSA',
  'Ed25519',
];
/** RFC 9068 has a type for access tokens; most issuers write JWT or nothing. A logout or DPoP token is none of these. */
const TYPES = new Set(['jwt', 'at+jwt', 'application/at+jwt']);
const CLOCK_SKEW_S = 60;
const COOL_DOWN_MS = 30_000;
const MAX_KEY_AGE_MS = 600_000;
const SUBJECT_CHARS = 255;
/** A verification costs a millisecond. A valid token stays so until it expires or the issuer's keys change. */
const VERIFIED_MS = 60_000;
const VERIFIED_ENTRIES = 5_000;

export function createVerifier(options: OidcOptions & { log: Logger }): OidcVerifier {
  const { issuer, audience, log } = options;
  const cache = new KeyCache({
    issuer,
    log,
    coolDownMs: options.coolDownMs ?? COOL_DOWN_MS,
    maxAgeMs: options.maxKeyAgeMs ?? MAX_KEY_AGE_MS,
  });
  const away = (): ApiError =>
    unavailable('the keys of the OIDC issuer are temporarily unavailable: try again', 5);

  let local: { version: number; keys: JWTVerifyGetKey } | undefined;
  const keysOf = (known: KnownKeys): JWTVerifyGetKey => {
    if (known.set === null) throw away();
    if (local?.version !== known.version) {
      local = {
        version: known.version,
        keys: createLocalJWKSet(known.set),
      };
    }
    return local.keys;
  };

  async function check(token: string, key: JWTVerifyGetKey): Promise<JWTPayload> {
    const limits = {
      issuer,
      audience,
      algorithms: ALGORITHMS,
      clockTolerance: CLOCK_SKEW_S,
      requiredClaims: ['exp', 'sub'],
    };
    try {
      return typed(await jwtVerify(token, key, limits));
    } catch (error) {
      if (!(error instanceof errors.JWKSMultipleMatchingKeys)) throw error;
      // The token names no key, and several keys of the issuer match.
      for await (const candidate of error) {
        try {
          return typed(await jwtVerify(token, candidate, limits));
        } catch (other) {
          if (!(other instanceof errors.JWSSignatureVerificationFailed)) throw other;
        }
      }
      throw new errors.JWSSignatureVerificationFailed();
    }
  }

  const verified = new Map<string, { claims: TokenClaims; version: number; until: number }>();
  const remember = (digest: string, claims: TokenClaims, version: number): TokenClaims => {
    if (verified.size >= VERIFIED_ENTRIES) verified.clear();
    const expires = ((claims.exp ?? 0) + CLOCK_SKEW_S) * 1000;
    verified.set(digest, { claims, version, until: Math.min(Date.now() + VERIFIED_MS, expires) });
    return claims;
  };

  return {
    async verify(token) {
      try {
        let payload: JWTPayload;
        const known = await cache.known();
        const digest = createHash('sha256').update(token).digest('base64');
        const before = verified.get(digest);
        if (before !== undefined && before.version === known.version && before.until > Date.now()) {
          return before.claims;
        }
        let { version } = known;
        try {
          payload = await check(token, keysOf(known));
        } catch (error) {
          if (!(error instanceof errors.JWKSNoMatchingKey)) throw error;
          // The issuer may have a new key, which is unknown while it is unavailable.
          const renewed = await cache.renew();
          if (renewed.version === known.version) throw renewed.failed ? away() : error;
          payload = await check(token, keysOf(renewed));
          version = renewed.version;
        }
        const { sub } = payload;
        if (typeof sub !== 'string' || sub === '' || sub.length > SUBJECT_CHARS || sub.includes('\0')) {
          throw invalidToken(`its sub is not a string of 1 to ${SUBJECT_CHARS} characters`);
        }
        return remember(digest, { ...payload, sub }, version);
      } catch (error) {
        if (error instanceof ApiError) throw error;
        throw invalidToken(reason(error, issuer, audience));
      }
    },
  };
}

function typed({
  payload,
  protectedHeader,
}: {
  payload: JWTPayload;
  protectedHeader: { typ?: string };
}): JWTPayload {
  const { typ } = protectedHeader;
  if (typ !== undefined && !TYPES.has(typ.toLowerCase())) {
    throw invalidToken('its typ is neither JWT nor at+jwt');
  }
  return payload;
}

/** RFC 6750, section 3.1. */
function invalidToken(why: string): ApiError {
  const refusal = unauthorized(`the OIDC token is not valid: ${why}`);
  refusal.headers['www-authenticate'] = 'Bearer error="invalid_token"';
  return refusal;
}

/** Our own messages: those of the library may quote the token. */
function reason(error: unknown, issuer: string, audience: string): string {
  if (error instanceof errors.JWTExpired) return 'it has expired: sign in again';
  if (error instanceof errors.JWTClaimValidationFailed) {
    switch (error.claim) {
      case 'iss':
        return `its issuer must be ${issuer}`;
      case 'aud':
        return `its audience must be ${audience}`;
      case 'nbf':
        return 'it is not valid yet';
      default:
        return `its claim ${error.claim.slice(0, 40)} is missing or not valid`;
    }
  }
  if (error instanceof errors.JOSEAlgNotAllowed)
    return 'its algorithm is not allowed: RS, PS, ES and EdDSA signatures are';
  if (error instanceof errors.JWKSNoMatchingKey)
    return 'it is signed with a key that the issuer does not have';
  if (error instanceof errors.JWSSignatureVerificationFailed) return 'its signature does not match';
  return 'it is not a signed JWT';
}
