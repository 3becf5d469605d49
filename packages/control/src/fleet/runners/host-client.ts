/** Asks the data servers of hosts: for logs of sandboxes and of builds, which are not stored in the database, and for ports. */
import type { Readable } from 'node:stream';
import { connectorOf, type DataHosts, type HostAddress } from '@releap/certificates/hosts';
import {
  type ApiError,
  badGateway,
  PORT_STREAM_PROTOCOL,
  portStreamPath,
  unavailable,
} from '@releap/contract';
import { readBounded } from '@releap/contract/read-bounded';
import { traceContext } from '@releap/tracing';
import type { FastifyReply } from 'fastify';
import { Pool, type Dispatcher } from 'undici';
import type { DataTokens } from '../../platform/credentials/data-tokens.ts';

const ANSWER_MS = 10_000;
const SILENCE_MS = 30_000;
/** Most hosts with open connections: a restarted runner may listen on another port. */
const POOLS = 256;

export interface HostLog {
  runnerId: string;
  dataUrl: string;
  /** Of the data server, without a query. */
  path: string;
  /** The sandbox or the build that the token is for. */
  subject: string;
  /** "sandbox "x"", for errors. */
  shown: string;
  follow: boolean;
  signal: AbortSignal;
}

export interface HostPort {
  runnerId: string;
  dataUrl: string;
  /** UUID of the sandbox. */
  sandboxId: string;
  port: number;
  signal: AbortSignal;
}

export interface HostOrder extends Omit<HostLog, 'follow' | 'signal'> {
  /** JSON. */
  body: object;
  deadlineMs: number;
}

/** A client of the runners' data servers. */
export interface HostClient extends AsyncDisposable {
  /**
   * Undefined: the host has no such log.
   * @throws 502 when the host does not answer, or answers otherwise; 503 when it has not joined, or is starting
   */
  log(log: HostLog): Promise<Readable | undefined>;
  /** Whether a port of a sandbox accepts connections. Also false when its host does not answer. */
  listens(port: HostPort): Promise<boolean>;
  /**
   * Has something done.
   * @returns the JSON of its answer, or `refused` with the reason of a 4xx
   * @throws 502 when the host does not answer, or fails; 503 when it has not joined, or is starting
   */
  post(order: HostOrder): Promise<{ refused?: string; answer?: unknown }>;
  close(): Promise<void>;
}

