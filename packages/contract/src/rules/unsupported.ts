/** Refuses fields of the contract that this version does not support yet. */
import { badRequest } from './errors.ts';
import type { ResolvedSandbox } from './sandbox-resources.ts';

/** Throws a 400 that names the field. */
export function rejectUnsupported(sandbox: ResolvedSandbox): void {
  const asked: [string, boolean][] = [
    ['cpu_type', sandbox.cpu_type !== null],
    ['network_class', sandbox.network_class !== null],
    ['disk_class', sandbox.disk_class !== null],
  ];
  for (const [field, used] of asked) {
    if (used) throw badRequest(`${field} is not available yet in this version: leave it out`);
  }
}
