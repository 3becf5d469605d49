/** One intercepted HTTP/1.1 request and its response. */
import type { ClientRequest, IncomingMessage, ServerResponse } from 'node:http';
import { pipeline } from 'node:stream/promises';
import type { Handover } from '@releap/contract/netd';
import {
  collect,
  lengthOf,
  type OutgoingBody,
  replaceInBody,
  reserve,
  RESPONSE_HELD_BYTES,
  scrubbing,
  sendBody,
} from './bodies.ts';
import { codingOf } from './codings.ts';
import { checkHead, endToEnd, replaceInHead, withHeader, type RequestHead } from './request-head.ts';
import { RefusedRequest } from './refused-request.ts';
import { rewrite } from './rewriter.ts';
import type { SandboxSecrets } from './sandbox-secrets.ts';
import type { Upstream } from './upstream.ts';

export interface ExchangeContext {
  connection: Handover;
  secrets: SandboxSecrets;
  upstream: Upstream;
}

/** The server could not be reached, or not verified. */
export class UpstreamFailure extends Error {
  override name = 'UpstreamFailure';
}

export interface PreparedHead {
  path: string;
  headers: string[];
  contentType: string | undefined;
  contentEncoding: string | undefined;
  length: number | undefined;
}

/** @throws RefusedRequest */
export function prepareHead(head: RequestHead, { connection, secrets }: ExchangeContext): PreparedHead {
  const checked = checkHead(head, connection);
  const { target, headers, replaced } = replaceInHead(checked, secrets, connection.host);
  const { get } = checked.headers;
  let list = withHeader(headers, 'expect', undefined);
  // A response that repeats the value need not be opened then.
  if (replaced) list = withHeader(list, 'accept-encoding', 'identity');
  return {
    path: target,
    headers: list,
    contentType: get('content-type'),
    contentEncoding: get('content-encoding'),
    length: lengthOf(get('content-length')),
  };
}

/** Sends the request on and its response back. @throws RefusedRequest, UpstreamFailure before the response has begun */
export async function exchange(
  request: IncomingMessage,
  response: ServerResponse,
  context: ExchangeContext,
): Promise<void> {
  const { method = 'GET', url: target = '/', rawHeaders } = request;
  const head = prepareHead({ method, target, rawHeaders }, context);
  const { connection, secrets } = context;
  const isChunked = request.headers['transfer-encoding'] !== undefined;
  using hold = new DisposableStack();
  const { body, length } = await replaceInBody(
    request,
    { ...head, length: isChunked ? undefined : (head.length ?? 0) },
    { secrets, host: connection.host, hold },
  );
  let { headers } = head;
  if (length === undefined)
    headers = withHeader(withHeader(headers, 'content-length', undefined), 'transfer-encoding', 'chunked');
  else if (length !== head.length && body !== undefined)
    headers = withHeader(headers, 'content-length', String(length));
  const answer = await send(method, { ...head, headers }, body, context, response);
  await answerWith(answer, response, method, context);
}

/** Resolves with the head of the response. What was sent on a kept connection that had ended is sent again, once. */
async function send(
  method: string,
  { path, headers }: PreparedHead,
  body: OutgoingBody,
  { connection, upstream }: ExchangeContext,
  response: ServerResponse,
): Promise<IncomingMessage> {
  for (let fresh = false; ; fresh = true) {
    const sent = upstream.request(connection, { method, path, headers, fresh });
    const onClose = (): void => void sent.destroy();
    response.once('close', onClose);
    sent.once('response', (answer) => answer.once('close', () => response.off('close', onClose)));
    try {
      return await headOf(sent, body);
    } catch (error) {
      response.off('close', onClose);
      const isStale = sent.reusedSocket && !fresh && (body === undefined || Buffer.isBuffer(body));
      if (!isStale) throw error;
    }
  }
}

async function headOf(sent: ClientRequest, body: OutgoingBody): Promise<IncomingMessage> {
  const { promise, resolve, reject } = Promise.withResolvers<IncomingMessage>();
  sent.once('response', resolve);
  sent.on('error', (error) => reject(new UpstreamFailure(reasonOf(error))));
  // Without a listener Node would destroy the connection.
  sent.once('upgrade', (_answer, socket) => {
    socket.destroy();
    reject(new UpstreamFailure('it changed the protocol without being asked to'));
  });
  sendBody(body, sent).catch((error: unknown) => {
    if (error instanceof RefusedRequest) reject(error);
    sent.destroy();
  });
  return await promise;
}

/** Passes a response on without values. */
async function answerWith(
  answer: IncomingMessage,
  response: ServerResponse,
  method: string,
  { connection, secrets }: ExchangeContext,
): Promise<void> {
  const { statusCode = 502, statusMessage = '' } = answer;
  const { host } = connection;
  const { headers, get } = scrubbedHeaders(answer.rawHeaders, secrets, host);
  const hasBody = method !== 'HEAD' && statusCode !== 204 && statusCode !== 304;
  if (!hasBody) {
    response.writeHead(statusCode, statusMessage, headers);
    return await pipeline(answer, response);
  }
  const contentEncoding = get('content-encoding');
  const isPartial = statusCode === 206;
  const length = lengthOf(get('content-length'));
  const mayBeHeld = length !== undefined && length <= RESPONSE_HELD_BYTES && !isPartial;
  using held = mayBeHeld && codingOf(contentEncoding) === 'plain' ? reserve(length) : undefined;
  if (held !== undefined) {
    const body = rewrite(secrets.scrubber(host, false), await collect(answer));
    response.writeHead(statusCode, statusMessage, withHeader(headers, 'content-length', String(body.length)));
    response.end(body);
    return;
  }
  const { stages, isOpened } = scrubbing(
    { contentType: get('content-type'), contentEncoding, isPartial },
    { secrets, host, sameLength: length !== undefined },
  );
  response.writeHead(statusCode, statusMessage, isOpened ? withoutCoding(headers) : headers);
  // Events are to arrive when they are sent.
  response.flushHeaders();
  await pipeline([answer, ...stages, response]);
}

/** The fields of a response whose body is sent without its content coding. */
export function withoutCoding(headers: readonly string[]): string[] {
  return withHeader(withHeader(headers, 'content-encoding', undefined), 'content-length', undefined);
}

export function scrubbedHeaders(
  rawHeaders: readonly string[],
  secrets: SandboxSecrets,
  host: string,
): { headers: string[]; get: (name: string) => string | undefined } {
  const { list, get } = endToEnd(rawHeaders);
  const scrubber = secrets.scrubber(host, false);
  const headers = list.map((text, index) =>
    index % 2 === 0 ? text : rewrite(scrubber, Buffer.from(text, 'latin1')).toString('latin1'),
  );
  return { headers, get };
}

/** What a client is told, and the log. Messages of OpenSSL and of the kernel contain nothing of the request. */
export function reasonOf(error: unknown): string {
  const { code, message } = error as { code?: string; message?: string };
  return (code ?? message ?? 'it failed').slice(0, 200);
}
