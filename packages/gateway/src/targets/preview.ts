import { isLinkToken, notFound, quote } from '@releap/contract';
import { checkFraming } from '../http/framing.ts';
import { cookieName, findCredential, FRAME_COOKIE } from './preview-credential.ts';
import { previewHeaders } from './preview-headers.ts';
import { parsePreviewHost } from './preview-host.ts';
import { answerRefused } from './preview-refusal.ts';
import { cookieUse, isFrame } from './preview-site.ts';
import type { RequestHead, Route, TargetKind } from './target.ts';

export interface PreviewOptions {
  /** All names `<port>-<sandbox id>` below it are previews. Lower case. */
  domain: string;
  /** Clients use https, which another program terminates. */
  isTls: boolean;
}

/** `<port>-<sandbox id>.<domain>`: a port of a sandbox that has a preview endpoint. `<port>-<token>.<domain>`: a link to one. */
export function preview({ domain, isTls }: PreviewOptions): TargetKind {
  return {
    kind: 'preview',
    route(request) {
      const host = parsePreviewHost(request.headers.host, domain);
      if (host === undefined) return undefined;
      if (host === null)
        throw notFound(
          `no preview at ${quote(request.headers.host ?? '')}; expected <port>-<sandbox id>.${domain}`,
          'endpoint_not_found',
        );
      checkFraming(request);
      const site = { host, domain, isTls };
      const use = cookieUse(request.method, request.headers, site);
      const credential = findCredential(request.url, request.headers, isTls, use);
      const { url } = credential;
      const { port, sandbox } = host;
      // The host of a link is its credential, and no other one matters.
      const isLink = isLinkToken(sandbox);
      const sent = request.credential === undefined ? credential.token : request.credential;
      const token = isLink ? null : sent;
      const route: Route = {
        target: { kind: 'preview', sandbox, port },
        token,
        service: port,
        upstreamPath: () => url,
        onRefused: (refusal) => answerRefused(request, refusal, site),
        headers: previewHeaders({ address: request.address, isTls, host }),
      };
      if (isLink || !credential.isInUrl || !isNavigation(request)) return route;
      // In a frame of another site browsers keep no other one.
      const [name, attributes] =
        isTls && isFrame(request.headers)
          ? [FRAME_COOKIE, 'SameSite=None; Secure; Partitioned']
          : [cookieName(isTls), `SameSite=Lax${isTls ? '; Secure' : ''}`];
      const cookie = `${name}=${token}; Path=/; HttpOnly; ${attributes}`;
      // Absolute: a path that begins with two slashes would name another host.
      const location = `${isTls ? 'https' : 'http'}://${host.authority}${url}`;
      return { ...route, redirect: { location, cookie } };
    },
  };
}

/** Whether a browser opens this as a page. */
function isNavigation({ method, headers }: RequestHead): boolean {
  if (method !== 'GET' && method !== 'HEAD') return false;
  const mode = headers['sec-fetch-mode'];
  if (mode !== undefined) return mode === 'navigate';
  return headers.upgrade === undefined && headers.accept?.includes('text/html') === true;
}
