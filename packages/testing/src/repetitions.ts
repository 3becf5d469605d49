/**
 * How often tests repeat themselves. `npm run test:nightly` runs each as often as its author thinks useful; every
 * other run takes the same steps with the same assertions, fewer times.
 */
const NIGHTLY_VARIABLE = 'RELEAP_TEST_NIGHTLY';
const SHARE = 10;

export function isNightly(): boolean {
  return process.env[NIGHTLY_VARIABLE] === '1';
}

/** Runs of a property: a tenth, but at least `least`, unless it is a nightly run. */
export function propertyRuns(nightly: number, least = 3): number {
  return isNightly() ? nightly : Math.min(nightly, Math.max(least, Math.ceil(nightly / SHARE)));
}

/** Rounds of a loop: `usual`, or `nightly` in a nightly run. */
export function rounds(usual: number, nightly: number): number {
  return isNightly() ? nightly : usual;
}

/**
 * Cases of a list whose every member takes seconds: `usual` of them, evenly from the first to the last, or all in a nightly run.
 * @param usual 2 or more
 */
export function sampleOf<T>(cases: readonly T[], usual: number): T[] {
  if (isNightly() || usual >= cases.length) return [...cases];
  const step = (cases.length - 1) / (usual - 1);
  return Array.from({ length: usual }, (_, index) => cases[Math.round(index * step)]).filter(
    (one) => one !== undefined,
  );
}
