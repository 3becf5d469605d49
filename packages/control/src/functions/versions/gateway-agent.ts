import { Agent } from 'undici';

/** Until a connection to a gateway is there. */
const CONNECT_MS = 5_000;

/** Connections to gateways, for calls of functions. Callers limit how many calls there are, and how long they take. */
export function gatewayAgent(): Agent {
  return new Agent({
    connections: null,
    pipelining: 1,
    connect: { timeout: CONNECT_MS },
    headersTimeout: 0,
    bodyTimeout: 0,
  });
}
