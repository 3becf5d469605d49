/** Longest reason that is stored of a failure, in characters. */
const ERROR_CHARS = 4_000;

/** A runner's reason, fit for a column and for people: bounded, and without what PostgreSQL cannot store. */
export function readReason(reason: string | undefined): string | undefined {
  const clean = reason?.replaceAll('\0', '').toWellFormed().trim();
  if (clean === undefined || clean === '') return undefined;
  // The cut may be inside a surrogate pair, which a column refuses.
  return clean.length > ERROR_CHARS ? `${clean.slice(0, ERROR_CHARS).toWellFormed()}…` : clean;
}
