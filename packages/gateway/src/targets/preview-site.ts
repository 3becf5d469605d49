/**
 * Which requests of browsers may use the cookie of a preview. All previews are hosts below one domain, so browsers take them for one
 * site: they send the cookie also with requests that pages of other sandboxes make.
 */
import type { IncomingHttpHeaders } from 'node:http';
import { parsePreviewHost, type PreviewHost } from './preview-host.ts';

export interface CookieUse {
  /** The cookie of a page that was opened at the top level. */
  page: boolean;
  /** The partitioned cookie, which exists below the site alone whose page has signed in a frame. */
  frame: boolean;
}

const NONE: CookieUse = { page: false, frame: false };
const BOTH: CookieUse = { page: true, frame: true };

export interface SiteContext {
  host: PreviewHost;
  domain: string;
  isTls: boolean;
}

/**
 * Cookies count in requests of the host's own pages, of pages at other ports of the same sandbox, and of clients that say nothing of
 * their origin; apart from these only in navigations that change nothing, of the window or, with its own cookie, of a frame.
 */
export function cookieUse(method: string, headers: IncomingHttpHeaders, context: SiteContext): CookieUse {
  const { origin, 'sec-fetch-site': site, 'sec-fetch-mode': mode, 'sec-fetch-dest': dest } = headers;
  if (origin !== undefined) return isOfSandbox(origin, context) ? BOTH : NONE;
  if (site === undefined || site === 'none' || site === 'same-origin') return BOTH;
  if (mode !== 'navigate' || (method !== 'GET' && method !== 'HEAD')) return NONE;
  if (dest === 'document') return { page: true, frame: false };
  return isFrame(headers) ? { page: false, frame: true } : NONE;
}

/** Whether the page is shown in a frame of another one. */
export const isFrame = ({ 'sec-fetch-dest': dest }: IncomingHttpHeaders): boolean =>
  dest === 'iframe' || dest === 'frame';

/** Whether a page of this origin is the host's own, or of another port of its sandbox. */
export function isOfSandbox(origin: string, { host, domain, isTls }: SiteContext): boolean {
  const scheme = isTls ? 'https://' : 'http://';
  if (!origin.startsWith(scheme)) return false;
  const authority = origin.slice(scheme.length);
  return authority === host.authority || parsePreviewHost(authority, domain)?.sandbox === host.sandbox;
}
