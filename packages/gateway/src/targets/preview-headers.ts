/** Headers between a client and a server in a guest. */
import type { IncomingHttpHeaders } from 'node:http';
import {
  bearerToken,
  COMPAT_PREVIEW_TOKEN_HEADER,
  keepEndToEnd,
  PREVIEW_TOKEN_HEADER,
  REQUEST_ID_HEADER,
} from '@releap/contract';
import type { HeaderPolicy } from '../http/headers.ts';
import { isOwnCredential, withoutOwnCookies } from './preview-credential.ts';
import type { PreviewHost } from './preview-host.ts';

export interface PreviewClient {
  address: string;
  isTls: boolean;
  host: PreviewHost;
}

/** Set by the gateway, so that servers may rely on them. */
const FORWARDED = new Set(['forwarded', 'x-real-ip']);

/**
 * What the server in the guest gets is what the client sent, without credentials of this service. The guest's own
 * `Authorization` and cookies pass in both directions.
 */
export function previewHeaders(client: PreviewClient): HeaderPolicy {
  return {
    request(headers, _dataToken, requestId) {
      const kept = keepEndToEnd(headers, (name) => isRemoved(name, headers));
      const cookie = headers.cookie === undefined ? undefined : withoutOwnCookies(headers.cookie);
      if (cookie === undefined) delete kept['cookie'];
      else kept['cookie'] = cookie;
      const length = headers['content-length'];
      if (length !== undefined) kept['content-length'] = length;
      return {
        ...kept,
        host: client.host.authority,
        'x-forwarded-for': client.address,
        'x-forwarded-host': client.host.authority,
        'x-forwarded-proto': client.isTls ? 'https' : 'http',
        [REQUEST_ID_HEADER]: requestId,
      };
    },
    response(headers) {
      const kept = keepEndToEnd(headers, () => false);
      const cookies = headers['set-cookie'];
      if (cookies !== undefined) kept['set-cookie'] = cookies.map(forHost);
      return kept;
    },
  };
}

function isRemoved(name: string, headers: IncomingHttpHeaders): boolean {
  if (name === 'authorization') {
    const token = bearerToken(headers.authorization);
    return token !== null && isOwnCredential(token);
  }
  return (
    name === PREVIEW_TOKEN_HEADER ||
    name === COMPAT_PREVIEW_TOKEN_HEADER ||
    name === 'expect' ||
    name === 'proxy-authorization' ||
    FORWARDED.has(name) ||
    name.startsWith('x-forwarded-')
  );
}

/** A cookie for a domain would reach, or replace those of, other sandboxes: it becomes one for the host alone. */
function forHost(cookie: string): string {
  return cookie
    .split(';')
    .filter((part) => !/^\s*domain\s*=/i.test(part))
    .join(';');
}
