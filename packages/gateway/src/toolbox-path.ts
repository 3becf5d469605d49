import { badRequest, notFound, quote } from '@releap/contract';

/** Where a request is meant to go. */
export interface ToolboxTarget {
  /** As the caller wrote it. */
  vmId: string;
  /** What follows the sandbox, with its query: `process/execute`, `files/download?path=%2Fa`. */
  tail: string;
}

export const TOOLBOX_PREFIX = '/toolbox/';
const MAX_ID_CHARS = 128;

/**
 * Reads `/toolbox/{vm_id}/{tail}`. The tail goes on as it is, byte for byte, so whatever could mean another
 * place to the next server is refused: dot segments, encoded or not, and encoded slashes.
 */
export function parseToolboxPath(url: string): ToolboxTarget {
  const [path = ''] = url.split('?', 1);
  if (!path.startsWith(TOOLBOX_PREFIX)) throw notFound(`no such path: ${quote(path)}`);
  const segments = path.slice(TOOLBOX_PREFIX.length).split('/').map(decodeSegment);
  const [vmId = '', ...rest] = segments;
  if (vmId === '' || vmId.length > MAX_ID_CHARS || rest.length === 0 || rest[0] === '') {
    throw notFound(`no such path: ${quote(path)}; expected /toolbox/{vm_id}/{operation}`);
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
