import { timingSafeEqual } from 'node:crypto';
import { tokenDigest } from '@releap/contract';

/** Tokens of one kind that are accepted now; read at each use, so that a file can be changed while the server runs. */
export type TokenSet = () => readonly string[];

/** What a control server accepts, a kind each. */
export interface ControlTokens {
  operator: TokenSet;
  gateway: TokenSet;
  join: TokenSet;
}

/** Whether `token` is one of the set. Takes the same time for every wrong token. */
export function isIn(accepted: TokenSet, token: string | null): boolean {
  if (token === null) return false;
  const digest = tokenDigest(token);
  let found = false;
  for (const one of accepted()) found = timingSafeEqual(tokenDigest(one), digest) || found;
  return found;
}
