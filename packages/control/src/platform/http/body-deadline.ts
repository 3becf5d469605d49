/**
 * Deadlines of request bodies, in place of Node's `requestTimeout`, which would also bound the whole time of a streamed
 * upload. Headers have their own limit (`headersTimeout`).
 */
import type { IncomingMessage } from 'node:http';
import { ApiError } from '@releap/contract';
import type { FastifyReply, FastifyRequest } from 'fastify';

export interface BodyLimits {
  /** Longest time until a body that is parsed as a whole has arrived, in milliseconds. */
  totalMs: number;
  /** Longest time without a byte of a streamed body, in milliseconds. */
  idleMs: number;
}

export const BODY_LIMITS: BodyLimits = { totalMs: 60_000, idleMs: 30_000 };

declare module 'fastify' {
  interface FastifyContextConfig {
    /** The handler gets the body as a stream. */
    streamedBody?: boolean;
  }
}

/** Refuses the request with 408 if its body does not arrive in time. */
export function watchBody(request: FastifyRequest, reply: FastifyReply, limits: BodyLimits): void {
  const { raw } = request;
  const { socket } = raw;
  if (!hasBody(raw)) return;
  const streamed = request.routeOptions.config.streamedBody === true;
  const { totalMs, idleMs } = limits;
  let bytes = socket.bytesRead;
  const timer = streamed
    ? setInterval(() => {
        // Unread bytes wait for the handler, not for the client.
        if (raw.readableLength > 0 || socket.bytesRead > bytes) bytes = socket.bytesRead;
        else refuse(`no byte of the request body arrived for ${idleMs} ms`);
      }, idleMs)
    : setTimeout(() => refuse(`the request body did not arrive within ${totalMs} ms`), totalMs);
  const stop = (): void => {
    clearTimeout(timer);
    socket.off('close', stop);
  };
  raw.once('end', stop).once('close', stop);
  // A request that was answered before its body was complete does not close with its connection.
  socket.once('close', stop);

  function refuse(why: string): void {
    stop();
    if (reply.sent) raw.destroy();
    else void reply.header('connection', 'close').send(new ApiError(408, why));
  }
}

function hasBody({ headers, complete }: IncomingMessage): boolean {
  if (complete) return false;
  const length = headers['content-length'];
  return headers['transfer-encoding'] !== undefined || (length !== undefined && length !== '0');
}
