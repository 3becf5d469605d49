import type { Report } from '@releap/contract/runner';

/** Most reports that one statement stores. */
const BATCH = 500;

/**
 * Batches of one status each, with every resource at most once in a batch, that keep the order of what was reported of
 * each resource.
 */
export function* reportBatches<R extends Pick<Report, 'id' | 'status'>>(
  reports: readonly R[],
): Iterable<[status: R['status'], batch: R[]]> {
  let batch = new Map<R['status'], R[]>();
  let seen = new Set<string>();
  for (const report of reports) {
    if (seen.has(report.id) || seen.size >= BATCH) {
      yield* batch;
      batch = new Map();
      seen = new Set();
    }
    seen.add(report.id);
    const same = batch.get(report.status) ?? [];
    batch.set(report.status, same);
    same.push(report);
  }
  yield* batch;
}
