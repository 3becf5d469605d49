/** Names of snapshots, and the platform that their memory needs. Pure. */
import type { RunnerFacts } from '../runner/hello.ts';
import { badRequest, notFound } from './errors.ts';
import { quote } from './quote.ts';

/** Throws a 400 on a name with invisible characters. */
export function checkSnapshotName(name: string): string {
  // oxlint-disable-next-line no-control-regex -- it searches for control characters
  if (/[\u0000-\u001f\u007f-\u009f]/.test(name) || name !== name.trim() || name === '')
    throw badRequest(
      `name must have no control characters, and no space at either end, but was ${quote(name)}`,
    );
  return name;
}

/** The same 404 for an unknown, a malformed and a deleted id, and another project's. */
export function snapshotNotFound(idOrName: string): Error {
  return notFound(`snapshot ${quote(idOrName)} not found`, 'snapshot_not_found');
}

/**
 * The CPU that a guest's memory requires, beside the VMM: the guest keeps using the features of the CPU on which it
 * booted. `cpu_marker` of a full snapshot, compared as a whole.
 */
export function cpuMarker(facts: Pick<RunnerFacts, 'cpu_model' | 'accelerator'>): string {
  return `${facts.cpu_model} ${facts.accelerator}`;
}
