/** Where the requests of a store go, and the connections to there. */
import { lookup as dnsLookup } from 'node:dns';
import {
  Agent as HttpAgent,
  request as httpRequest,
  type ClientRequest,
  type RequestOptions,
} from 'node:http';
import { Agent as HttpsAgent, request as httpsRequest } from 'node:https';
import { isIP } from 'node:net';
import { AddressPolicy } from '@releap/contract/address-policy';
import type { ProxiedStore } from '@releap/contract/netd';
import { trustedAuthorities } from '../intercept/upstream.ts';

const DEFAULT_REGION = 'us-east-1';
const IDLE_PER_HOST = 64;
/** Shorter than servers keep an idle connection. */
const IDLE_MS = 4_000;
const CONNECT_MS = 10_000;
/** Longest silence of a server. */
const SILENCE_MS = 60_000;

export interface Target {
  url: URL;
  /** `host[:port]` that the tenant has named. */
  named: string;
  /** Before the key; with a slash at its end. */
  path: string;
  region: string;
}

/** What TLS says of a chain that ends in no trusted authority. */
const UNTRUSTED = new Set([
  'DEPTH_ZERO_SELF_SIGNED_CERT',
  'SELF_SIGNED_CERT_IN_CHAIN',
  'UNABLE_TO_GET_ISSUER_CERT',
  'UNABLE_TO_GET_ISSUER_CERT_LOCALLY',
  'UNABLE_TO_VERIFY_LEAF_SIGNATURE',
]);

/** Why a request has failed, for users. */
export function failureText(error: unknown): string {
  const { code = '', message = String(error) } = error as { code?: string; message?: string };
  if (!UNTRUSTED.has(code)) return message;
  return `this host does not trust the authority of its certificate (${code}); the operator can add it with RELEAP_EGRESS_CA_FILE`;
}

/** China is a partition of its own. */
function awsEndpoint(region: string): string {
  return `https://s3.${region}.amazonaws.com${region.startsWith('cn-') ? '.cn' : ''}`;
}

/** Where objects of this store are. A bucket whose name cannot be part of a host name is in the path in every case. */
export function targetOf({ endpoint, region, path_style: pathStyle, bucket }: ProxiedStore): Target {
  const signing = region === '' ? DEFAULT_REGION : region;
  const url = new URL(endpoint === '' ? awsEndpoint(signing) : endpoint);
  const named = url.host;
  const base = url.pathname.replace(/\/+$/, '');
  const host = url.hostname.replace(/^\[|\]$/g, '');
  if (pathStyle || isIP(host) !== 0 || !/^[a-z0-9][a-z0-9-]{1,61}[a-z0-9]$/.test(bucket))
    return { url, named, path: `${base}/${bucket}/`, region: signing };
  url.hostname = `${bucket}.${url.hostname}`;
  return { url, named, path: `${base}/`, region: signing };
}

/** Connections that any mount may use: each request is signed for itself. */
export class Upstream {
  readonly #policy: AddressPolicy;
  readonly #agents: { http: HttpAgent; https: HttpsAgent; trusted: { http: HttpAgent; https: HttpsAgent } };

  constructor(privateHosts: readonly string[], extraCa?: string, lookup: typeof dnsLookup = dnsLookup) {
    const refusal = (what: string): Error =>
      new Error(
        `${what} is in a private or reserved network; the operator can allow it for object stores with RELEAP_STORE_PRIVATE_HOSTS`,
      );
    this.#policy = new AddressPolicy(privateHosts, { lookup, refusal });
    const options = { keepAlive: true, timeout: IDLE_MS, maxFreeSockets: IDLE_PER_HOST };
    const tls = { ...options, secureContext: trustedAuthorities(extraCa) };
    const checked = { lookup: this.#policy.lookup };
    this.#agents = {
      http: new HttpAgent({ ...options, ...checked }),
      https: new HttpsAgent({ ...tls, ...checked }),
      trusted: { http: new HttpAgent({ ...options, lookup }), https: new HttpsAgent({ ...tls, lookup }) },
    };
  }

  /** @throws for an address that is not allowed; for a name the request fails */
  request({ url, named }: Target, options: RequestOptions): ClientRequest {
    const isTrusted = this.#policy.isTrusted(new URL(`${url.protocol}//${named}`), named);
    if (!isTrusted) this.#policy.checkLiteral(url);
    const agents = isTrusted ? this.#agents.trusted : this.#agents;
    const where = { ...options, hostname: url.hostname.replace(/^\[|\]$/g, ''), port: url.port };
    const request =
      url.protocol === 'https:'
        ? httpsRequest({ ...where, agent: agents.https })
        : httpRequest({ ...where, agent: agents.http });
    const late = setTimeout(() => request.destroy(new Error('it does not accept connections')), CONNECT_MS);
    request.once('socket', (socket) => {
      const connected = url.protocol === 'https:' ? 'secureConnect' : 'connect';
      if (!socket.connecting) clearTimeout(late);
      else socket.once(connected, () => clearTimeout(late));
    });
    request.once('close', () => clearTimeout(late));
    request.setTimeout(SILENCE_MS, () => request.destroy(new Error('it does not respond')));
    return request;
  }

  close(): void {
    for (const agent of [
      this.#agents.http,
      this.#agents.https,
      this.#agents.trusted.http,
      this.#agents.trusted.https,
    ])
      agent.destroy();
  }
}
