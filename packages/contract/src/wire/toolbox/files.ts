/**
 * Files of a sandbox, and facts about it. The gateway serves the operations on one file, the toolbox daemon in the sandbox
 * those on many.
 */
import { Type, type Static } from 'typebox';
import type { Operation } from '../platform/operation.ts';
import { common, daemonErrors, errors, full, invalid, Path, PathQuery, WriteQuery } from './shared.ts';

export const FileInfo = Type.Object({
  name: Type.String(),
  isDir: Type.Boolean(),
  size: Type.Integer({ description: 'Bytes.' }),
  modifiedAt: Type.String({ format: 'date-time', description: 'RFC 3339.' }),
  modTime: Type.String({ format: 'date-time', description: 'The same; an older name.' }),
  mode: Type.String({ description: 'As in `-rw-r--r--`.' }),
  permissions: Type.String({ description: 'Octal, as in `0644`.' }),
  owner: Type.String({ description: 'Numeric.' }),
  group: Type.String({ description: 'Numeric.' }),
  type: Type.Enum(['file', 'directory', 'symlink', 'fifo', 'socket', 'device', 'other'] as const),
  link: Type.Optional(Type.String({ description: 'Target of a symbolic link.' })),
});
export type FileInfo = Static<typeof FileInfo>;

const Pattern = Type.String({
  description: 'A regular expression (RE2); literal text where it is not a valid one.',
});
const Folder = Type.Object({ dir: Type.String() });

