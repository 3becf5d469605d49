/**
 * Connections to ports of a guest, on a runner's data server: `GET portStreamPath(…)` with `Connection: Upgrade`,
 * `Upgrade: releap-tcp` and the data token of the sandbox. After 101 the connection carries the bytes of the port; the end of
 * one direction leaves the other one open. Errors before it: 404 unknown sandbox, 409 it does not run, 429 too many
 * connections, 502 nothing listens, 504 nothing answers; `{error}`.
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
