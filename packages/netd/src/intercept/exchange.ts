/** One intercepted request and its response. */
import type { ClientRequest, IncomingMessage, ServerResponse } from 'node:http';
import type { Readable } from 'node:stream';
import { pipeline } from 'node:stream/promises';
import type { Handover } from '@releap/contract/netd';
import {
  collect,
  encodingOf,
  isCompressed,
  lengthOf,
  REQUEST_HELD_BYTES,
  reserve,
  RESPONSE_HELD_BYTES,
  rewriting,
} from './bodies.ts';
import {
  checkHead,
  endToEnd,
  RefusedRequest,
  replaceInHead,
  withHeader,
  type RequestHead,
} from './request-head.ts';
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
  /** Whether the body is sent as it is. */
  opaque: boolean;
  length: number | undefined;
}

/** @throws RefusedRequest */
export function prepareHead(head: RequestHead, { connection, secrets }: ExchangeContext): PreparedHead {
  const checked = checkHead(head, connection);
  const { target, headers, replaced } = replaceInHead(checked, secrets, connection.host);
  const { get } = checked.headers;
  let list = withHeader(headers, 'expect', undefined);
  // A response that repeats the value could not be searched for it.
  if (replaced) list = withHeader(list, 'accept-encoding', 'identity');
  return {
    path: target,
    headers: list,
    contentType: get('content-type'),
    opaque: isCompressed(get('content-encoding')),
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
  const matcher = secrets.matcher(connection.host, encodingOf(head.contentType), () => undefined);
  let { headers } = head;
  let body: Buffer | Readable | undefined;
  if (isChunked) {
    headers = withHeader(headers, 'transfer-encoding', 'chunked');
    body = head.opaque ? request : request.pipe(rewriting(matcher));
    request.on('aborted', () => (body as Readable).destroy());
  } else if (head.length !== undefined && head.length > 0) {
    if (head.opaque || head.length > REQUEST_HELD_BYTES) body = request;
    else {
      using held = reserve(head.length);
      if (held === undefined) throw new RefusedRequest(503, 'too many requests are being held');
      body = rewrite(matcher, await collect(request));
      headers = withHeader(headers, 'content-length', String(body.length));
    }
  }
  const answer = await send(method, { ...head, headers }, body, context, response);
  await answerWith(answer, response, method, context);
}

/** Resolves with the head of the response. What was sent on a kept connection that had ended is sent again, once. */
async function send(
  method: string,
  { path, headers }: PreparedHead,
  body: Buffer | Readable | undefined,
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

async function headOf(sent: ClientRequest, body: Buffer | Readable | undefined): Promise<IncomingMessage> {
  const { promise, resolve, reject } = Promise.withResolvers<IncomingMessage>();
  sent.once('response', resolve);
  sent.on('error', (error) => reject(new UpstreamFailure(reasonOf(error))));
  // Without a listener Node would destroy the connection.
  sent.once('upgrade', (_answer, socket) => {
    socket.destroy();
    reject(new UpstreamFailure('it changed the protocol without being asked to'));
  });
  if (body === undefined || Buffer.isBuffer(body)) sent.end(body);
  else pipeline(body, sent).catch(() => sent.destroy());
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
  const { headers, get } = scrubbedHeaders(answer.rawHeaders, secrets, connection.host);
  const hasBody = method !== 'HEAD' && statusCode !== 204 && statusCode !== 304;
  if (!hasBody || isCompressed(get('content-encoding'))) {
    response.writeHead(statusCode, statusMessage, headers);
    return await pipeline(answer, response);
  }
  const length = lengthOf(get('content-length'));
  using held =
    length !== undefined && length <= RESPONSE_HELD_BYTES && statusCode !== 206 ? reserve(length) : undefined;
  if (held !== undefined) {
    const body = rewrite(secrets.scrubber(connection.host, false), await collect(answer));
    response.writeHead(statusCode, statusMessage, withHeader(headers, 'content-length', String(body.length)));
    response.end(body);
    return;
  }
  response.writeHead(statusCode, statusMessage, headers);
  // Events are to arrive when they are sent.
  response.flushHeaders();
  await pipeline(answer, rewriting(secrets.scrubber(connection.host, length !== undefined)), response);
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
