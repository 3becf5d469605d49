import { ApiError, badRequest, BOUNDS, errorBody, internalError, unavailable } from '@releap/contract';
import { KeysUnavailableError } from '../encryption/keys.ts';
import { isDatabaseUnavailable } from '@releap/database';
import { asQuotaRefusal } from '../quotas/quota-refusal.ts';
import type { FastifyReply, FastifyRequest } from 'fastify';
import { RefusableError } from './refusable-error.ts';

/** Maps any thrown value to the contract's error form. Only messages that are meant for clients are returned to them. */
function toApiError(error: unknown): ApiError {
  if (error instanceof ApiError) return error;
  if (error instanceof RefusableError) return error.refusal();
  if (error instanceof KeysUnavailableError)
    return new ApiError(503, 'encryption is temporarily unavailable; nothing was written: try again later', {
      headers: unavailable('').headers,
      cause: error,
    });
  const exceeded = asQuotaRefusal(error);
  if (exceeded !== undefined) return exceeded;
  const { code, statusCode } = error as { code?: string; statusCode?: number };
  if (code === 'FST_ERR_CTP_BODY_TOO_LARGE') {
    return badRequest(
      `the request body is too large: at most ${BOUNDS.requestBodyBytes} bytes are allowed`,
      'request_too_large',
    );
  }
  if (code === 'FST_ERR_CTP_INVALID_CONTENT_LENGTH')
    return badRequest('the length of the body differs from Content-Length');
  if (code === 'FST_ERR_BAD_URL') return badRequest('the path of the request is not a valid URL path');
  if (isDatabaseUnavailable(error))
    return new ApiError(503, 'the database is temporarily unavailable: try again', {
      headers: unavailable('').headers,
      cause: error,
    });
  // Fastify's own refusals of a request.
  if (code?.startsWith('FST_') && statusCode !== undefined && statusCode >= 400 && statusCode < 500) {
    return badRequest((error as Error).message);
  }
  return internalError(error);
}

export type AnswerError = (error: unknown, request: FastifyRequest, reply: FastifyReply) => void;

/** Answers errors with the body that `form` makes of them, and logs those that clients cannot mend. */
export function errorAnswer(form: (refusal: ApiError, requestId: string) => object): AnswerError {
  return (error, request, reply) => {
    const refusal = toApiError(error);
    // A refusal with a complete message (no host is ready) is not logged as a failure.
    if (refusal.status === 500 || refusal.cause !== undefined) {
      request.log.error(
        {
          err: refusal.cause ?? error,
          status: refusal.status,
          method: request.method,
          url: request.url.split('?', 1)[0],
        },
        'request failed',
      );
    }
    const { errorCodes } = request.routeOptions.config;
    if (errorCodes?.has(refusal.code) === false)
      request.log.warn(
        { code: refusal.code, method: request.method, url: request.routeOptions.url },
        'an operation answered with an error code that its contract does not list',
      );
    // The response is JSON now, also if a text response was being prepared.
    void reply
      .code(refusal.status)
      .headers(refusal.headers)
      .type('application/json; charset=utf-8')
      .send(form(refusal, request.id));
  };
}

export const answerError = errorAnswer(errorBody);
