/**
 * Whether the entrypoint of a sandbox runs: `GET entrypointPath(…)` on the data server of its runner, with the data token of the
 * sandbox. 404 when it does not run there, and from runners that do not know this.
 */
import { Type, type Static } from 'typebox';

export const entrypointPath = (vmId: string): string => `/vms/${encodeURIComponent(vmId)}/entrypoint`;

export const EntrypointOfSandbox = Type.Object({
  /** `none`: it has none. `failed`: it could not be started. */
  state: Type.Enum(['none', 'running', 'exited', 'failed'] as const),
  /** Of one that has ended; 128 + signal when a signal ended it. */
  exit_code: Type.Optional(Type.Integer()),
  /** Why it could not be started. */
  reason: Type.Optional(Type.String()),
});
export type EntrypointOfSandbox = Static<typeof EntrypointOfSandbox>;
