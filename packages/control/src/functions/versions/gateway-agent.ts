import { Agent } from 'undici';

/** Until a connection to a gateway is there. */
const CONNECT_MS = 5_000;
/** Much shorter than a gateway keeps an idle connection, which would close it while a call is on its way: it might have run. */
const KEEP_ALIVE_MS = 4_000;

/** Connections to gateways, for calls of functions. Callers limit how many calls there are, and how long they take. */
export function gatewayAgent(): Agent {
  return new Agent({
    connections: null,
    pipelining: 1,
    connect: { timeout: CONNECT_MS },
    keepAliveTimeout: KEEP_ALIVE_MS,
    keepAliveMaxTimeout: KEEP_ALIVE_MS,
    headersTimeout: 0,
    bodyTimeout: 0,
  });
}
