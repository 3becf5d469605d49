/** Names of snapshots, and what their memory is tied to. Pure. */
import type { RunnerFacts } from '../runner/hello.ts';
import { badRequest, notFound } from './errors.ts';
import { quote } from './quote.ts';

/** Throws a 400 on a name that could not be told from another one, or not be shown. */
export function checkSnapshotName(name: string): string {
  // oxlint-disable-next-line no-control-regex -- control characters are what is looked for
  if (/[\u0000-\u001f\u007f-\u009f]/.test(name) || name !== name.trim() || name === '')
    throw badRequest(
      `name must have no control characters, and no space at either end, but was ${quote(name)}`,
    );
  return name;
}

/** An unknown id, a malformed one, a deleted one and another project's are told in the same words. */
export function snapshotNotFound(idOrName: string): Error {
  return notFound(`snapshot ${quote(idOrName)} not found`);
}

/**
 * What the memory of a guest is tied to beside the VMM: it runs on with the features of the CPU that it began with.
 * `cpu_marker` of a full snapshot, compared as a whole.
 */
export function cpuMarker(facts: Pick<RunnerFacts, 'cpu_model' | 'accelerator'>): string {
  return `${facts.cpu_model} ${facts.accelerator}`;
}
