import { bearerToken, tokenKind, unauthorized } from '@releap/contract';
import { headerPolicy } from '../http/headers.ts';
import type { TargetKind } from './target.ts';
import { parseToolboxPath, TOOLBOX_PREFIX } from './toolbox-path.ts';

/**
 * The toolbox is a part of the service, not of the workload: credentials, cookies and forwarded addresses of the client
 * are removed, and the response cannot set cookies.
 */
const HEADERS = headerPolicy({
  request: ['authorization', 'proxy-authorization', 'cookie', 'forwarded', 'x-api-key', 'x-real-ip'],
  requestPrefixes: ['x-forwarded-'],
  response: ['proxy-authenticate', 'set-cookie', 'www-authenticate'],
});

/** `/toolbox/{sandbox id}/{operation}`, with an API key of the project or the access token of the sandbox. */
export const toolbox: TargetKind = {
  kind: 'toolbox',
  route({ url, headers }) {
    if (!url.startsWith(TOOLBOX_PREFIX)) return undefined;
    const { vmId, tail } = parseToolboxPath(url);
    const token = bearerToken(headers.authorization);
    const form = token === null ? null : tokenKind(token);
    if (form !== 'apiKey' && form !== 'sandbox') {
      throw unauthorized(
        "missing or invalid credentials: send Authorization: Bearer <API key or the sandbox's access token>",
      );
    }
    return {
      target: { kind: 'toolbox', sandbox: vmId },
      token,
      upstreamPath: (lease) => `/vms/${encodeURIComponent(lease.vmId)}/toolbox/${tail}`,
      headers: HEADERS,
    };
  },
};
