import { badRequest, notFound, quote } from '@releap/contract';

/** A parsed toolbox path. */
export interface ToolboxPath {
  /** Raw, from the client. */
  vmId: string;
  /** The rest of the path, with its query: `process/execute`, `files/download?path=%2Fa`. */
  tail: string;
}

export const TOOLBOX_PREFIX = '/toolbox/';
const MAX_ID_CHARS = 128;

/**
 * What the daemon in the guest serves: all that has state, or many files. The runner serves the rest with the guest's agent, which
 * needs no further process for it.
 */
const DAEMON =
  /^(?:process\/(?:code-run|session(?!\/entrypoint(?:[/?]|$))|pty|interpreter)|files\/(?:bulk-upload|bulk-download|find|search|replace|move|permissions)|git|port|user-home-dir|work-dir|version)(?:[/?]|$)/;

/** @param tail of a toolbox path */
export function isDaemonOperation(tail: string): boolean {
  return DAEMON.test(tail);
}

/** Logs of sessions, terminals and interpreters: WebSockets that clients without headers open, too. */
const KEYED_SOCKET = /^process\/(?:session|pty|interpreter)\//;

/** @param tail of a toolbox path */
export function takesKeyInUrl(tail: string): boolean {
  return KEYED_SOCKET.test(tail);
}

/**
 * Parses `/toolbox/{vm_id}/{tail}`. The tail is forwarded byte for byte, so everything that the next server could parse
 * as another path is refused: dot segments, encoded or not, and encoded slashes.
 * @throws ApiError 400, 404
 */
export function parseToolboxPath(url: string): ToolboxPath {
  const [path = ''] = url.split('?', 1);
  const segments = path.slice(TOOLBOX_PREFIX.length).split('/').map(decodeSegment);
  const [vmId = '', ...rest] = segments;
  if (vmId === '' || vmId.length > MAX_ID_CHARS || rest.length === 0 || rest[0] === '') {
    throw notFound(`no such path: ${quote(path)}; expected /toolbox/{vm_id}/{operation}`, 'route_not_found');
  }
  const start = url.indexOf('/', TOOLBOX_PREFIX.length) + 1;
  return { vmId, tail: url.slice(start) };
}

function decodeSegment(segment: string): string {
  let decoded: string;
  try {
    decoded = decodeURIComponent(segment);
  } catch {
    throw badRequest(`malformed percent encoding in path segment ${quote(segment)}`);
  }
  if (decoded === '.' || decoded === '..' || /[/\\\0]/.test(decoded)) {
    throw badRequest(`path segment ${quote(segment)} is not allowed`);
  }
  return decoded;
}
