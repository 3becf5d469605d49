/**
 * Ids and tokens on the wire: their forms, and strict parsers.
 *
 * A sandbox id is `<region slug>-<26 characters>`: its UUID as one big-endian number in base 32 (RFC 4648
 * alphabet, lower case), so it is a legal part of a host name. A bare UUID is accepted wherever an id is.
 * All other ids are UUIDs. Tokens are `<prefix>` and 43 characters of base 62, which is 256 random bits.
 */
import { BOUNDS } from './limits.ts';

const UUID = /^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$/i;
const REGION_SLUG = /^[a-z](?:[a-z0-9-]*[a-z0-9])?$/;
const BASE32 = 'abcdefghijklmnopqrstuvwxyz234567';
const ID_CHARS = 26;

export function isUuid(text: string): boolean {
  return UUID.test(text);
}

/** Slug of a region: letters, digits and inner hyphens, starting with a letter, short enough for host names. */
export function isRegionSlug(text: string): boolean {
  return text.length <= BOUNDS.regionSlugChars && REGION_SLUG.test(text);
}

/** The public id of a sandbox. @throws TypeError for an invalid region or UUID, which is a bug of the caller */
export function formatSandboxId(region: string, uuid: string): string {
  if (!isRegionSlug(region)) throw new TypeError(`not a region slug: ${JSON.stringify(region)}`);
  if (!isUuid(uuid)) throw new TypeError(`not a UUID: ${JSON.stringify(uuid)}`);
  return `${region}-${base32(uuid.replaceAll('-', ''))}`;
}

/** 128 bits, from hexadecimal, as 26 characters of base 32. */
export function base32(hex: string): string {
  let rest = BigInt(`0x${hex}`);
  let text = '';
  for (let i = 0; i < ID_CHARS; i++) {
    text = `${BASE32.charAt(Number(rest & 31n))}${text}`;
    rest >>= 5n;
  }
  return text;
}

const LINK_TOKEN = /^[a-z2-7]{26}$/;

/**
 * Whether a text is the token of a preview link, which is a part of a host name: 26 characters of base 32, lower case. Sandbox
 * ids have a hyphen.
 */
export function isLinkToken(text: string): boolean {
  return LINK_TOKEN.test(text);
}

export interface SandboxId {
  /** Lower case. */
  uuid: string;
  /** Null when a bare UUID was given. */
  region: string | null;
}

/**
 * Parses a sandbox id or a bare UUID. Null for anything else, also for a non-canonical spelling
 * (upper case, bits set beyond the 128th): the response is that of an unknown id.
 */
export function parseSandboxId(text: string): SandboxId | null {
  if (isUuid(text)) return { uuid: text.toLowerCase(), region: null };
  const split = text.length - ID_CHARS - 1;
  if (split < 1 || text.charAt(split) !== '-') return null;
  const region = text.slice(0, split);
  if (!isRegionSlug(region)) return null;
  let number = 0n;
  for (const char of text.slice(split + 1)) {
    const digit = BASE32.indexOf(char);
    if (digit < 0) return null;
    number = (number << 5n) | BigInt(digit);
  }
  if (number >> 128n !== 0n) return null;
  const hex = number.toString(16).padStart(32, '0');
  const uuid = [hex.slice(0, 8), hex.slice(8, 12), hex.slice(12, 16), hex.slice(16, 20), hex.slice(20)].join(
    '-',
  );
  return { uuid, region };
}

/** The prefix of each kind of token. */
export const TOKEN_PREFIXES = {
  /** A project's API key. */
  apiKey: 'rlp_',
  /** Access to one sandbox, shown once by its create. */
  sandbox: 'rlpv_',
  /** Placeholder of a secret inside a sandbox. */
  secretPlaceholder: 'rlps_',
  /** A function's public endpoint. */
  function: 'rlpf_',
  /** Access to one preview endpoint. */
  preview: 'rlpp_',
} as const;
export type TokenKind = keyof typeof TOKEN_PREFIXES;

const TOKEN_BODY = /^[0-9A-Za-z]{43}$/;

/** The kind of a well-formed token; null for other text, which can be refused without a lookup. */
export function tokenKind(text: string): TokenKind | null {
  for (const kind of Object.keys(TOKEN_PREFIXES) as TokenKind[]) {
    const prefix = TOKEN_PREFIXES[kind];
    if (text.startsWith(prefix) && TOKEN_BODY.test(text.slice(prefix.length))) return kind;
  }
  return null;
}

/** The part of a token that may be shown in lists (`key_prefix`): its kind and its first eight characters. */
export function tokenPrefix(token: string): string {
  const kind = tokenKind(token);
  if (kind === null) throw new TypeError('not a token of this service');
  return token.slice(0, TOKEN_PREFIXES[kind].length + 8);
}

/** The credential of an `Authorization: Bearer …` header (RFC 6750; the scheme's case does not matter), else null. */
export function bearerToken(header: string | undefined, maxChars = 4096): string | null {
  const match = /^bearer +([\x21-\x7e]+) *$/i.exec(header ?? '');
  const token = match?.[1] ?? null;
  return token !== null && token.length <= maxChars ? token : null;
}
