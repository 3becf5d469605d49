import { timingSafeEqual } from 'node:crypto';
import { tokenDigest } from '@releap/contract';

/** Accepted tokens of one kind; read at each use, so that the file can be changed while the server runs. */
export type TokenSet = () => readonly string[];

/** The tokens that a control server accepts, by kind. */
export interface ControlTokens {
  operator: TokenSet;
  /** For `/metrics` alone. None if absent. */
  metrics?: TokenSet;
  gateway: TokenSet;
  join: TokenSet;
}

/** Whether `token` is in the set. Takes the same time for every wrong token. */
export function isIn(accepted: TokenSet, token: string | null): boolean {
  if (token === null) return false;
  const digest = tokenDigest(token);
  let found = false;
  for (const one of accepted()) found = timingSafeEqual(tokenDigest(one), digest) || found;
  return found;
}
