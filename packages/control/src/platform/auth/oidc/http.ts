/** Fetches an issuer's discovery document and keys, with bounds. */
import { readBounded } from '@releap/contract/read-bounded';
import type { JSONWebKeySet } from 'jose';

export const DEADLINE_MS = 5_000;
const MAX_BYTES = 512 * 1024;
const MAX_KEYS = 100;

export type KeySet = JSONWebKeySet;

/**
 * The discovery document of an issuer, and the keys that it names.
 * @throws with a sentence for the operator's log
 */
export async function fetchKeySet(issuer: string): Promise<KeySet> {
  // OpenID Connect Discovery 1.0, section 4: a slash at the end is taken off before the path is put on.
  const place = `${issuer.replace(/\/$/, '')}/.well-known/openid-configuration`;
  const discovery = await fetchJson(place);
  if (discovery['issuer'] !== issuer) {
    throw new Error(
      `${place} is of issuer ${JSON.stringify(discovery['issuer'])}, and the configured one is ${JSON.stringify(issuer)}: they must be identical`,
    );
  }
  const address = discovery['jwks_uri'];
  if (typeof address !== 'string' || !URL.canParse(address)) throw new Error(`${place} names no jwks_uri`);
  // Keys that were fetched without TLS may have been replaced on the way.
  if (issuer.startsWith('https:') && !address.startsWith('https:')) {
    throw new Error(`${place} names a jwks_uri without TLS: ${address.slice(0, 200)}`);
  }
  const { keys } = await fetchJson(address);
  if (!Array.isArray(keys)) throw new Error(`${address} holds no keys`);
  if (keys.length > MAX_KEYS)
    throw new Error(`${address} holds ${keys.length} keys, at most ${MAX_KEYS} are read`);
  return { keys: keys.filter((key) => typeof key === 'object' && key !== null) as KeySet['keys'] };
}

async function fetchJson(url: string): Promise<Record<string, unknown>> {
  const response = await fetch(url, {
    headers: { accept: 'application/json' },
    redirect: 'error',
    signal: AbortSignal.timeout(DEADLINE_MS),
  });
  if (response.status !== 200 || response.body === null) {
    await response.body?.cancel();
    throw new Error(`${url} answered ${response.status}`);
  }
  const tooLarge = (): Error => new Error(`${url} is larger than ${MAX_BYTES} bytes`);
  const text = (await readBounded(response.body, MAX_BYTES, tooLarge)).toString('utf8');
  const value = JSON.parse(text) as unknown;
  if (typeof value !== 'object' || value === null) throw new Error(`${url} is not a JSON object`);
  return value as Record<string, unknown>;
}
