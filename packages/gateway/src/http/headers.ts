/** The header policies of the gateway, in both directions, by kind of target. */
import { keepEndToEnd, REQUEST_ID_HEADER } from '@releap/contract';
import type { HeaderLists } from '@releap/contract/response-pump';
import type { IncomingHttpHeaders, OutgoingHttpHeaders } from 'node:http';

/** `expect` is handled here, `host` and `content-length` are replaced. */
const SET_ANEW = new Set(['expect', 'host', 'content-length']);

/** Removed headers beside hop-by-hop ones, in lower case. */
export interface HeaderRules {
  request: readonly string[];
  requestPrefixes?: readonly string[];
  response: readonly string[];
}

export interface HeaderPolicy {
  /**
   * Headers for the runner. `content-length` is passed on when it was given, because the framing of the body must not
   * change in a way that only one side sees.
   * @param dataToken token for the runner's data server; it replaces the client's credential
   * @param requestId replaces the client's
   */
  request(
    headers: IncomingHttpHeaders,
    dataToken: string,
    requestId: string,
  ): Record<string, string | string[]>;
  /** Headers for the client. */
  response(headers: HeaderLists, requestId: string): OutgoingHttpHeaders;
}

export function headerPolicy(rules: HeaderRules): HeaderPolicy {
  const request = new Set(rules.request);
  const prefixes = rules.requestPrefixes ?? [];
  const response = new Set(rules.response);
  return {
    request(headers, dataToken, requestId) {
      const kept = keepEndToEnd(
        headers,
        (name) =>
          SET_ANEW.has(name) || request.has(name) || prefixes.some((prefix) => name.startsWith(prefix)),
      );
      const length = headers['content-length'];
      if (length !== undefined) kept['content-length'] = length;
      kept['authorization'] = `Bearer ${dataToken}`;
      kept[REQUEST_ID_HEADER] = requestId;
      return kept;
    },
    response: (headers, requestId) => ({
      ...keepEndToEnd(headers, (name) => response.has(name)),
      [REQUEST_ID_HEADER]: requestId,
    }),
  };
}
