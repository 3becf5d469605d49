/** Repeating a creating request without creating twice. */

/** The request header. */
export const IDEMPOTENCY_HEADER = 'idempotency-key';
/** On an answer that was given before, `true`. */
export const REPLAYED_HEADER = 'idempotency-replayed';
/** Longest key, in characters. */
export const IDEMPOTENCY_KEY_CHARS = 255;
/** How long an answer is kept, in milliseconds. */
export const IDEMPOTENCY_TTL_MS = 24 * 3_600_000;

/** Visible ASCII, so that it survives every proxy unchanged. */
export function isIdempotencyKey(text: string): boolean {
  return text.length <= IDEMPOTENCY_KEY_CHARS && /^[\x21-\x7e]+$/.test(text);
}
