import { DATA_TOKEN_SKEW_MS } from '@releap/contract';
import { jwtVerify } from 'jose';
import type { ControlIdentity } from './control-identity.ts';

/** Whether this token of the control plane opens this sandbox on this runner now. */
export type VerifyDataToken = (token: string, sandboxUuid: string) => Promise<boolean>;

/** How often an unknown key name makes the runner ask the control plane for its key. */
const REFETCH_MS = 1_000;

export function dataTokenVerifier(
  identity: Pick<ControlIdentity, 'runnerId' | 'knownKey' | 'fetchKey'>,
): VerifyDataToken {
  // A client that invents key names must not make the runner ask for each of them.
  let nextFetch = 0;
  return async (token, sandboxUuid) => {
    try {
      await jwtVerify(
        token,
        async ({ kid = '' }) => {
          const known = identity.knownKey(kid);
          if (known !== undefined) return known;
          if (performance.now() < nextFetch) throw new Error('unknown key');
          nextFetch = performance.now() + REFETCH_MS;
          const key = await identity.fetchKey();
          if (key.id !== kid) throw new Error('unknown key');
          return key.key;
        },
        {
          algorithms: ['HS256'],
          audience: identity.runnerId,
          subject: sandboxUuid,
          requiredClaims: ['exp', 'aud', 'sub'],
          clockTolerance: DATA_TOKEN_SKEW_MS / 1000,
        },
      );
      return true;
    } catch {
      return false;
    }
  };
}
