import type { ImageReference } from '@releap/contract';
import { ImageError, show } from './image-error.ts';
import type { ImageErrorCode } from './image-error.ts';

/** skopeo says everything on standard error, in words; the first pattern that fits decides. */
const CAUSES: readonly [
  RegExp,
  ImageErrorCode,
  (name: string, host: string, authenticated: boolean) => string,
][] = [
  [
    /no space left on device|disk quota exceeded/i,
    'no-space',
    (name) => `no space left on the image cache's disk while fetching ${name}`,
  ],
  [
    /file too large|file size limit/i,
    'too-large',
    (name, host) => `${host} sent more bytes for a layer of ${name} than an image may have`,
  ],
  [
    /toomanyrequests|too many requests|rate limit/i,
    'rate-limited',
    (name, host) => `registry ${host} refuses more requests for now (rate limit) while fetching ${name}`,
  ],
  [
    /digest did not match|does not match (?:the )?(?:provided |expected )?(?:manifest )?digest|does not match expected|doesn't match|digest mismatch|unexpected (?:blob )?(?:digest|size)|blob size mismatch/i,
    'lying-registry',
    (name, host) => `registry ${host} sent content for ${name} that does not match its digest`,
  ],
  [
    /x509:|tls:|certificate|server gave HTTP response to HTTPS client|first record does not look like a TLS handshake/i,
    'tls',
    (name, host) =>
      `no trusted TLS connection to registry ${host} for ${name} (plain HTTP is used for loopback hosts only)`,
  ],
  [
    /connection refused|no such host|i\/o timeout|network is unreachable|no route to host|connection reset|server misbehaving|temporary failure in name resolution|unexpected EOF|: EOF|deadline exceeded|TLS handshake timeout|Client\.Timeout|pinging container registry [^:]+(?::[0-9]+)?: (?:Get|received unexpected HTTP status)/i,
    'unreachable',
    (name, host) => `registry ${host} cannot be reached for ${name}`,
  ],
  [
    /unauthorized|authentication required|access to the resource is denied|denied:|no basic auth credentials|invalid username\/password|\b40[13]\b/i,
    'unauthorized',
    (name, host, authenticated) =>
      authenticated
        ? `registry ${host} does not accept the project's credential for ${name}`
        : `registry ${host} wants authentication for ${name}, or it does not exist; store a credential for ${host}`,
  ],
  [
    /manifest unknown|name unknown|manifest invalid|not found|name invalid|\b404\b/i,
    'not-found',
    (name, host) => `registry ${host} has no image ${name}`,
  ],
  [
    /unsupported (?:manifest )?(?:media ?type|MIME type|schema)|unknown media type|unimplemented/i,
    'unsupported',
    (name) => `${name} is not a container image of a supported kind`,
  ],
];

/** A readable error for what skopeo wrote; its own last words are quoted, bounded. */
export function registryError(reference: ImageReference, stderr: string, authenticated: boolean): ImageError {
  const said = lastMessage(stderr);
  for (const [pattern, code, say] of CAUSES) {
    if (pattern.test(said)) {
      return new ImageError(
        code,
        `${say(reference.canonical, reference.host, authenticated)}: ${show(said, 300)}`,
      );
    }
  }
  return new ImageError('failed', `fetching ${reference.canonical} failed: ${show(said, 500)}`);
}

/** skopeo logs as `time="…" level=fatal msg="…"`; the message of the last such line, else everything. */
function lastMessage(stderr: string): string {
  const line =
    stderr
      .trim()
      .split('\n')
      .findLast((text) => text.includes('level=fatal')) ?? stderr.trim();
  const quoted = /msg=("(?:[^"\\]|\\.)*")/.exec(line)?.[1];
  if (quoted === undefined) return line;
  try {
    return JSON.parse(quoted) as string;
  } catch {
    return quoted;
  }
}
