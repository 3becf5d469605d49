/**
 * Connections to ports of a guest, on a runner's data server: `GET portStreamPath(…)` with `Connection: Upgrade`,
 * `Upgrade: releap-tcp` and the data token of the sandbox. After 101 the connection carries the bytes of the port; the end of
 * one direction leaves the other one open. Errors before it: 404 unknown sandbox, 409 it does not run, 429 too many
 * connections, 502 nothing listens, 504 nothing answers; `{error}`.
 */
export const PORT_STREAM_PROTOCOL = 'releap-tcp';

export const portStreamPath = (vmId: string, port: number): string =>
  `/vms/${encodeURIComponent(vmId)}/ports/${port}/stream`;
