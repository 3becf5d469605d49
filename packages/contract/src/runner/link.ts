/** The link between runners and control: version, intervals, bounds and close codes, for both sides. */

/** The protocol version of this code; docs/runner-protocol.md says when it changes. */
export const RUNNER_PROTOCOL = 1;
/** The oldest version that control supports. */
export const RUNNER_PROTOCOL_OLDEST = 1;

/** Of runners that accept no connections of other machines, and open them themselves. */
export const REVERSE_CAPABILITY = 'reverse-connections';
/** Where a gateway or a control server accepts connections of such runners: without a host, that of the runner's control plane. */
export const REVERSE_ADDRESS = {
  pattern: '^(\\[[0-9A-Fa-f:.]+\\]|[0-9A-Za-z._-]*):\\d{1,5}$',
  maxLength: 64,
} as const;

/** How often a runner sends a heartbeat, in milliseconds. */
export const HEARTBEAT_MS = 5_000;
/** How often a runner sends the CPU counters of its micro-VMs, in milliseconds. */
export const USAGE_MS = 10_000;
/** Silence after which a runner and its sandboxes are lost, in milliseconds. */
export const RUNNER_LOST_AFTER_MS = 60_000;

/** Largest message that either side accepts, in bytes. A larger one closes the link. */
export const LINK_MESSAGE_MAX_BYTES = 16 * 1024 * 1024;
/** Bound on the items of one message, in bytes; a single item may be larger. */
export const LINK_ITEMS_BYTES = 4 * 1024 * 1024;
/** Most items of one `sync`, `desired` or `report` message. */
export const LINK_ITEMS_MAX = 1_000;
/** Most readings of one `usage` message, and most pieces of one `usage_history`. */
export const USAGE_READINGS_MAX = 1_000;
/** Most capabilities, and most kinds, that one side lists. */
export const LINK_NAMES_MAX = 256;

/** Why control closes a link (RFC 6455 reserves the codes 4000 to 4999 for applications). */
export const LINK_CLOSE = {
  /** The same runner has reconnected. */
  replaced: 4000,
  /** The runner does not speak the protocol: binary or oversized messages, no JSON, no hello. */
  framing: 4001,
  /** The hello is not acceptable: an unknown region, a field that cannot be read. The runner tries again, slowly. */
  refused: 4002,
  /** Nothing was received for too long. */
  silent: 4003,
  /** Control failed; the runner reconnects and repeats its reports. */
  failed: 4004,
  /** The runner does not read from the connection. */
  slow: 4005,
  /** The runner belongs to another deployment. It tries again, slowly. */
  otherDeployment: 4006,
  /** One side is of a version that the other does not speak. It tries again, slowly. */
  version: 4007,
} as const;
