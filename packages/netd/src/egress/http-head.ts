/**
 * Reads the host of an HTTP/1 request (RFC 9112 section 3.2). Strict where servers differ, because a request that two parties
 * read differently would reach another host than the one that was checked. Pure.
 */
export const HEAD_MAX_BYTES = 32 * 1024;
const LINE_MAX_BYTES = 16 * 1024;

/** What follows a request's head: a body of so many bytes, one in chunks, or another protocol. */
export type Body = number | 'chunked' | 'opaque';

/**
 * `more`: bytes are missing. `other`: no HTTP/1. `invalid`: HTTP that is refused. Otherwise its host, without the port, and how
 * many bytes the head has.
 */
export type HttpHead = 'more' | 'other' | 'invalid' | { host: string | undefined; end: number; body: Body };

const REQUEST_LINE = /^([!#$%&'*+.^_`|~0-9A-Za-z-]+) (\S+) HTTP\/1\.[01]$/;
/** Looks like a request to some server, if not to a strict one: other spaces, another version, none. */
const ALMOST_REQUEST =
  /^\s*[!-~]+[ \t\v\f\r]+.*HTTP\/\d|^\s*(?:GET|HEAD|POST|PUT|DELETE|OPTIONS|PATCH|TRACE|CONNECT)[ \t]/i;
const HEADER = /^([!#$%&'*+.^_`|~0-9A-Za-z-]+):[ \t]*(.*?)[ \t]*$/;

export function readHttpHead(bytes: Buffer): HttpHead {
  const text = bytes.toString('latin1', 0, HEAD_MAX_BYTES + 1);
  const lineEnd = text.indexOf('\n');
  const line = lineEnd === -1 ? text : text.slice(0, lineEnd);
  if (!/^[\t\r -~]*$/.test(line)) return ALMOST_REQUEST.test(line) ? 'invalid' : 'other';
  if (lineEnd === -1) return line.length > LINE_MAX_BYTES ? 'invalid' : 'more';
  const request = REQUEST_LINE.exec(line.replace(/\r$/, ''));
  if (request === null) return line.trim() === '' || ALMOST_REQUEST.test(line) ? 'invalid' : 'other';
  const end = /\r?\n\r?\n/.exec(text);
  if (end === null) return bytes.length >= HEAD_MAX_BYTES ? 'invalid' : 'more';
  const [, method = '', target = ''] = request;
  const hosts: string[] = [];
  const framing: Framing = { lengths: [], encodings: [], upgrades: false };
  for (const header of text.slice(lineEnd + 1, end.index).split(/\r?\n/)) {
    // The head may have no header at all.
    if (header === '') continue;
    const parts = HEADER.exec(header);
    // Continued lines and bare carriage returns are read differently by different servers.
    if (parts === null || /[\r\0]/.test(header)) return 'invalid';
    const name = (parts[1] ?? '').toLowerCase();
    if (name === 'host') hosts.push(parts[2] ?? '');
    if (name === 'content-length') framing.lengths.push(parts[2] ?? '');
    if (name === 'transfer-encoding') framing.encodings.push((parts[2] ?? '').toLowerCase());
    // HTTP/2 names a host in each request by itself.
    if (name === 'upgrade' && /\bh2c\b/i.test(parts[2] ?? '')) return 'invalid';
    if (name === 'upgrade' && /^websocket$/i.test(parts[2] ?? '')) framing.upgrades = true;
  }
  if (hosts.length > 1) return 'invalid';
  const host = hosts[0] === undefined ? undefined : withoutPort(hosts[0]);
  if (hosts[0] !== undefined && host === undefined) return 'invalid';
  const named = targetHost(method, target);
  if (named === null || (named !== undefined && named !== host)) return 'invalid';
  const body = method.toUpperCase() === 'CONNECT' ? 'opaque' : bodyOf(framing);
  return body === undefined ? 'invalid' : { host, end: end.index + end[0].length, body };
}

interface Framing {
  lengths: string[];
  encodings: string[];
  upgrades: boolean;
}

/** Undefined where servers differ in how long the body is (RFC 9112 section 6.3). */
function bodyOf({ lengths, encodings, upgrades }: Framing): Body | undefined {
  const [length = '0', ...more] = lengths;
  if (more.length > 0 || !/^\d{1,15}$/.test(length)) return undefined;
  if (encodings.length > 0)
    return encodings.join() === 'chunked' && lengths.length === 0 ? 'chunked' : undefined;
  return upgrades ? 'opaque' : Number(length);
}

/** The host that the request line names besides the header, as in a request to a proxy; null for what is none. */
function targetHost(method: string, target: string): string | null | undefined {
  if (method.toUpperCase() === 'CONNECT') return withoutPort(target) ?? null;
  if (target.startsWith('/') || target === '*') return undefined;
  const authority = /^[a-z][a-z0-9+.-]*:\/\/([^/?#]*)/i.exec(target)?.[1];
  if (authority === undefined || authority.includes('@')) return null;
  return withoutPort(authority) ?? null;
}

/** In lower case; undefined for what is no host. */
function withoutPort(text: string): string | undefined {
  return /^(\[[0-9a-f:.]+\]|[a-z0-9_.-]+)(?::\d{0,5})?$/i.exec(text)?.[1]?.toLowerCase();
}
