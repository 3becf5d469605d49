import { badRequest } from '@releap/contract';

const utf8 = new TextDecoder('utf-8', { fatal: true });

/**
 * Reads a request body. Whatever the content type says it is taken for JSON, as people forget the header;
 * forms are the exception, because they are surely none.
 * @returns undefined for no body at all.
 */
export function readJson(contentType: string | undefined, data: Buffer): unknown {
  if (/^multipart\//i.test(contentType ?? '')) {
    throw badRequest('multipart/form-data is not available yet in this version: send JSON');
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
    // The parser quotes what it has read, which may be a secret: only what comes before that is told.
    const why = (error as Error).message.split(/, (?:\.\.\.)?"/, 1)[0] ?? '';
    throw badRequest(`the request body must be JSON: ${why.slice(0, 200)}`);
  }
}
