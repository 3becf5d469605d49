/** Intercepted HTTP/2: each request is read, checked and sent on alone, over a connection of HTTP/2 to its server. */
import {
  constants,
  performServerHandshake,
  type ClientHttp2Stream,
  type IncomingHttpHeaders,
  type OutgoingHttpHeaders,
  type ServerHttp2Session,
  type ServerHttp2Stream,
} from 'node:http2';
import { pipeline } from 'node:stream/promises';
import type { Duplex } from 'node:stream';
import { lengthOf, replaceInBody, scrubbing, sendBody } from './bodies.ts';
import {
  prepareHead,
  reasonOf,
  scrubbedHeaders,
  UpstreamFailure,
  withoutCoding,
  type ExchangeContext,
} from './exchange.ts';
import { RefusedRequest } from './refused-request.ts';
import { withHeader } from './request-head.ts';

const STREAMS_PER_CONNECTION = 100;
const HEADER_MAX_BYTES = 64 * 1024;
const FIELDS_MAX = 256;
const IDLE_MS = 75_000;

/** What one connection is served with, looked up for each request: secrets may change. */
export interface Http2Options {
  context: () => ExchangeContext | undefined;
  /** What the client is told of a request that failed before its response had begun. */
  onFailure: (error: unknown, context: ExchangeContext) => { status: number; text: string };
}

/** Serves a connection on which HTTP/2 was agreed. */
export function serveHttp2(socket: Duplex, { context, onFailure }: Http2Options): void {
  const session: ServerHttp2Session = performServerHandshake(socket, {
    maxHeaderListPairs: FIELDS_MAX,
    settings: {
      maxConcurrentStreams: STREAMS_PER_CONNECTION,
      maxHeaderListSize: HEADER_MAX_BYTES,
      enableConnectProtocol: false,
    },
  });
  session.on('error', () => session.destroy());
  session.setTimeout(IDLE_MS, () => session.close());
  session.once('close', () => socket.destroy());
  session.on('stream', (stream, headers, _flags, rawHeaders) => {
    stream.on('error', () => undefined);
    const current = context();
    if (current === undefined) return stream.close(constants.NGHTTP2_REFUSED_STREAM);
    exchangeHttp2(stream, headers, rawHeaders, current).catch((error: unknown) => {
      const { status, text } = onFailure(error, current);
      if (stream.headersSent || stream.destroyed) return stream.close(constants.NGHTTP2_INTERNAL_ERROR);
      stream.respond({ ':status': status, 'content-type': 'text/plain; charset=utf-8' });
      stream.end(`releap: ${text}\n`);
      // What was not read of the request is not wanted.
      stream.resume();
    });
  });
}

async function exchangeHttp2(
  stream: ServerHttp2Stream,
  pseudo: IncomingHttpHeaders,
  rawHeaders: readonly string[],
  context: ExchangeContext,
): Promise<void> {
  const { connection, secrets, upstream } = context;
  const { host } = connection;
  const method = pseudo[':method'] ?? 'GET';
  const fields = requestFields(pseudo, rawHeaders);
  const head = prepareHead({ method, target: pseudo[':path'] ?? '/', rawHeaders: fields }, context);
  using hold = new DisposableStack();
  const hasBody = !stream.endAfterHeaders;
  const { body, length } = await replaceInBody(
    stream,
    { ...head, length: hasBody ? head.length : 0 },
    { secrets, host, hold },
  );
  let headers = withHeader(head.headers, 'host', undefined);
  if (hasBody)
    headers = withHeader(headers, 'content-length', length === undefined ? undefined : String(length));
  if (pseudo.te === 'trailers') headers.push('te', 'trailers');
  const session = await upstream.session(connection).catch((error: unknown) => {
    throw new UpstreamFailure(reasonOf(error));
  });
  const sent = session.request(
    {
      ':method': method,
      ':scheme': 'https',
      ':authority': fields[1] ?? host,
      ':path': head.path,
      ...grouped(headers),
    },
    { endStream: body === undefined },
  );
  const onClose = (): void => sent.close(constants.NGHTTP2_CANCEL);
  stream.once('aborted', onClose);
  sent.once('close', () => stream.off('aborted', onClose));
  const { promise, resolve, reject } = Promise.withResolvers<[IncomingHttpHeaders, number, string[]]>();
  sent.once('response', (answer, flags, raw) => resolve([answer, flags, raw]));
  sent.on('error', (error) => reject(new UpstreamFailure(reasonOf(error))));
  sent.once('close', () => reject(new UpstreamFailure(`it ended the request (${sent.rstCode ?? 0})`)));
  if (body !== undefined)
    sendBody(body, sent).catch((error: unknown) => {
      if (error instanceof RefusedRequest) reject(error);
      sent.close(constants.NGHTTP2_CANCEL);
    });
  const [answer, flags, raw] = await promise;
  await answerHttp2(
    sent,
    stream,
    { answer, raw, isWhole: (flags & constants.NGHTTP2_FLAG_END_STREAM) !== 0 },
    context,
  );
}

