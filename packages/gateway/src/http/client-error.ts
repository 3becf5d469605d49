import { STATUS_CODES } from 'node:http';
import type { Duplex } from 'node:stream';
import { ApiError, badRequest, errorBody, REQUEST_ID_HEADER, requestIdSource } from '@releap/contract';

const requestId = requestIdSource();

/** Responds to requests that Node's strict parser refuses: two lengths, a length and chunks, too large headers, no HTTP. */
export function answerMalformed(error: NodeJS.ErrnoException, socket: Duplex): void {
  if (error.code === 'ECONNRESET' || !socket.writable) {
    socket.destroy();
    return;
  }
  const [status, refusal] = refusalOf(error.code);
  const id = requestId(undefined);
  const body = JSON.stringify(errorBody(refusal, id));
  socket.end(
    `HTTP/1.1 ${status} ${STATUS_CODES[status] ?? ''}\r\n${REQUEST_ID_HEADER}: ${id}\r\ncontent-type: application/json\r\ncontent-length: ${body.length}\r\nconnection: close\r\n\r\n${body}`,
  );
}

function refusalOf(code: string | undefined): [number, ApiError] {
  if (code === 'HPE_HEADER_OVERFLOW')
    return [431, badRequest('the request headers are too large', 'request_too_large')];
  if (code === 'ERR_HTTP_REQUEST_TIMEOUT')
    return [408, new ApiError(408, 'the request headers took too long')];
  return [400, badRequest('malformed HTTP request')];
}
