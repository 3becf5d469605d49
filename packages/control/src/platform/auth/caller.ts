import type { IncomingMessage } from 'node:http';
import { bearerToken, emailKey, readEmail, tokenKind, unauthorized, unavailable } from '@releap/contract';
import type { Database } from '@releap/database';
import type { Logger } from 'pino';
import { createVerifier, type OidcOptions, type TokenClaims } from './oidc/verifier.ts';
import { ensureUser } from './users.ts';

/** The identity of the management plane: a user, by an OIDC token, and the address. */
export interface Caller {
  userId: string;
  /** From the token; empty if it has none. */
  email: string;
  /** The normalized address for comparisons; empty if there is none or it is not verified. */
  emailKey: string;
  name: string;
  /** Of the peer that sent the request. */
  ip: string;
  userAgent: string | null;
}

export interface CallerAuthenticator {
  /**
   * @param from the address of the peer
   * @throws 401 with the reason, 503 when the token cannot be verified now
   */
  byRequest(request: IncomingMessage, from: string): Promise<Caller>;
}

/** Tokens with the groups and roles of large organizations reach some thousands. */
const TOKEN_CHARS = 8192;
const NAME_CHARS = 200;
const USER_AGENT_CHARS = 300;

export function createCallerAuthenticator(
  database: Database,
  oidc: OidcOptions | undefined,
  log: Logger,
): CallerAuthenticator {
  const verifier = oidc === undefined ? undefined : createVerifier({ ...oidc, log });
  return {
    async byRequest(request, from) {
      const token = managementToken(request);
      if (verifier === undefined || oidc === undefined) {
        throw unavailable('this server has no OIDC issuer: set RELEAP_OIDC_ISSUER', 60);
      }
      const claims = await verifier.verify(token);
      const person = personOf(claims, oidc.trustEmail ?? false);
      const user = await ensureUser(database, {
        issuer: oidc.usersOf ?? oidc.issuer,
        subject: claims.sub,
        ...person,
      });
      return {
        userId: user.id,
        email: user.email,
        emailKey: user.email_verified ? emailKey(user.email) : '',
        name: user.name,
        ip: from,
        userAgent: request.headers['user-agent']?.slice(0, USER_AGENT_CHARS) ?? null,
      };
    },
  };
}

/** The one JWT of the request. @throws 401 */
function managementToken(request: IncomingMessage): string {
  if (countHeader(request, 'authorization') > 1) {
    throw unauthorized('more than one Authorization header was sent: send one');
  }
  const header = request.headers.authorization;
  if (header === undefined) {
    throw unauthorized('missing credentials: send Authorization: Bearer <OIDC token> (rlp login gets one)');
  }
  const token = bearerToken(header, TOKEN_CHARS);
  if (token === null) {
    throw unauthorized(
      `invalid credentials: send Authorization: Bearer <OIDC token> of at most ${TOKEN_CHARS} characters`,
    );
  }
  if (tokenKind(token) !== null || /^rlp[a-z]?_/.test(token)) {
    throw unauthorized(
      "this route needs the OIDC token of a signed-in user, and not an API key or another rlp_ token: a project's keys open its sandboxes only",
    );
  }
  return token;
}

/** Node keeps the first of several headers and drops the others; a proxy in front may have read another. */
export function countHeader(request: IncomingMessage, name: string): number {
  let count = 0;
  for (let at = 0; at < request.rawHeaders.length; at += 2) {
    if (request.rawHeaders[at]?.toLowerCase() === name) count++;
  }
  return count;
}

/** The token's claims about the user; undefined for absent ones. */
function personOf(
  claims: TokenClaims,
  trustEmail: boolean,
): {
  email: string | undefined;
  emailVerified: boolean;
  name: string | undefined;
} {
  const email = typeof claims['email'] === 'string' ? (readEmail(claims['email']) ?? undefined) : undefined;
  // Some issuers send a string.
  const said = claims['email_verified'];
  const name = typeof claims['name'] === 'string' ? plainText(claims['name']) : '';
  return {
    email,
    emailVerified: said === undefined ? trustEmail : said === true || said === 'true',
    name: name === '' ? undefined : name,
  };
}

/** Sanitizes foreign text that is shown in lists. */
function plainText(text: string): string {
  const clean = text
    .slice(0, 4 * NAME_CHARS)
    .normalize('NFC')
    .toWellFormed()
    .replaceAll(/[\p{C}\p{Zl}\p{Zp}]+/gu, ' ')
    .trim();
  return clean.slice(0, NAME_CHARS).toWellFormed().trim();
}