export const toolboxFileOperations = {
  uploadFile: {
    ...common,
    method: 'POST',
    path: '/files/upload',
    summary: 'Write a file',
    description:
      'Atomic: the file appears whole or not at all. It keeps the mode and owner of the file it replaces. ' +
      '`multipart/form-data` with a field `file` is accepted too.',
    query: WriteQuery,
    consumes: ['application/octet-stream'],
    body: Type.Unknown(),
    success: {
      status: 200,
      response: {
        description: 'Written.',
        schema: Type.Object({ path: Type.String(), bytes: Type.Integer() }),
      },
    },
    errors: { ...invalid, ...errors, ...full },
  },
  downloadFile: {
    ...common,
    method: 'GET',
    path: '/files/download',
    summary: 'Read a file',
    description: 'A `Range` header with one range of bytes gives 206 with these bytes.',
    query: PathQuery,
    success: {
      status: 200,
      response: { description: 'Its bytes.', schema: Type.String(), contentType: 'application/octet-stream' },
    },
    errors: { ...invalid, ...errors, 416: 'No byte of the file is in the range.' },
  },
  listFiles: {
    ...common,
    method: 'GET',
    path: '/files',
    summary: 'List a folder',
    description: 'At most 10000 entries; beyond that the header `x-releap-truncated: true` is set.',
    query: Type.Object({ path: Type.Optional(Path) }),
    success: { status: 200, response: { description: 'Its entries.', schema: Type.Array(FileInfo) } },
    errors: { ...invalid, ...errors },
  },
  getFileInfo: {
    ...common,
    method: 'GET',
    path: '/files/info',
    summary: 'Describe a file or folder',
    description: 'Does not follow a symbolic link.',
    query: PathQuery,
    success: { status: 200, response: { description: 'The description.', schema: FileInfo } },
    errors: { ...invalid, ...errors },
  },
  createFolder: {
    ...common,
    method: 'POST',
    path: '/files/folder',
    summary: 'Create a folder and its parents',
    query: WriteQuery,
    success: {
      status: 201,
      response: { description: 'Created.', schema: Type.Object({ path: Type.String() }) },
    },
    errors: { ...invalid, ...errors, ...full },
  },
  deleteFile: {
    ...common,
    method: 'DELETE',
    path: '/files',
    summary: 'Delete a file or folder',
    query: Type.Object({
      path: Path,
      recursive: Type.Optional(
        Type.Boolean({ default: false, description: 'Required for a folder that is not empty.' }),
      ),
    }),
    success: { status: 204, response: { description: 'Deleted.' } },
    errors: { ...invalid, ...errors },
  },
  uploadFiles: {
    ...common,
    method: 'POST',
    path: '/files/bulk-upload',
    summary: 'Write many files',
    description:
      'For each file a field `files[i].path`, and after it a file `files[i].file`. Each file is written as `uploadFile` does; missing ' +
      'folders are created. A file that fails does not keep the others from being written; the error names it.',
    consumes: ['multipart/form-data'],
    form: Type.Object({ 'files[0].path': Path, 'files[0].file': Type.String({ format: 'binary' }) }),
    success: {
      status: 200,
      response: { description: 'All are written.', schema: Type.Object({ files: Type.Integer() }) },
    },
    errors: { ...daemonErrors, ...full },
  },
  downloadFiles: {
    ...common,
    method: 'POST',
    path: '/files/bulk-download',
    summary: 'Read many files',
    description:
      'The response is a form. Each file is a part `file` whose filename is the path of the request; a name that is not plain ASCII is ' +
      "encoded as RFC 5987 says (`filename*=UTF-8''…`). A path that cannot be read is a part `error` with `{error, message, statusCode}`.",
    body: Type.Object({ paths: Type.Array(Path, { minItems: 1, maxItems: 100_000 }) }),
    success: {
      status: 200,
      response: { description: 'The files.', schema: Type.String(), contentType: 'multipart/form-data' },
    },
    errors: daemonErrors,
  },
  moveFile: {
    ...common,
    method: 'POST',
    path: '/files/move',
    summary: 'Rename a file or folder',
    description: 'Into a folder that exists, it keeps its name. Nothing is replaced.',
    query: Type.Object({ source: Path, destination: Path }),
    success: {
      status: 200,
      response: { description: 'The new path.', schema: Type.Object({ path: Type.String() }) },
    },
    errors: daemonErrors,
  },
  setFilePermissions: {
    ...common,
    method: 'POST',
    path: '/files/permissions',
    summary: 'Change mode, owner and group of a file or folder',
    query: Type.Object({
      path: Path,
      mode: Type.Optional(Type.String({ description: 'Octal, as in `0644`.' })),
      owner: Type.Optional(Type.String({ description: 'Name or number.' })),
      group: Type.Optional(Type.String({ description: 'Name or number.' })),
    }),
    success: { status: 200, response: { description: 'Changed.' } },
    errors: daemonErrors,
  },
  findInFiles: {
    ...common,
    method: 'GET',
    path: '/files/find',
    summary: 'Find lines of text files',
    description:
      'Follows no links and skips binary files. At most 10000 lines; beyond that the header `x-releap-truncated: true` is set.',
    query: Type.Object({ path: Path, pattern: Pattern }),
    success: {
      status: 200,
      response: {
        description: 'The matching lines.',
        schema: Type.Array(
          Type.Object({ file: Type.String(), line: Type.Integer(), content: Type.String() }),
        ),
      },
    },
    errors: daemonErrors,
  },
  searchFiles: {
    ...common,
    method: 'GET',
    path: '/files/search',
    summary: 'Find files and folders by name',
    description: 'At most 10000; beyond that the header `x-releap-truncated: true` is set.',
    query: Type.Object({
      path: Path,
      pattern: Type.String({ description: 'A shell pattern for the last part of the path, as in `*.txt`.' }),
    }),
    success: {
      status: 200,
      response: {
        description: 'The paths.',
        schema: Type.Object({ files: Type.Array(Type.String()) }),
      },
    },
    errors: daemonErrors,
  },
  replaceInFiles: {
    ...common,
    method: 'POST',
    path: '/files/replace',
    summary: 'Replace text in files',
    description:
      'The new text is literal. Files are replaced atomically, one by one; each has its own result.',
    body: Type.Object({ files: Type.Array(Path), pattern: Pattern, newValue: Type.String() }),
    success: {
      status: 200,
      response: {
        description: 'A result for each file.',
        schema: Type.Array(
          Type.Object({
            file: Type.String(),
            success: Type.Boolean(),
            error: Type.Optional(Type.String()),
          }),
        ),
      },
    },
    errors: daemonErrors,
  },
  getWorkDir: {
    ...common,
    method: 'GET',
    path: '/work-dir',
    summary: 'Get the working directory',
    success: { status: 200, response: { description: 'The folder.', schema: Folder } },
    errors: daemonErrors,
  },
  getUserHomeDir: {
    ...common,
    method: 'GET',
    path: '/user-home-dir',
    summary: "Get the home folder of the image's user",
    success: { status: 200, response: { description: 'The folder.', schema: Folder } },
    errors: daemonErrors,
  },
  listPortsInUse: {
    ...common,
    method: 'GET',
    path: '/port',
    summary: 'List the TCP ports on which something listens',
    success: {
      status: 200,
      response: {
        description: 'The ports.',
        schema: Type.Object({ ports: Type.Array(Type.Integer()) }),
      },
    },
    errors: daemonErrors,
  },
  isPortInUse: {
    ...common,
    method: 'GET',
    path: '/port/:port/in-use',
    summary: 'Tell whether something listens on a TCP port',
    params: Type.Object({ port: Type.Integer({ minimum: 1, maximum: 65_535 }) }),
    success: {
      status: 200,
      response: { description: 'Whether it does.', schema: Type.Object({ isInUse: Type.Boolean() }) },
    },
    errors: daemonErrors,
  },
} as const satisfies Record<string, Operation>;