/** @param dataHosts how data servers are connected to */
export function createHostClient(dataTokens: DataTokens, dataHosts: DataHosts): HostClient {
  const pools = new Map<string, Pool>();
  const poolFor = (host: HostAddress): Pool => {
    const peer = dataHosts.of(host);
    const known = pools.get(peer.key);
    if (known !== undefined) {
      // Least recently used first.
      pools.delete(peer.key);
      pools.set(peer.key, known);
      return known;
    }
    const [oldest] = pools;
    if (pools.size >= POOLS && oldest !== undefined) {
      pools.delete(oldest[0]);
      // Responses in progress end first.
      void oldest[1].close();
    }
    // Bounded by the clients' connections. With a limit here, a few clients that follow logs would block all other reads
    // from the host, and a request that waits for a connection has no deadline.
    const pool = new Pool(peer.origin, { connections: null, connect: connectorOf(peer) });
    pools.set(peer.key, pool);
    return pool;
  };
  const close = async (): Promise<void> => {
    await Promise.all([...pools.values()].map((pool) => pool.destroy()));
    pools.clear();
  };
  return {
    async log({ runnerId, dataUrl, path, subject, shown, follow, signal }) {
      const { token } = await dataTokens.issue(runnerId, subject);
      let answer: Dispatcher.ResponseData;
      try {
        answer = await poolFor({ runnerId, dataUrl }).request({
          method: 'GET',
          path: `${path}${follow ? '?follow=1' : ''}`,
          headers: { authorization: `Bearer ${token}`, ...traceContext() },
          headersTimeout: ANSWER_MS,
          // A client that follows may wait for the next line without a time limit.
          bodyTimeout: follow ? 0 : SILENCE_MS,
          signal,
        });
      } catch (error) {
        throw Object.assign(badGateway(`the host of ${shown} did not answer`), { cause: error });
      }
      if (answer.statusCode === 200) return answer.body;
      await answer.body.dump().catch(() => undefined);
      if (answer.statusCode === 404) return undefined;
      if (answer.statusCode === 503) throw notNow(shown, answer.headers);
      throw badGateway(`the host of ${shown} answered ${answer.statusCode}`);
    },
    async listens({ runnerId, dataUrl, sandboxId, port, signal }) {
      const { token } = await dataTokens.issue(runnerId, sandboxId);
      try {
        const { socket } = await poolFor({ runnerId, dataUrl }).upgrade({
          path: portStreamPath(sandboxId, port),
          protocol: PORT_STREAM_PROTOCOL,
          headers: { authorization: `Bearer ${token}`, ...traceContext() },
          signal: AbortSignal.any([signal, AbortSignal.timeout(ANSWER_MS)]),
        });
        socket.on('error', () => undefined).destroy();
        return true;
      } catch {
        return false;
      }
    },
    async post({ runnerId, dataUrl, path, subject, shown, body, deadlineMs }) {
      const { token } = await dataTokens.issue(runnerId, subject);
      let status: number;
      let headers: Dispatcher.ResponseData['headers'];
      let text: string;
      try {
        const answer = await poolFor({ runnerId, dataUrl }).request({
          method: 'POST',
          path,
          headers: {
            authorization: `Bearer ${token}`,
            'content-type': 'application/json',
            ...traceContext(),
          },
          body: JSON.stringify(body),
          headersTimeout: deadlineMs,
          bodyTimeout: SILENCE_MS,
        });
        status = answer.statusCode;
        headers = answer.headers;
        text = (await readBounded(answer.body, REASON_MAX_BYTES, tooLong)).toString('utf8');
      } catch (error) {
        throw Object.assign(badGateway(`the host of ${shown} did not answer`), { cause: error });
      }
      if (status < 400) return { answer: jsonIn(text) };
      if (status < 500 && status !== 401) return { refused: reasonIn(text) };
      if (status === 503) throw notNow(shown, headers);
      throw badGateway(`the host of ${shown} answered ${status}`);
    },
    close,
    [Symbol.asyncDispose]: close,
  };
}

/** A host that starts does not know yet what it has. */
function notNow(shown: string, headers: Dispatcher.ResponseData['headers']): ApiError {
  const seconds = Number(headers['retry-after']);
  return unavailable(`the host of ${shown} is starting; try again`, seconds > 0 ? seconds : undefined);
}

const REASON_MAX_BYTES = 64 * 1024;

const tooLong = (): Error => new Error('too long an answer');

/** What an error body says. A guest may have written it. */
function reasonIn(text: string): string {
  const error = (jsonIn(text) as { error?: unknown } | undefined)?.error;
  return typeof error === 'string'
    ? error.replaceAll(/[^\P{C}]/gu, ' ').slice(0, 500)
    : 'no reason was given';
}

/** Undefined where it is of another form. */
function jsonIn(text: string): unknown {
  try {
    return JSON.parse(text) ?? undefined;
  } catch {
    return undefined;
  }
}

/**
 * Reads the JSON document of a host.
 * @param valid of a compiled schema
 * @throws 502 when it is too long or of another form
 */
export async function hostDocument<T>(
  answer: Readable,
  valid: { Check(value: unknown): value is T },
  { maxBytes, shown }: { maxBytes: number; shown: string },
): Promise<T> {
  const text = await readBounded(answer, maxBytes, () =>
    badGateway(`the host of ${shown} sent too long an answer`),
  );
  let value: unknown;
  try {
    value = JSON.parse(text.toString('utf8'));
  } catch {
    value = undefined;
  }
  if (!valid.Check(value)) throw badGateway(`the host of ${shown} sent a document of another form`);
  return value;
}

/** The headers of a log: text that a tenant's program has written. They are sent before there is any. */
export function logHeaders(reply: FastifyReply): void {
  reply.header('x-content-type-options', 'nosniff').header('cache-control', 'no-store');
  reply.raw.once('pipe', () => reply.raw.flushHeaders());
}
