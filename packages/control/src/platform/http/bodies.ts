/** How request bodies are read. */
import { badRequest } from '@releap/contract';
import type { FastifyInstance } from 'fastify';

const utf8 = new TextDecoder('utf-8', { fatal: true });

/** Bodies of this scope are JSON, with any Content-Type. */
export function acceptJson(scope: FastifyInstance): void {
  scope.removeAllContentTypeParsers();
  scope.addContentTypeParser('*', { parseAs: 'buffer' }, (request, data, done) => {
    try {
      done(null, readJson(request.headers['content-type'], data as Buffer));
    } catch (error) {
      done(error as Error, undefined);
    }
  });
}

/**
 * Parses a JSON body. The content type is ignored because many clients forget it; multipart forms are refused, because
 * they cannot be JSON.
 * @returns undefined for an empty body
 */
function readJson(contentType: string | undefined, data: Buffer): unknown {
  if (/^multipart\//i.test(contentType ?? '')) {
    throw badRequest('multipart/form-data is not available yet on this route: send JSON');
  }
  if (data.length === 0) return undefined;
  let text: string;
  try {
    text = utf8.decode(data);
  } catch {
    throw badRequest('the request body must be UTF-8');
  }
  try {
    return JSON.parse(text) as unknown;
  } catch (error) {
    // The parser's message quotes the input, which may be a secret: only the part before the quote is returned.
    const why = (error as Error).message.split(/, (?:\.\.\.)?"/, 1)[0] ?? '';
    throw badRequest(`the request body must be JSON: ${why.slice(0, 200)}`);
  }
}
