/** Generates ids and tokens; `wire/platform/ids.ts` describes their forms. */
import { createHash, randomBytes, randomUUID } from 'node:crypto';
import { base32, TOKEN_PREFIXES, tokenKind, type TokenKind } from '../wire/platform/ids.ts';

/** Random (version 4): the first characters of ids then differ, also of sandboxes that are created together. */
export function newUuid(): string {
  return randomUUID();
}

/** Default name of a sandbox. */
export function newSandboxName(): string {
  return `sandbox-${randomBytes(4).toString('hex')}`;
}

const BASE62 = '0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz';
const TOKEN_BYTES = 32;
const TOKEN_CHARS = 43;

/** A new token of 256 random bits. @param bytes 32 bytes instead of random ones */
export function newToken(kind: TokenKind, bytes: Uint8Array = randomBytes(TOKEN_BYTES)): string {
  if (bytes.length !== TOKEN_BYTES)
    throw new TypeError(`a token needs ${TOKEN_BYTES} bytes, not ${bytes.length}`);
  let rest = BigInt(`0x${Buffer.from(bytes).toString('hex')}`);
  let text = '';
  for (let i = 0; i < TOKEN_CHARS; i++) {
    text = `${BASE62.charAt(Number(rest % 62n))}${text}`;
    rest /= 62n;
  }
  return `${TOKEN_PREFIXES[kind]}${text}`;
}

/** A new token of a preview link: 128 random bits. */
export function newLinkToken(): string {
  return base32(randomBytes(16).toString('hex'));
}

/** The 32 bytes of a well-formed token. Null for a text that `newToken` does not generate. */
export function tokenBytes(token: string): Buffer | null {
  const kind = tokenKind(token);
  if (kind === null) return null;
  let number = 0n;
  for (const char of token.slice(TOKEN_PREFIXES[kind].length))
    number = number * 62n + BigInt(BASE62.indexOf(char));
  const hex = number.toString(16).padStart(2 * TOKEN_BYTES, '0');
  return hex.length > 2 * TOKEN_BYTES ? null : Buffer.from(hex, 'hex');
}

/**
 * The stored digest of a token: SHA-256, 32 bytes. A fast hash is safe because the token is random.
 */
export function tokenDigest(token: string): Buffer {
  return createHash('sha256').update(token, 'utf8').digest();
}
