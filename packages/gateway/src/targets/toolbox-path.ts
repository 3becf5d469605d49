import { badRequest, notFound, quote } from '@releap/contract';

/** What a toolbox path names. */
export interface ToolboxPath {
  /** As the client wrote it. */
  vmId: string;
  /** What follows the sandbox, with its query: `process/execute`, `files/download?path=%2Fa`. */
  tail: string;
}

export const TOOLBOX_PREFIX = '/toolbox/';
const MAX_ID_CHARS = 128;

/**
 * Reads `/toolbox/{vm_id}/{tail}`, which the path must begin with. The tail is forwarded byte for byte, so what the next
 * server could read as another path is refused: dot segments, encoded or not, and encoded slashes.
 * @throws ApiError 400, 404
 */
export function parseToolboxPath(url: string): ToolboxPath {
  const [path = ''] = url.split('?', 1);
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
