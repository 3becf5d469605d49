import { type IncomingMessage, request as httpRequest } from 'node:http';
import type { Socket } from 'node:net';
import { text } from 'node:stream/consumers';
import {
  ApiError,
  badGateway,
  type ErrorStatus,
  gatewayTimeout,
  type GuestService,
  PORT_STREAM_PROTOCOL,
  PORT_STREAM_VIA_HEADER,
  portStreamPath,
  STATUS_MEANINGS,
} from '@releap/contract';
import type { GrantLease } from '../control/grants.ts';
import { upstreamError } from '../http/errors.ts';

/** Longer than the runner takes to give up. */
const CONNECT_MS = 40_000;
const ANSWER_MAX_BYTES = 64 * 1024;
const HOST = 'the machine that runs the sandbox';

/**
 * Connects to a port of a sandbox, or to its toolbox daemon. The end of one direction of the socket leaves the other one open; the caller ends it when
 * `lease.revoked` is aborted.
 * @param onOpen whether the port is reached at the sandbox's address, and not only from inside
 * @throws ApiError 409 it does not run, 502 nothing listens, 504 nothing answers
 */
export async function openPortStream(
  lease: Pick<GrantLease, 'vmId' | 'host' | 'dataToken'>,
  service: GuestService,
  onOpen: (isAtAddress: boolean) => void = () => undefined,
): Promise<Socket> {
  const connection = await lease.host.dial({ allowHalfOpen: true }).catch((error: unknown) => {
    throw upstreamError(error, HOST);
  });
  const request = httpRequest({
    path: portStreamPath(lease.vmId, service),
    headers: {
      host: 'runner',
      authorization: `Bearer ${lease.dataToken}`,
      connection: 'Upgrade',
      upgrade: PORT_STREAM_PROTOCOL,
    },
    createConnection: () => connection,
  });
  const timer = setTimeout(
    () => request.destroy(gatewayTimeout(`${HOST} did not answer in time`)),
    CONNECT_MS,
  );
  const answered = Promise.withResolvers<Socket>();
  request.on('upgrade', (answer, socket: Socket, head: Buffer) => {
    socket.on('error', () => undefined);
    onOpen(answer.headers[PORT_STREAM_VIA_HEADER] === 'network');
    if (head.length > 0) socket.unshift(head);
    answered.resolve(socket);
  });
  request.on('response', (answer) => void refusal(answer).then(answered.reject, answered.reject));
  request.on('error', (error) => answered.reject(upstreamError(error, HOST)));
  request.end();
  try {
    return await answered.promise;
  } finally {
    clearTimeout(timer);
  }
}

async function refusal(answer: IncomingMessage): Promise<ApiError> {
  const status = answer.statusCode ?? 502;
  let size = 0;
  answer.on('data', (chunk: Buffer) => {
    size += chunk.length;
    if (size > ANSWER_MAX_BYTES) answer.destroy();
  });
  const { socket } = answer;
  const message = errorOf(await text(answer));
  // It would stay half open.
  socket.destroy();
  if (!(status in STATUS_MEANINGS) || status === 401 || status === 500 || message === undefined) {
    return badGateway(`${HOST} answered ${status}`);
  }
  const retryAfter = answer.headers['retry-after'];
  return new ApiError(status as ErrorStatus, message, {
    headers: retryAfter === undefined ? {} : { 'retry-after': retryAfter },
  });
}

function errorOf(body: string): string | undefined {
  try {
    const { error } = JSON.parse(body) as { error?: unknown };
    return typeof error === 'string' ? error : undefined;
  } catch {
    return undefined;
  }
}
