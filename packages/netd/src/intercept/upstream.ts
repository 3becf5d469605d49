/** Connections to the servers: verified, and kept for the next requests of the same sandbox. */
import { readFileSync } from 'node:fs';
import {
  Agent as HttpAgent,
  request as httpRequest,
  type ClientRequest,
  type RequestOptions,
} from 'node:http';
import { Agent as HttpsAgent, request as httpsRequest } from 'node:https';
import { createSecureContext, rootCertificates, type SecureContext } from 'node:tls';
import type { Handover } from '@releap/contract/netd';

const CONNECT_MS = 15_000;
/** Most servers keep an idle connection for 5 s or longer. */
const IDLE_MS = 4_000;
const IDLE_PER_HOST = 16;
const HEADER_MAX_BYTES = 64 * 1024;
/** Debian, Alpine; Red Hat. */
const HOST_BUNDLES = ['/etc/ssl/certs/ca-certificates.crt', '/etc/pki/tls/certs/ca-bundle.crt'];

/** The authorities of the host, or Node's own where it has none. */
export function trustedAuthorities(extra?: string): SecureContext {
  const bundle = HOST_BUNDLES.map((path) => readIfThere(path)).find((text) => text !== undefined);
  return createSecureContext({
    ca: [...(bundle === undefined ? rootCertificates : [bundle]), ...(extra === undefined ? [] : [extra])],
    minVersion: 'TLSv1.2',
  });
}

/** The upstream connections of one sandbox. */
export class Upstream {
  readonly #context: () => SecureContext;
  readonly #http = new HttpAgent({ keepAlive: true, maxFreeSockets: IDLE_PER_HOST, timeout: IDLE_MS });
  readonly #https = new HttpsAgent({ keepAlive: true, maxFreeSockets: IDLE_PER_HOST, timeout: IDLE_MS });

  constructor(context: () => SecureContext) {
    this.#context = context;
  }

  /** @param fresh on a new connection, which no other request uses */
  request(
    { tls, address, port, host }: Handover,
    {
      method,
      path,
      headers,
      fresh = false,
    }: { method: string; path: string; headers: string[]; fresh?: boolean },
  ): ClientRequest {
    const options: RequestOptions = {
      host: address,
      port,
      method,
      path,
      headers,
      setHost: false,
      maxHeaderSize: HEADER_MAX_BYTES,
      // Never more lenient than the parser of requests.
      insecureHTTPParser: false,
    };
    const secured = {
      ...options,
      servername: host,
      secureContext: this.#context(),
      rejectUnauthorized: true,
      ALPNProtocols: ['http/1.1'],
      agent: fresh ? false : this.#https,
    };
    const sent = tls ? httpsRequest(secured) : httpRequest({ ...options, agent: fresh ? false : this.#http });
    const timer = setTimeout(() => sent.destroy(new Error('it did not answer the connection')), CONNECT_MS);
    sent.once('socket', (socket) => {
      // That of the agent is for idle connections; a server may take its time.
      socket.setTimeout(0);
      const connected = (): void => clearTimeout(timer);
      if (sent.reusedSocket) connected();
      else socket.once(tls ? 'secureConnect' : 'connect', connected);
    });
    sent.once('close', () => clearTimeout(timer));
    return sent;
  }

  close(): void {
    this.#http.destroy();
    this.#https.destroy();
  }
}

function readIfThere(path: string): string | undefined {
  try {
    return readFileSync(path, 'utf8');
  } catch {
    return undefined;
  }
}
