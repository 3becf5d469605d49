/**
 * The address of a sandbox on its runner's machine, for programs there: `GET addressPath(…)` on the data server with the data
 * token of the sandbox. One line of JSON; the response ends when the sandbox loses the address, or is about to. The address is
 * not another sandbox's for `ADDRESS_WITHHELD_MS` afterwards.
 */
import { Type, type Static } from 'typebox';

export const addressPath = (vmId: string): string => `/vms/${encodeURIComponent(vmId)}/address`;

export const SandboxAddress = Type.Object({
  /** IPv4. */
  address: Type.String({ maxLength: 15 }),
  /** Network namespace in which it is reached, as `/proc/self/ns/net` shows it. */
  network: Type.String({ maxLength: 64 }),
  /** The only user, beside the runner's own, who may connect to it. */
  client_uid: Type.Optional(Type.Integer({ minimum: 1 })),
});
export type SandboxAddress = Static<typeof SandboxAddress>;
