/** Idempotency keys: repeating a creating request without creating twice. */

/** The request header. */
export const IDEMPOTENCY_HEADER = 'idempotency-key';
/** Header of a replayed response: `true`. */
export const REPLAYED_HEADER = 'idempotency-replayed';
/** Longest key, in characters. */
export const IDEMPOTENCY_KEY_CHARS = 255;
/** Lifetime of a recorded response, in milliseconds. */
export const IDEMPOTENCY_TTL_MS = 24 * 3_600_000;

/** Visible ASCII, so that it survives every proxy unchanged. */
export function isIdempotencyKey(text: string): boolean {
  return text.length <= IDEMPOTENCY_KEY_CHARS && /^[\x21-\x7e]+$/.test(text);
}
