/** Which sandboxes have an id that begins with a text. */
import { isRegionSlug } from '@releap/contract';

const BASE32 = 'abcdefghijklmnopqrstuvwxyz234567';
const ID_CHARS = 26;
const UUID_BITS = 128n;

export interface IdRange {
  region: string;
  /** UUIDs, both included. */
  low: string;
  high: string;
}

/** The ids of one region with this prefix; undefined for a text that is no more than the beginning of a region. */
export function idRange(prefix: string): IdRange | undefined {
  const dash = prefix.lastIndexOf('-');
  const region = prefix.slice(0, Math.max(0, dash));
  const chars = prefix.slice(dash + 1);
  if (!isRegionSlug(region) || chars.length > ID_CHARS) return undefined;
  let number = 0n;
  for (const char of chars) {
    const digit = BASE32.indexOf(char);
    if (digit < 0) return undefined;
    number = (number << 5n) | BigInt(digit);
  }
  const open = 5n * BigInt(ID_CHARS - chars.length);
  const low = number << open;
  if (low >> UUID_BITS !== 0n) return undefined;
  const last = low + (1n << open) - 1n;
  const highest = (1n << UUID_BITS) - 1n;
  return { region, low: toUuid(low), high: toUuid(last < highest ? last : highest) };
}

function toUuid(number: bigint): string {
  const hex = number.toString(16).padStart(32, '0');
  return [hex.slice(0, 8), hex.slice(8, 12), hex.slice(12, 16), hex.slice(16, 20), hex.slice(20)].join('-');
}
