/** Generates the ids and tokens of creating requests. */
import { createHmac, randomBytes } from 'node:crypto';
import { newSandboxName, newToken, newUuid, type TokenKind } from '@releap/contract';

/**
 * Generates ids, tokens and names. With a seed they are deterministic in the order of the calls: a request that is
 * retried after a crash generates the same ids and finds what the first attempt has written.
 */
export interface IdGenerator {
  uuid(): string;
  token(kind: TokenKind): string;
  sandboxName(): string;
  /** Whether an earlier attempt may have written rows. */
  readonly retried: boolean;
}

export const RANDOM: IdGenerator = {
  uuid: newUuid,
  token: (kind) => newToken(kind),
  sandboxName: newSandboxName,
  retried: false,
};

export function seeded(seed: Buffer, retried: boolean): IdGenerator {
  let calls = 0;
  const bytes = (): Buffer => createHmac('sha256', seed).update(`fresh ${calls++}`).digest();
  return {
    uuid() {
      const id = bytes().subarray(0, 16);
      // Version 4, variant 1 (RFC 9562), as those of newUuid.
      id[6] = ((id[6] ?? 0) & 0x0f) | 0x40;
      id[8] = ((id[8] ?? 0) & 0x3f) | 0x80;
      return id.toString('hex').replace(/^(.{8})(.{4})(.{4})(.{4})(.{12})$/, '$1-$2-$3-$4-$5');
    },
    token: (kind) => newToken(kind, bytes()),
    sandboxName: () => `sandbox-${bytes().subarray(0, 4).toString('hex')}`,
    retried,
  };
}

/** 16 random bytes beside each stored key. */
export const newSalt = (): Buffer => randomBytes(16);
