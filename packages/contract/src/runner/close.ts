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
