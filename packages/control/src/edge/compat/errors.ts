/** Errors in the form that the SDK turns into its own classes. */
import { STATUS_CODES } from 'node:http';
import { COMPAT_PREFIX, errorBody, notImplemented, type ApiError } from '@releap/contract';
import type { FastifyReply, FastifyRequest } from 'fastify';
import { errorAnswer } from '../../platform/http/errors.ts';

/**
 * `message` becomes the message of the SDK's error, `code` its `errorCode`. The other fields are those of the API, whose `code` is
 * `error_code` here.
 */
export const answerCompatError = errorAnswer((refusal, requestId) => ({
  ...errorBody(refusal, requestId),
  error_code: refusal.code,
  statusCode: refusal.status,
  message: refusal.body.error,
  code: codeOf(refusal),
}));

/** As in `NOT_FOUND`. */
function codeOf({ status }: ApiError): string {
  return (STATUS_CODES[status] ?? String(status)).toUpperCase().replaceAll(/[^A-Z]+/g, '_');
}

/** Every route that the facade does not have. */
export function answerUnlisted(request: FastifyRequest, reply: FastifyReply): void {
  const path = request.url.split('?', 1)[0]?.slice(COMPAT_PREFIX.length, 200) ?? '';
  const hint = path.startsWith('//') ? ': leave out the slash at the end of apiUrl' : '';
  answerCompatError(notSupported(`${request.method} ${path}`, hint), request, reply);
}

/** @param operation named in the message */
export const notSupported = (operation: string, hint = ''): ApiError =>
  notImplemented(`${operation} is not supported by this service${hint}`);
