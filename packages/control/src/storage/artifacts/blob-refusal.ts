import { ApiError, badRequest, unavailable } from '@releap/contract';
import type { BlobError } from './blob-store.ts';

/** The response to a request whose content could not be stored or read. */
export function blobRefusal(error: BlobError): ApiError {
  const { failure, message } = error;
  if (failure === 'too-large' || failure === 'digest') return badRequest(message);
  return new ApiError(503, `${message}: try again later`, {
    headers: unavailable('').headers,
    cause: error,
  });
}
