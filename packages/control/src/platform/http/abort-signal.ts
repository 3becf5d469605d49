import type { FastifyReply } from 'fastify';

/**
 * Aborted when the client disconnects, or with `closing`. The listener on `closing`, which lives as long as the process,
 * is removed with the connection, so that no request is retained.
 */
export function abortSignalOf(reply: FastifyReply, closing: AbortSignal): AbortSignal {
  const controller = new AbortController();
  const onClosing = (): void => controller.abort(closing.reason);
  const onClosed = (): void => {
    closing.removeEventListener('abort', onClosing);
    controller.abort();
  };
  if (closing.aborted) onClosing();
  else if (reply.raw.destroyed) controller.abort();
  else {
    closing.addEventListener('abort', onClosing, { once: true });
    reply.raw.once('close', onClosed);
  }
  return controller.signal;
}
