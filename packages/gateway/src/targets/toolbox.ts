import type { IncomingHttpHeaders } from 'node:http';
import { bearerToken, tokenKind, TOOLBOX_KEY, unauthorized } from '@releap/contract';
import { type HeaderPolicy, headerPolicy } from '../http/headers.ts';
import type { TargetKind } from './target.ts';
import { takeParameter } from './url-parameter.ts';
import { isDaemonOperation, parseToolboxPath, takesKeyInUrl, TOOLBOX_PREFIX } from './toolbox-path.ts';

/**
 * The toolbox is a part of the service, not of the workload: credentials, cookies and forwarded addresses of the client
 * are removed, and the response cannot set cookies.
 */
const HEADERS = headerPolicy({
  request: ['authorization', 'proxy-authorization', 'cookie', 'forwarded', 'x-api-key', 'x-real-ip'],
  requestPrefixes: ['x-forwarded-'],
  response: ['proxy-authenticate', 'set-cookie', 'www-authenticate'],
});

/** For the daemon in the guest: no token of the service enters a guest. */
const DAEMON_HEADERS: HeaderPolicy = {
  request(headers, dataToken, requestId) {
    const { authorization: _removed, ...kept } = HEADERS.request(headers, dataToken, requestId);
    return kept;
  },
  response: (headers, requestId) => HEADERS.response(headers, requestId),
};

/** `/toolbox/{sandbox id}/{operation}`, with an API key of the project or the access token of the sandbox. */
export const toolbox: TargetKind = {
  kind: 'toolbox',
  route({ url, headers }) {
    if (!url.startsWith(TOOLBOX_PREFIX)) return undefined;
    const parameter = takeParameter(url, TOOLBOX_KEY.parameter);
    const { vmId, tail } = parseToolboxPath(parameter.url);
    const target = { kind: 'toolbox', sandbox: vmId } as const;
    const key = takesKeyInUrl(tail) ? webSocketKey(headers, parameter.token) : null;
    const token = key ?? credentialOf(headers);
    if (isDaemonOperation(tail))
      return {
        target,
        token,
        service: 'toolbox',
        upstreamPath: () => `/${tail}`,
        headers: DAEMON_HEADERS,
      };
    return {
      target,
      token,
      upstreamPath: (lease) => `/vms/${encodeURIComponent(lease.vmId)}/toolbox/${tail}`,
      headers: HEADERS,
    };
  },
};

/**
 * The preview token of a WebSocket's URL, for clients that cannot set its headers. API keys do not belong into URLs, and a
 * link must not run commands.
 */
function webSocketKey({ authorization, upgrade }: IncomingHttpHeaders, key: string | null): string | null {
  if (key === null || authorization !== undefined) return null;
  return upgrade?.toLowerCase() === 'websocket' && tokenKind(key) === 'preview' ? key : null;
}

/** An API key or a sandbox's access token. @throws ApiError 401 without one */
export function credentialOf({ authorization }: IncomingHttpHeaders): string {
  const token = bearerToken(authorization);
  const form = token === null ? null : tokenKind(token);
  if (token === null || (form !== 'apiKey' && form !== 'sandbox')) {
    throw unauthorized(
      "missing or invalid credentials: send Authorization: Bearer <API key or the sandbox's access token>",
    );
  }
  return token;
}
