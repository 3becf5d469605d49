/** Bounds of the SSH listener of one gateway; times in milliseconds, sizes in bytes. */
export interface SshLimits {
  /** From the connection until the client is authenticated. */
  loginMs: number;
  /** A refusal is not sent earlier, so that its timing tells nothing and guessing is slow. */
  refusalMs: number;
  /** Attempts of one connection. */
  attempts: number;
  connections: number;
  /** Connections that are not authenticated, all and from one address. */
  pending: number;
  pendingPerAddress: number;
  /** Failed logins a minute; above, further ones are refused without a question to the control plane. */
  failuresPerAddress: number;
  failuresPerSandbox: number;
  connectionsPerSandbox: number;
  /** Of one connection: shells, commands and subsystems, and forwarded connections. */
  sessions: number;
  forwards: number;
  /** Environment variables of one session. */
  envCount: number;
  envBytes: number;
  /** The server sends a keep-alive after this long without a packet, and ends the connection after `keepAliveMax` of them. */
  keepAliveMs: number;
  keepAliveMax: number;
  /** Data of one connection that waits: for the sandbox, and for the client. Above, reading stops. */
  inboundBytes: number;
  outboundBytes: number;
  /** Until a command has started or a port is connected. */
  startMs: number;
}

export const SSH_LIMITS: SshLimits = {
  loginMs: 60_000,
  refusalMs: 300,
  attempts: 6,
  connections: 2_000,
  pending: 200,
  pendingPerAddress: 20,
  failuresPerAddress: 30,
  failuresPerSandbox: 60,
  connectionsPerSandbox: 32,
  sessions: 32,
  forwards: 128,
  envCount: 128,
  envBytes: 64 * 1024,
  keepAliveMs: 30_000,
  keepAliveMax: 4,
  inboundBytes: 8 * 1024 * 1024,
  outboundBytes: 1024 * 1024,
  startMs: 30_000,
};
