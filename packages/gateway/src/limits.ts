/** Bounds of one gateway; times in milliseconds. */
export interface GatewayLimits {
  /** Until the control plane has decided on a target; the time to reconnect to it is included. */
  decisionMs: number;
  /** To a runner. */
  connectMs: number;
  handshakeMs: number;
  /** Until the answer begins. A command answers when it has ended, so this bounds the longest command. */
  answerMs: number;
  /** Without a byte of an upload. */
  uploadIdleMs: number;
  /** Without a byte of an answer, whether the runner does not send or the client does not read; or of a tunnel. */
  idleMs: number;
  /** All headers of a request, and the time in which they must arrive. */
  headerBytes: number;
  headerMs: number;
  bodyBytes: number;
  connections: number;
  /** Calls of functions by one address (IPv6: one /64) in a minute that control refuses as unknown; 0 for any number. */
  guesses: number;
  /** How long `close` waits for open requests. */
  graceMs: number;
}

export const GATEWAY_LIMITS: GatewayLimits = {
  decisionMs: 10_000,
  connectMs: 5_000,
  handshakeMs: 15_000,
  answerMs: 24 * 3_600_000,
  uploadIdleMs: 60_000,
  idleMs: 3_600_000,
  headerBytes: 16 * 1024,
  headerMs: 15_000,
  bodyBytes: 16 * 1024 ** 3,
  connections: 10_000,
  guesses: 1_200,
  graceMs: 5_000,
};
