import { timingSafeEqual } from 'node:crypto';
import { bearerToken, tokenDigest, unauthorized } from '@releap/contract';
import type { FastifyReply, FastifyRequest } from 'fastify';

/** Lets through only the processes and operators of this installation. */
export function internalOnly(
  internalToken: string,
): (request: FastifyRequest, reply: FastifyReply, done: (error?: Error) => void) => void {
  const expected = tokenDigest(internalToken);
  return (request, _reply, done) => {
    const token = bearerToken(request.headers.authorization);
    done(
      token !== null && timingSafeEqual(tokenDigest(token), expected)
        ? undefined
        : unauthorized('missing or invalid internal token'),
    );
  };
}
