/**
 * Tokens with which control servers call functions through a gateway, for invocations that no client waits for. A token is
 * a JWT (HS256) for one project. All servers mint the same one for some minutes, so that a gateway, which asks about each
 * new credential, asks once.
 */
import { isUuid } from '@releap/contract';
import { jwtVerify, SignJWT } from 'jose';
import type { ServiceKeys } from '../../platform/credentials/service-keys.ts';

const AUDIENCE = 'releap-functions';
const LIFETIME_S = 600;
/** Tokens of one project change this often; a token is valid for at least the difference to its lifetime. */
const PERIOD_S = 180;
/** How far the clocks of servers may differ. */
const CLOCK_TOLERANCE_S = 60;

export interface DispatchTokens {
  /** Valid for 7 minutes or more. @throws KeysUnavailableError */
  issue(projectId: string): Promise<string>;
  /** Undefined for any other credential, and for a token that has expired. @throws KeysUnavailableError */
  verify(token: string): Promise<{ projectId: string } | undefined>;
}

export function createDispatchTokens(
  serviceKeys: ServiceKeys,
  now: () => Date = () => new Date(),
): DispatchTokens {
  const key = async (): Promise<Buffer> => Buffer.from(await serviceKeys.get('dispatch'), 'utf8');
  /** Of the current period, by project. */
  let issued = { from: 0, tokens: new Map<string, Promise<string>>() };

  async function mint(projectId: string, from: number): Promise<string> {
    return new SignJWT()
      .setProtectedHeader({ alg: 'HS256' })
      .setAudience(AUDIENCE)
      .setSubject(projectId)
      .setIssuedAt(from)
      .setExpirationTime(from + LIFETIME_S)
      .sign(await key());
  }

  return {
    issue(projectId) {
      const seconds = Math.floor(now().getTime() / 1000);
      const from = seconds - (seconds % PERIOD_S);
      if (issued.from !== from) issued = { from, tokens: new Map() };
      const { tokens } = issued;
      const known = tokens.get(projectId);
      if (known !== undefined) return known;
      const token = mint(projectId, from);
      tokens.set(projectId, token);
      token.catch(() => tokens.delete(projectId));
      return token;
    },
    async verify(token) {
      if (token.split('.').length !== 3) return undefined;
      const secret = await key();
      const checked = await jwtVerify(token, secret, {
        algorithms: ['HS256'],
        audience: AUDIENCE,
        currentDate: now(),
        clockTolerance: CLOCK_TOLERANCE_S,
        requiredClaims: ['exp', 'sub'],
      }).catch(() => undefined);
      const subject = checked?.payload.sub;
      return subject !== undefined && isUuid(subject) ? { projectId: subject } : undefined;
    },
  };
}
