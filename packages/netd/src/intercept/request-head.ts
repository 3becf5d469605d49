/** The head of an intercepted request: what is refused, and what is sent on with placeholders replaced. Pure. */
import { RefusedRequest } from './refused-request.ts';
import type { Handover } from '@releap/contract/netd';
import type { SandboxSecrets } from './sandbox-secrets.ts';

/** As a client sent it. Strings are bytes (latin1). */
export interface RequestHead {
  method: string;
  target: string;
  /** Names and values by turns. */
  rawHeaders: readonly string[];
}

/** RFC 9110 §7.6.1, and what concerns the connection to a proxy. */
const HOP_BY_HOP: ReadonlySet<string> = new Set([
  'connection',
  'keep-alive',
  'proxy-connection',
  'proxy-authenticate',
  'proxy-authorization',
  'te',
  'trailer',
  'transfer-encoding',
  'upgrade',
]);
/** What a `Connection` field cannot remove: the meaning of the request depends on it. */
const ESSENTIAL: ReadonlySet<string> = new Set(['host', 'content-length', 'authorization', 'cookie']);

export interface Headers {
  /** Names and values by turns, without what concerns one connection alone. */
  list: string[];
  /** By lower-case name; the last of several. */
  get: (name: string) => string | undefined;
}

/** @throws RefusedRequest unless this is a well-formed request to the host of the connection */
export function checkHead(head: RequestHead, connection: Handover): { target: string; headers: Headers } {
  const { method, rawHeaders } = head;
  if (method === 'CONNECT' || method === 'TRACE')
    throw new RefusedRequest(405, `${method} is not allowed to a host that secrets are sent to`);
  const hosts = valuesOf(rawHeaders, 'host');
  if (hosts.length !== 1) throw new RefusedRequest(400, 'the request must have one Host field');
  requireAuthority(hosts[0] ?? '', connection);
  const codings = valuesOf(rawHeaders, 'transfer-encoding');
  if (codings.length > 1 || (codings[0] !== undefined && codings[0].trim().toLowerCase() !== 'chunked'))
    throw new RefusedRequest(400, 'the only Transfer-Encoding that is allowed is chunked');
  const lengths = valuesOf(rawHeaders, 'content-length');
  if (lengths.length > 1 || (lengths.length === 1 && codings.length === 1))
    throw new RefusedRequest(400, 'the length of the request is ambiguous');
  return { target: originForm(head, connection), headers: endToEnd(rawHeaders) };
}

/** The head with values in the place of placeholders, where they may be sent to. */
export function replaceInHead(
  { target, headers }: { target: string; headers: Headers },
  secrets: SandboxSecrets,
  host: string,
): { target: string; headers: string[]; replaced: boolean } {
  let replaced = false;
  const onReplaced = (): void => void (replaced = true);
  const [path = '', ...query] = target.split('?');
  const newPath = secrets.replaceIn(path, host, 'path', onReplaced);
  const newQuery = secrets.replaceIn(query.join('?'), host, 'url', onReplaced);
  const list = headers.list.map((text, index) => {
    if (index % 2 === 0) return text;
    const basic = /^(basic +)([A-Za-z0-9+/_-]+={0,2})\s*$/i.exec(text);
    if (basic !== null) {
      const [, scheme = '', encoded = ''] = basic;
      const plain = Buffer.from(encoded, 'base64').toString('latin1');
      const filled = secrets.replaceIn(plain, host, 'raw', onReplaced);
      return filled === plain ? text : scheme + Buffer.from(filled, 'latin1').toString('base64');
    }
    let changed = false;
    const filled = secrets.replaceIn(text, host, 'raw', () => void (changed = true));
    // A value of several lines would be other fields: it cannot be sent in one.
    // oxlint-disable-next-line no-control-regex
    if (!changed || /[\0-\x08\x0a-\x1f\x7f]/.test(filled)) return text;
    replaced = true;
    return filled;
  });
  return { target: query.length === 0 ? newPath : `${newPath}?${newQuery}`, headers: list, replaced };
}

/** Fields that concern more than one connection. */
export function endToEnd(rawHeaders: readonly string[]): Headers {
  const dropped = new Set(HOP_BY_HOP);
  for (const value of valuesOf(rawHeaders, 'connection'))
    for (const name of value.split(',').map((token) => token.trim().toLowerCase()))
      if (!ESSENTIAL.has(name)) dropped.add(name);
  const list: string[] = [];
  const byName = new Map<string, string>();
  for (let at = 0; at + 1 < rawHeaders.length; at += 2) {
    const [name = '', value = ''] = [rawHeaders[at], rawHeaders[at + 1]];
    if (dropped.has(name.toLowerCase())) continue;
    list.push(name, value);
    byName.set(name.toLowerCase(), value);
  }
  return { list, get: (name) => byName.get(name) };
}

/** The same fields, one of them replaced or, with undefined, removed. */
export function withHeader(list: readonly string[], name: string, value: string | undefined): string[] {
  const out: string[] = [];
  for (let at = 0; at + 1 < list.length; at += 2) {
    const [key = '', current = ''] = [list[at], list[at + 1]];
    if (key.toLowerCase() !== name) out.push(key, current);
  }
  if (value !== undefined) out.push(name, value);
  return out;
}

/** The values of a field, in order. */
function valuesOf(rawHeaders: readonly string[], name: string): string[] {
  return rawHeaders.filter((_, index) => index % 2 === 1 && rawHeaders[index - 1]?.toLowerCase() === name);
}

/** The authority must be the one that the connection was made to: it decides which values are sent. */
function requireAuthority(authority: string, { host, tls, port }: Handover): void {
  const match = /^([^:@/\s]+?)\.?(?::(\d{1,5}))?$/.exec(authority.trim().toLowerCase());
  const namedPort = match?.[2] === undefined ? (tls ? 443 : 80) : Number(match[2]);
  if (match?.[1] !== host || (match[2] !== undefined && namedPort !== port))
    throw new RefusedRequest(421, `the request is for another host than the connection, which is to ${host}`);
}

function originForm({ method, target }: RequestHead, connection: Handover): string {
  if (target.startsWith('/') || (target === '*' && method === 'OPTIONS')) return target;
  const absolute = /^https?:\/\/([^/?#]*)(.*)$/i.exec(target);
  if (absolute === null) throw new RefusedRequest(400, 'the target of the request is not a path');
  requireAuthority(absolute[1] ?? '', connection);
  const rest = absolute[2] ?? '';
  return rest.startsWith('/') ? rest : `/${rest}`;
}
