/** Bounded bodies of responses, and error responses. */
import { ReleapError } from './error.ts';

const TEXT_MAX_BYTES = 32 * 1024 * 1024;
const ERROR_MAX_BYTES = 64 * 1024;

/** @throws ReleapError for a body that is longer */
export async function readText(response: Response, maxBytes = TEXT_MAX_BYTES): Promise<string> {
  const decoder = new TextDecoder();
  let text = '';
  let size = 0;
  const reader = response.body?.getReader();
  if (reader === undefined) return text;
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return text + decoder.decode();
      size += value.length;
      if (size > maxBytes) throw new ReleapError('malformed', `the answer has more than ${maxBytes} bytes`);
      text += decoder.decode(value, { stream: true });
    }
  } finally {
    await reader.cancel().catch(() => undefined);
  }
}

/** The error of a response that is not 2xx. */
export async function refusal(response: Response, url: URL): Promise<ReleapError> {
  const { status, headers } = response;
  const text = await readText(response, ERROR_MAX_BYTES).catch(() => '');
  const retryAfterSecs = Number(headers.get('retry-after'));
  const requestId = headers.get('x-request-id');
  const { code, retryable } = bodyOf(text);
  return new ReleapError(
    'refused',
    sentenceOf(text) ?? `${url.origin} answered ${status} to ${url.pathname}`,
    {
      status,
      url,
      ...(typeof code === 'string' ? { code } : {}),
      ...(typeof retryable === 'boolean' ? { retryable } : {}),
      ...(retryAfterSecs > 0 && Number.isFinite(retryAfterSecs) ? { retryAfterSecs } : {}),
      ...(requestId === null ? {} : { requestId }),
    },
  );
}

/** The service's own words; undefined for a page of a proxy. */
export function sentenceOf(text: string): string | undefined {
  const { error } = bodyOf(text);
  return typeof error === 'string' && error !== '' ? error : undefined;
}

function bodyOf(text: string): { error?: unknown; code?: unknown; retryable?: unknown } {
  try {
    return (JSON.parse(text) as object | null) ?? {};
  } catch {
    // No JSON.
    return {};
  }
}
