import { DATA_TOKEN_SKEW_MS } from '@releap/contract';
import { jwtVerify } from 'jose';
import type { ControlIdentity } from './control-identity.ts';

/** Whether this token of the control plane opens this sandbox on this runner now. */
export type VerifyDataToken = (token: string, sandboxUuid: string) => Promise<boolean>;

/** How often an unknown key name makes the runner ask the control plane for its key. */
const REFETCH_MS = 1_000;
/** Gateways use one token for all requests to a sandbox, until it expires after a minute. */
const REMEMBERED_MAX = 1_000;

/** A token whose signature was verified. */
interface Verified {
  sandboxUuid: string;
  /** Unix time in milliseconds. */
  expiresAt: number;
  keyId: string;
  key: Uint8Array;
}

export function dataTokenVerifier(
  identity: Pick<ControlIdentity, 'runnerId' | 'knownKey' | 'fetchKey'>,
): VerifyDataToken {
  // A client that invents key names must not make the runner ask for each of them.
  let nextFetch = 0;
  /** Least recently verified first. A signature takes another thread, for which each request would wait. */
  const remembered = new Map<string, Verified>();

  const keyOf = async (keyId: string): Promise<Uint8Array> => {
    const known = identity.knownKey(keyId);
    if (known !== undefined) return known;
    if (performance.now() < nextFetch) throw new Error('unknown key');
    nextFetch = performance.now() + REFETCH_MS;
    const key = await identity.fetchKey();
    if (key.id !== keyId) throw new Error('unknown key');
    return key.key;
  };
  const verify = async (token: string, sandboxUuid: string): Promise<Verified> => {
    let keyId = '';
    let key: Uint8Array = new Uint8Array();
    const { payload } = await jwtVerify(
      token,
      async ({ kid = '' }) => {
        keyId = kid;
        key = await keyOf(kid);
        return key;
      },
      {
        algorithms: ['HS256'],
        audience: identity.runnerId,
        subject: sandboxUuid,
        requiredClaims: ['exp', 'aud', 'sub'],
        clockTolerance: DATA_TOKEN_SKEW_MS / 1000,
      },
    );
    return { sandboxUuid, expiresAt: Number(payload.exp) * 1000 + DATA_TOKEN_SKEW_MS, keyId, key };
  };
  return async (token, sandboxUuid) => {
    const known = remembered.get(token);
    if (known !== undefined) {
      const isValid = Date.now() < known.expiresAt && identity.knownKey(known.keyId) === known.key;
      if (isValid) return known.sandboxUuid === sandboxUuid;
      remembered.delete(token);
    }
    try {
      remembered.set(token, await verify(token, sandboxUuid));
    } catch {
      return false;
    }
    for (const oldest of remembered.keys()) {
      if (remembered.size <= REMEMBERED_MAX) break;
      remembered.delete(oldest);
    }
    return true;
  };
}
