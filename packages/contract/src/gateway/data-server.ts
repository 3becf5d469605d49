/** What a gateway asks of the data server of a runner about one sandbox, with the data token of that sandbox. */
import { Type, type Static } from 'typebox';
import { Uuid } from '../wire/platform/fields.ts';

/**
 * How long the address of a released sandbox network is not given to another sandbox, in milliseconds. Longer than any program on
 * the host opens connections to it: the gateway's engine stops within two seconds, also while the gateway hangs, and gives
 * up a connect after two more.
 */
export const ADDRESS_WITHHELD_MS = 10_000;

/**
 * `GET`: the address of a sandbox on its runner's machine, for programs there. One line of JSON; the response ends when the sandbox
 * loses the address, or is about to. The address is not another sandbox's for `ADDRESS_WITHHELD_MS` afterwards.
 */
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

/**
 * `GET`: whether the entrypoint of a sandbox runs. 404 when the sandbox does not run there, and from runners that do not know this.
 */
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

/**
 * Stops the virtual processors of a sandbox while it serves nothing: `POST freezePath(…)` and `POST thawPath(…)`. Both may be
 * repeated. The caller draws a new turn for each thaw. A freeze names the turn of the last thaw and is refused with 409 after any
 * other: so a freeze that arrives late, or from an earlier user of the sandbox, has no effect.
 */
export const freezePath = (vmId: string): string => `/vms/${encodeURIComponent(vmId)}/freeze`;
export const thawPath = (vmId: string): string => `/vms/${encodeURIComponent(vmId)}/thaw`;

export const IdleTurn = Type.Object({ turn: Uuid });
export type IdleTurn = Static<typeof IdleTurn>;

/**
 * Connections to ports of a guest: `GET portStreamPath(…)` with `Connection: Upgrade` and `Upgrade: releap-tcp`. After 101 the
 * connection carries the bytes of the port; the end of one direction leaves the other one open. Errors before it: 404 unknown
 * sandbox, 409 it does not run, 429 too many connections, 502 nothing listens, 504 nothing answers; `{error}`.
 */
export const PORT_STREAM_PROTOCOL = 'releap-tcp';

/** A port of a guest, or its toolbox daemon: HTTP over the guest agent, which no network of the guest reaches. */
export type GuestService = number | 'toolbox';

/** The toolbox in addition answers 409 while the sandbox is frozen, and 501 when its agent is too old to have one. */
export const portStreamPath = (vmId: string, service: GuestService): string =>
  service === 'toolbox'
    ? `/vms/${encodeURIComponent(vmId)}/services/toolbox/stream`
    : `/vms/${encodeURIComponent(vmId)}/ports/${service}/stream`;

/** Of the 101: `network` when the runner connected to the guest's address, `agent` when only the guest's loopback listens. */
export const PORT_STREAM_VIA_HEADER = 'releap-via';
