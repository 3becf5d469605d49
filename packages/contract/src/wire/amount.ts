/**
 * Credits without floating point. Amounts are integers of nano-credits (10^-9) internally, and decimal strings on the
 * wire and in the configuration. Pure.
 */
import { Type } from 'typebox';

/** Digits after the point of an amount: balances, ledger entries, grants. */
export const AMOUNT_DIGITS = 9;
/** Digits after the point of a price: it is multiplied by seconds, so it needs more digits than an amount. */
export const PRICE_DIGITS = 12;

/** Largest amount of one grant or limit: small enough that a balance, a 64 bit integer, can sum many. */
export const AMOUNT_MAX = 1_000_000_000n * 10n ** BigInt(AMOUNT_DIGITS);

const DECIMAL = /^([+-]?)(\d{1,18})(?:\.(\d{1,18}))?$/;

/**
 * Parses a decimal as an integer of its smallest units: `parseDecimal('1.5', 9)` is 1500000000n.
 * @returns null if it is not a decimal (exponents, blanks, a bare point) or has too many digits
 */
export function parseDecimal(text: string, digits: number): bigint | null {
  const match = DECIMAL.exec(text);
  if (match === null) return null;
  const [, sign, whole = '', part = ''] = match;
  const kept = part.replace(/0+$/, '');
  if (kept.length > digits) return null;
  const value = BigInt(whole) * 10n ** BigInt(digits) + BigInt(kept.padEnd(digits, '0') || '0');
  return sign === '-' ? -value : value;
}

/** The shortest decimal string of an integer of smallest units: no exponent, no trailing zeros, no `-0`. */
export function formatDecimal(value: bigint, digits: number): string {
  const unit = 10n ** BigInt(digits);
  const size = value < 0n ? -value : value;
  const part = (size % unit).toString().padStart(digits, '0').replace(/0+$/, '');
  return `${value < 0n ? '-' : ''}${size / unit}${part === '' ? '' : `.${part}`}`;
}

/** Nano-credits of a decimal string; null if it is invalid or finer than a nano-credit. */
export function parseAmount(text: string): bigint | null {
  return parseDecimal(text, AMOUNT_DIGITS);
}

/** The decimal string of nano-credits. */
export function formatAmount(nano: bigint): string {
  return formatDecimal(nano, AMOUNT_DIGITS);
}

/** A decimal string of credits in a response. */
export const Amount = Type.String({
  pattern: '^-?\\d+(\\.\\d{1,9})?$',
  expected: 'a decimal string of credits with at most 9 digits after the point, as "12.5"',
});
