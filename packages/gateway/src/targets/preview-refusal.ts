/** What browsers get instead of a JSON error from a private preview, when they show no credential. */
import type { ApiError } from '@releap/contract';
import { isOfSandbox, type SiteContext } from './preview-site.ts';
import type { OwnAnswer, RequestHead } from './target.ts';

const PAGE = `<!doctype html>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<title>This preview is private</title>
<style>body{font:16px/1.5 system-ui,sans-serif;max-width:36rem;margin:15vh auto;padding:0 1rem;color-scheme:light dark}</style>
<h1>This preview is private</h1>
<p>Ask its owner for a link that opens it. Owners get one with <code>rlp preview</code>, or from the API.</p>
<p>A link stays valid until its token expires or the endpoint is removed; open it again if you have used one before.</p>
`;

/** @returns undefined when the client gets the error as it is */
export function answerRefused(
  request: RequestHead,
  refusal: ApiError,
  site: SiteContext,
): OwnAnswer | undefined {
  if (refusal.status !== 401) return undefined;
  const { method, headers } = request;
  // It cannot have a credential. The request that follows must have one; a cookie counts for pages of the sandbox alone, and `*` allows none.
  if (method === 'OPTIONS' && headers.origin !== undefined) {
    const wanted = headers['access-control-request-method'];
    if (wanted === undefined) return undefined;
    const isOwn = isOfSandbox(headers.origin, site);
    return {
      status: 204,
      headers: {
        'access-control-allow-origin': isOwn ? headers.origin : '*',
        ...(isOwn && { 'access-control-allow-credentials': 'true' }),
        'access-control-allow-methods': wanted,
        'access-control-allow-headers': headers['access-control-request-headers'] ?? '*',
        vary: 'origin, access-control-request-method, access-control-request-headers',
        'cache-control': 'no-store',
      },
    };
  }
  if ((method !== 'GET' && method !== 'HEAD') || headers.accept?.includes('text/html') !== true)
    return undefined;
  return {
    status: 401,
    headers: {
      'content-type': 'text/html; charset=utf-8',
      'content-security-policy': "default-src 'none'; style-src 'unsafe-inline'",
      'cache-control': 'no-store',
    },
    body: PAGE,
  };
}
