import {
  ApiError,
  badGateway,
  type ErrorStatus,
  type GatewayControlMessage,
  isErrorCode,
  NotTriedYet,
  QuotaExceeded,
  STATUS_MEANINGS,
} from '@releap/contract';

/** Control's refusal, for the client. */
export function toRefusal({
  status,
  error,
  code,
  not_tried_yet: notTriedYet,
  quota,
}: Extract<GatewayControlMessage, { type: 'refusal' }>): ApiError {
  if (!(status in STATUS_MEANINGS) || status === 500)
    return badGateway('the control plane could not locate the sandbox');
  if (notTriedYet === true) return new NotTriedYet(error);
  if (quota !== undefined) return new QuotaExceeded(error, quota);
  const headers: Record<string, string> = status === 401 ? { 'www-authenticate': 'Bearer' } : {};
  return new ApiError(status as ErrorStatus, error, {
    headers,
    // A newer control plane may have codes that this gateway does not know.
    ...(code !== undefined && isErrorCode(code) ? { code } : {}),
  });
}