/** As the fields of HTTP/1.1: the authority is the one Host field. */
function requestFields(pseudo: IncomingHttpHeaders, rawHeaders: readonly string[]): string[] {
  const authority = pseudo[':authority'] ?? pseudo.host;
  if (authority === undefined) throw new RefusedRequest(400, 'the request has no authority');
  const fields = ['host', authority];
  for (let at = 0; at + 1 < rawHeaders.length; at += 2) {
    const [name = '', value = ''] = [rawHeaders[at], rawHeaders[at + 1]];
    if (name.startsWith(':') || (name === 'host' && value === authority)) continue;
    fields.push(name, value);
  }
  return fields;
}

async function answerHttp2(
  sent: ClientHttp2Stream,
  stream: ServerHttp2Stream,
  { answer, raw, isWhole }: { answer: IncomingHttpHeaders; raw: readonly string[]; isWhole: boolean },
  { secrets, connection: { host } }: ExchangeContext,
): Promise<void> {
  const status = Number(answer[':status'] ?? 502);
  const { headers, get } = scrubbedHeaders(withoutPseudo(raw), secrets, host);
  const head = (fields: readonly string[]): OutgoingHttpHeaders => ({
    ':status': status,
    ...grouped(fields),
  });
  if (isWhole) return stream.respond(head(headers), { endStream: true });
  const { stages, isOpened } = scrubbing(
    {
      contentType: get('content-type'),
      contentEncoding: get('content-encoding'),
      isPartial: status === constants.HTTP_STATUS_PARTIAL_CONTENT,
    },
    { secrets, host, sameLength: lengthOf(get('content-length')) !== undefined },
  );
  let trailers: string[] = [];
  sent.once('trailers', (_trailers, _flags, of) => {
    trailers = scrubbedHeaders(withoutPseudo(of), secrets, host).headers;
  });
  stream.once('wantTrailers', () => stream.sendTrailers(grouped(trailers)));
  stream.respond(head(isOpened ? withoutCoding(headers) : headers), { waitForTrailers: true });
  try {
    await pipeline([sent, ...stages, stream]);
  } catch (error) {
    stream.close(
      sent.rstCode === undefined || sent.rstCode === 0 ? constants.NGHTTP2_INTERNAL_ERROR : sent.rstCode,
    );
    throw error;
  }
}

function withoutPseudo(raw: readonly string[]): string[] {
  const list: string[] = [];
  for (let at = 0; at + 1 < raw.length; at += 2)
    if (raw[at]?.startsWith(':') === false) list.push(raw[at] ?? '', raw[at + 1] ?? '');
  return list;
}

/** Names in lower case, with all their values. */
function grouped(fields: readonly string[]): Record<string, string | string[]> {
  const found = new Map<string, string[]>();
  for (let at = 0; at + 1 < fields.length; at += 2) {
    const name = (fields[at] ?? '').toLowerCase();
    found.set(name, [...(found.get(name) ?? []), fields[at + 1] ?? '']);
  }
  return Object.fromEntries(
    [...found].map(([name, values]) => [name, values.length === 1 ? (values[0] ?? '') : values]),
  );
}
