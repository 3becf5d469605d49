/**
 * How gateways and control servers connect to the data servers of runners: over the Unix socket of a runner of this home, and over TLS
 * to others, whose certificate must name that very runner.
 */
import { readFileSync } from 'node:fs';
import { connect, type Socket } from 'node:net';
import { connect as connectTls, type ConnectionOptions } from 'node:tls';
import { callbackify } from 'node:util';
import { isLoopbackHost } from '@releap/contract/address-policy';
import { isUuid } from '@releap/contract/ids';
import type { buildConnector } from 'undici';
import type { HostCertificate } from './host-certificate.ts';
import { hostName } from './names.ts';
import { opened, unreachable } from './opened.ts';
import { type ReverseConnections, REVERSE_URL } from './reverse.ts';

export interface DialOptions {
  /** The end of one direction leaves the other one open. */
  allowHalfOpen?: boolean;
}

/** A data server, or another server that HTTP is spoken with. */
export interface Peer {
  /** The same for connections that may serve each other's requests. */
  readonly key: string;
  /** Of requests: `http://host:port`, on connections that are TLS too. */
  readonly origin: string;
  /** On this machine, over a Unix socket. */
  readonly isLocal: boolean;
  /** Opens a connection. @throws when it is not there in time, or is not the one that it should be */
  dial(options?: DialOptions): Promise<Socket>;
}

export interface DataHostsOptions {
  /** Shown to runners on other machines; without it they are not reached. */
  certificate?: Pick<HostCertificate, 'get'> | undefined;
  /** The runner of the same home, if there is one. */
  local?: LocalRunner | undefined;
  /** Of runners that accept no connections; without it they are not reached. */
  reverse?: Pick<ReverseConnections, 'take'> | undefined;
  connectMs?: number;
}

export interface LocalRunner {
  /** Undefined while there is none. */
  id: () => string | undefined;
  socketPath: string;
}

export interface HostAddress {
  /** Undefined from control servers of earlier versions: then it is reached on this machine alone. */
  runnerId: string | undefined;
  /** `unix:/absolute/path.sock`, `https://host:port`, `reverse:`, or on this machine `http://host:port`. */
  dataUrl: string;
}

const CONNECT_MS = 5_000;
const ORIGIN = 'http://localhost';
/** Idle peers that have disappeared are noticed. */
const KEEP_ALIVE_MS = 30_000;

export class DataHosts {
  readonly #options: DataHostsOptions;

  constructor(options: DataHostsOptions = {}) {
    this.#options = options;
  }

  of({ runnerId, dataUrl }: HostAddress): Peer {
    const { certificate, local, reverse, connectMs = CONNECT_MS } = this.#options;
    const isReverse = dataUrl === REVERSE_URL;
    const isRemote = isReverse || dataUrl.startsWith('https:');
    if (isRemote && runnerId !== undefined && local?.id() === runnerId)
      return unixPeer(local.socketPath, connectMs);
    if (!isRemote) return plainPeer(dataUrl, connectMs, true);
    return {
      key: `${dataUrl} ${runnerId ?? ''}`,
      origin: ORIGIN,
      isLocal: false,
      async dial({ allowHalfOpen = false } = {}) {
        if (isReverse && runnerId !== undefined && reverse !== undefined)
          return await reverse.take(runnerId, allowHalfOpen);
        if (isReverse || runnerId === undefined || certificate === undefined)
          throw unreachable(
            `${dataUrl} is on another machine, and this process has no certificate to show there`,
          );
        const { context } = await certificate.get();
        const options: ConnectionOptions & DialOptions = {
          ...placeOf(dataUrl),
          // Verified against the certificate: the address says nothing about who it is.
          servername: hostName({ role: 'runner', id: runnerId }),
          secureContext: context,
          ALPNProtocols: ['http/1.1'],
          allowHalfOpen,
        };
        const socket = connectTls(options);
        socket.setNoDelay(true).setKeepAlive(true, KEEP_ALIVE_MS);
        return await opened(socket, 'secureConnect', connectMs);
      },
    };
  }
}

/** For the pools of undici. */
export function connectorOf(peer: Peer): buildConnector.connector {
  const open = callbackify(() => peer.dial());
  return (_options, callback) =>
    open((error, socket) => {
      // Declared as an error always.
      if ((error as Error | null) === null) callback(null, socket);
      else callback(error, null);
    });
}

/** The runner of a home, as its files name it. */
export function runnerOfHome(files: { idFile: string; socketPath: string }): LocalRunner {
  let known: string | undefined;
  let lookAt = 0;
  return {
    socketPath: files.socketPath,
    id() {
      if (known !== undefined || performance.now() < lookAt) return known;
      lookAt = performance.now() + LOOK_MS;
      try {
        const text = readFileSync(files.idFile, 'utf8').trim();
        if (isUuid(text)) known = text;
      } catch {
        // No runner has started in this home yet.
      }
      return known;
    },
  };
}

const LOOK_MS = 1_000;

/**
 * A server that is spoken with without TLS.
 * @param url `unix:/absolute/path.sock` or `http://host:port`
 * @param isOfMachine only this machine may be named
 */
export function plainPeer(url: string, connectMs = CONNECT_MS, isOfMachine = false): Peer {
  if (url.startsWith('unix:/')) return unixPeer(url.slice('unix:'.length), connectMs);
  const parsed = URL.parse(url);
  if (parsed?.protocol !== 'http:')
    throw unreachable(`${JSON.stringify(url)} must be http://host:port or unix:/absolute/path`);
  return {
    key: url,
    origin: parsed.origin,
    isLocal: false,
    async dial({ allowHalfOpen = false } = {}) {
      if (isOfMachine && !isLoopbackHost(parsed.host))
        throw unreachable(`${url} is on another machine, and must be https://`);
      return await opened(connect({ ...placeOf(url), allowHalfOpen, noDelay: true }), 'connect', connectMs);
    },
  };
}

function unixPeer(path: string, connectMs: number): Peer {
  return {
    key: `unix:${path}`,
    origin: ORIGIN,
    isLocal: true,
    dial: ({ allowHalfOpen = false } = {}) => opened(connect({ path, allowHalfOpen }), 'connect', connectMs),
  };
}

/** @throws when it is not the URL of a server */
export function placeOf(url: string): { host: string; port: number } {
  const parsed = URL.parse(url);
  if (parsed === null || !/^https?:$/.test(parsed.protocol))
    throw unreachable(`${JSON.stringify(url)} must be https://host:port or unix:/absolute/path`);
  const { hostname, port, protocol } = parsed;
  const host = hostname.replace(/^\[|\]$/g, '');
  return { host, port: port === '' ? (protocol === 'https:' ? 443 : 80) : Number(port) };
}
