/** Longest stored reason of a failure, in characters. */
const ERROR_CHARS = 4_000;

/** A runner's text, sanitized for a column: bounded, and without characters that PostgreSQL cannot store. */
export function readReason(reason: string | undefined, maxChars = ERROR_CHARS): string | undefined {
  const clean = reason?.replaceAll('\0', '').toWellFormed().trim();
  if (clean === undefined || clean === '') return undefined;
  // The cut may split a surrogate pair, which PostgreSQL refuses.
  return clean.length > maxChars ? `${clean.slice(0, maxChars).toWellFormed()}…` : clean;
}
