/**
 * Connections to ports of a guest: over its network, or through its agent to a server that listens on loopback only. And to its
 * toolbox daemon, through the agent always.
 */
import { connect, type Socket } from 'node:net';
import type { Readable, Writable } from 'node:stream';
import {
  ApiError,
  badGateway,
  conflict,
  gatewayTimeout,
  type GuestService,
  unavailable,
} from '@releap/contract';
import { GuestError, type GuestClient } from '../guest/index.ts';

const CONNECT_MS = 5_000;
/** Both ends of an idle connection are probed, so that it does not outlive a peer that disappeared. */
const KEEP_ALIVE_MS = 60_000;

/** A connection to a server in a guest. The end of one direction leaves the other one open. */
export interface PortConnection {
  readable: Readable;
  writable: Writable;
  /** At the guest's address; absent for one through its agent. */
  via?: 'network';
  /** Ends both directions; the server gets a reset. */
  reset(): void;
}

export interface PortHost {
  /** At which the host reaches the guest. */
  address: string;
  guest(): Promise<Pick<GuestClient, 'dial' | 'toolbox'>>;
}

/** @throws ApiError as `connectPort` and `connectToolbox` do */
export function connectService(host: PortHost, service: GuestService): Promise<PortConnection> {
  return service === 'toolbox' ? connectToolbox(host) : connectPort(host, service);
}

/**
 * Connects to the toolbox daemon of a guest.
 * @throws ApiError 409 when the sandbox is frozen, 503 or 504 when the daemon does not answer
 */
async function connectToolbox(host: PortHost): Promise<PortConnection> {
  try {
    return await (await host.guest()).toolbox();
  } catch (error) {
    if (!(error instanceof GuestError)) throw error;
    const { code, message } = error;
    const refused =
      code === 'frozen'
        ? conflict(message)
        : code === 'timeout'
          ? gatewayTimeout(message)
          : unavailable(`the toolbox of the sandbox cannot be reached: ${message}`);
    refused.cause = error;
    throw refused;
  }
}

/**
 * Connects to a port of a guest.
 * @throws ApiError 502 when nothing listens, 504 when nothing answers
 */
async function connectPort(host: PortHost, port: number): Promise<PortConnection> {
  try {
    return overNetwork(await connectTcp(host.address, port));
  } catch (error) {
    const { code } = error as NodeJS.ErrnoException;
    if (code !== 'ECONNREFUSED') {
      throw gatewayTimeout(`port ${port} of the sandbox does not answer (${code ?? String(error)})`);
    }
  }
  return await throughAgent(host, port);
}

async function throughAgent(host: PortHost, port: number): Promise<PortConnection> {
  try {
    return await (await host.guest()).dial(port);
  } catch (error) {
    if (error instanceof ApiError) throw error;
    throw refusal(error, port);
  }
}

function refusal(error: unknown, port: number): ApiError {
  const code = error instanceof GuestError ? error.code : undefined;
  const refused =
    code === 'not_found'
      ? badGateway(`nothing listens on port ${port} of the sandbox`)
      : code === 'timeout'
        ? gatewayTimeout(`port ${port} of the sandbox does not answer`)
        : unavailable(`port ${port} of the sandbox cannot be reached: ${(error as Error).message}`);
  refused.cause = error;
  return refused;
}

function overNetwork(socket: Socket): PortConnection {
  return { readable: socket, writable: socket, via: 'network', reset: () => void socket.resetAndDestroy() };
}

async function connectTcp(host: string, port: number): Promise<Socket> {
  const socket = connect({ host, port, allowHalfOpen: true, noDelay: true });
  socket.setKeepAlive(true, KEEP_ALIVE_MS);
  const connected = Promise.withResolvers<void>();
  const timer = setTimeout(
    () => connected.reject(Object.assign(new Error('no answer'), { code: 'ETIMEDOUT' })),
    CONNECT_MS,
  );
  socket.once('connect', connected.resolve).once('error', connected.reject);
  try {
    await connected.promise;
    return socket;
  } catch (error) {
    socket.destroy();
    throw error;
  } finally {
    clearTimeout(timer);
    socket.off('error', connected.reject);
    // Until its user listens.
    socket.on('error', () => undefined);
  }
}
