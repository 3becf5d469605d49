import type { Socket } from 'node:net';

/** A connection of a sandbox whose host was checked against the address that it leads to. */
export interface InterceptRequest {
  /** Paused, with everything that it sent after `firstBytes` still unread. */
  client: Socket;
  firstBytes: Buffer;
  vmId: string;
  /** SNI, or the Host of HTTP, in lower case. */
  host: string;
  tls: boolean;
  /** Where the client connected to. */
  address: string;
  port: number;
}

/** Takes connections over instead of passing them on untouched. */
export interface Interceptor {
  wants(vmId: string, host: string): boolean;
  /** The client is the interceptor's from now on. */
  intercept(request: InterceptRequest): void;
}
