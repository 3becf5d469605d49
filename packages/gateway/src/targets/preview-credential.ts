/** Credentials in requests to previews. All of them are removed before the request reaches the guest. */
import type { IncomingHttpHeaders } from 'node:http';
import {
  bearerToken,
  COMPAT_PREVIEW_TOKEN_HEADER,
  PREVIEW_TOKEN_HEADER,
  PREVIEW_TOKEN_PARAMETER,
  tokenKind,
  unauthorized,
} from '@releap/contract';
import type { CookieUse } from './preview-site.ts';
import { takeParameter } from './url-parameter.ts';

const MAX_CHARS = 4096;
const COOKIE = 'rlp_preview';

/**
 * Name of the cookie that a browser gets for a signed URL. Browsers accept the prefix only over TLS, from the host itself and
 * for it alone, so that no other sandbox can set it for this one.
 */
export const cookieName = (isTls: boolean): string => (isTls ? `__Host-${COOKIE}` : COOKIE);

/** The same for a preview in a frame, partitioned by the site of the window. Browsers accept it over TLS alone. */
export const FRAME_COOKIE = `__Host-${COOKIE}_frame`;

/** Whether a text is a credential of this service, which must not reach a guest. */
export function isOwnCredential(token: string): boolean {
  const kind = tokenKind(token);
  return kind === 'apiKey' || kind === 'sandbox' || kind === 'preview';
}

export interface PreviewCredential {
  token: string | null;
  /** The token was a parameter of the URL. */
  isInUrl: boolean;
  /** Path and query without it. */
  url: string;
}

/**
 * The credential of a request: the header, a token of this service in `Authorization: Bearer`, the parameter of a signed URL,
 * a cookie that counts; the first that there is.
 * @throws ApiError 401 for a parameter that is not a preview token: other credentials do not belong into URLs
 */
export function findCredential(
  url: string,
  headers: IncomingHttpHeaders,
  isTls: boolean,
  use: CookieUse = { page: true, frame: true },
): PreviewCredential {
  const parameter = takeParameter(url, PREVIEW_TOKEN_PARAMETER);
  if (parameter.token !== null && tokenKind(parameter.token) !== 'preview')
    throw unauthorized(`the parameter ${PREVIEW_TOKEN_PARAMETER} is not a preview token`);
  const header = headers[PREVIEW_TOKEN_HEADER] || headers[COMPAT_PREVIEW_TOKEN_HEADER];
  const bearer = bearerToken(headers.authorization);
  const inHeader =
    (typeof header === 'string' && header !== '' ? header.slice(0, MAX_CHARS) : null) ??
    (bearer !== null && isOwnCredential(bearer) ? bearer : null);
  const isInUrl = inHeader === null && parameter.token !== null;
  const token =
    inHeader ??
    parameter.token ??
    (use.page ? readCookie(headers.cookie, cookieName(isTls)) : null) ??
    (use.frame && isTls ? readCookie(headers.cookie, FRAME_COOKIE) : null);
  return { token, isInUrl, url: parameter.url };
}

const cookiesOf = (header: string): string[] => header.split(';').map((cookie) => cookie.trim());

function readCookie(header: string | undefined, name: string): string | null {
  const found = cookiesOf(header ?? '').find((cookie) => cookie.startsWith(`${name}=`));
  return found === undefined ? null : found.slice(name.length + 1, name.length + 1 + MAX_CHARS);
}

/** A `Cookie` header without the cookies of previews; undefined when none remains. */
export function withoutOwnCookies(header: string): string | undefined {
  const own = [cookieName(false), cookieName(true), FRAME_COOKIE];
  const rest = cookiesOf(header).filter((cookie) => !own.includes(cookie.split('=', 1)[0] ?? ''));
  return rest.length === 0 ? undefined : rest.join('; ');
}
