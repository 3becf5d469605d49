/** Streamed request bodies: raw bytes and multipart forms, bounded by the operation. */
import type { IncomingHttpHeaders } from 'node:http';
import { Transform, type Readable } from 'node:stream';
import { badRequest, discardBody, quote, UPLOAD_LIMITS, type Operation } from '@releap/contract';
import multipart from '@fastify/multipart';
import type { FastifyInstance, FastifyRequest } from 'fastify';
import { acceptJson } from './bodies.ts';

export type FormPart =
  | { kind: 'field'; name: string; value: string }
  /** Read `stream` to its end before the next part. It fails when the file is too large. */
  | { kind: 'file'; name: string; filename: string; contentType: string; stream: Readable };

export type Upload =
  /** `stream` fails when the body is too large. */
  | { kind: 'raw'; contentType: string; stream: Readable }
  /** `parts` in the order in which they were sent; `bytes` of the whole body, if the client has said it. */
  | { kind: 'form'; bytes: number | undefined; parts(): AsyncGenerator<FormPart> };

const JSON_TYPE = 'application/json';
const FORM_TYPE = 'multipart/form-data';

/** Adds the body parsers of one operation to its scope. */
export function acceptUploads(scope: FastifyInstance, operation: Operation): void {
  const limits = { ...UPLOAD_LIMITS, ...operation.upload };
  const types = operation.consumes ?? [];
  if (types.includes(JSON_TYPE)) acceptJson(scope);
  else {
    scope.removeAllContentTypeParsers();
    if (!types.includes('*/*')) {
      scope.addContentTypeParser('*', (request, _payload, done) => {
        const sent = request.headers['content-type'];
        done(
          badRequest(`content type ${quote(sent)} is not accepted here: send ${types.join(' or ')}`),
          undefined,
        );
      });
    }
  }
  if (types.includes(FORM_TYPE)) {
    void scope.register(multipart, {
      limits: {
        fileSize: limits.bytes,
        files: limits.files,
        fields: limits.fields,
        fieldSize: limits.fieldBytes,
        parts: limits.files + limits.fields,
        headerPairs: 100,
      },
    });
  }
  for (const type of types) {
    if (type === JSON_TYPE || type === FORM_TYPE) continue;
    scope.addContentTypeParser(type === '*/*' ? '*' : type, (request, payload, done) => {
      if ((lengthOf(request.headers) ?? 0) > limits.bytes) return done(tooLarge(limits.bytes), undefined);
      done(null, bounded(payload, limits.bytes));
    });
  }
  scope.addHook('onSend', async (request, reply) => {
    if (!(await discardBody(request.raw))) reply.header('connection', 'close');
  });
}

/** The streamed body of a request; null when it is JSON, or there is none. */
export function uploadOf(request: FastifyRequest): Upload | null {
  const contentType = request.headers['content-type'] ?? '';
  if ('isMultipart' in request && request.isMultipart())
    return { kind: 'form', bytes: lengthOf(request.headers), parts: () => partsOf(request) };
  return isStream(request.body) ? { kind: 'raw', contentType, stream: request.body } : null;
}

function lengthOf({ 'content-length': length }: IncomingHttpHeaders): number | undefined {
  return length === undefined ? undefined : Number(length);
}

async function* partsOf(request: FastifyRequest): AsyncGenerator<FormPart> {
  const parts = request.parts();
  for (;;) {
    const { value: part, done } = await parts.next().catch((error: Error) => {
      throw badRequest(`the form is invalid: ${error.message}`);
    });
    if (done) return;
    if (part.type === 'field') {
      if (part.valueTruncated)
        throw badRequest(`the field ${quote(part.fieldname)} is too large`, 'request_too_large');
      yield { kind: 'field', name: part.fieldname, value: String(part.value) };
    } else {
      const { fieldname: name, filename, mimetype: contentType, file } = part;
      yield { kind: 'file', name, filename, contentType, stream: file };
      // An unread file must not block the rest of the form.
      file.resume();
    }
  }
}

function bounded(payload: Readable, bytes: number): Readable {
  let size = 0;
  const stream = new Transform({
    transform(chunk: Buffer, _encoding, next) {
      size += chunk.length;
      if (size > bytes) next(tooLarge(bytes));
      else next(null, chunk);
    },
  });
  // A reader sees the error. Before there is one, and after it has ended, the error must not end the process.
  stream.on('error', () => undefined);
  payload.on('error', (error) => stream.destroy(error));
  payload.on('aborted', () =>
    stream.destroy(badRequest('the client disconnected before the body had ended')),
  );
  return payload.pipe(stream);
}

const tooLarge = (bytes: number): Error =>
  badRequest(`the request body is too large: at most ${bytes} bytes are allowed`, 'request_too_large');

const isStream = (value: unknown): value is Readable =>
  typeof value === 'object' && value !== null && 'pipe' in value && typeof value.pipe === 'function';
