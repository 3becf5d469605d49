/**
 * Commands and files of a running sandbox, below `{toolbox_proxy_url}/{vm_id}`. The gateway serves these operations;
 * docs/toolbox.md describes what they do. Where the wire protocol that other SDKs speak has an operation, this is it.
 */
import { Type, type Static } from 'typebox';
import type { Operation, ApiResource } from './platform/operation.ts';
import { toolboxFileOperations } from './toolbox-files.ts';
import { toolboxCodeOperations } from './toolbox-code.ts';
import { toolboxSessionOperations } from './toolbox-sessions.ts';
import { errors, full, GatewayErrorBody, invalid, Path, PathQuery, WriteQuery } from './toolbox-parts.ts';
import { PROCESS_STREAM_SOCKET, webSocketSchemas } from './websocket.ts';

export const ProcessExecuteRequest = Type.Object({
  command: Type.String({ minLength: 1, description: 'Run by `/bin/sh -c`.' }),
  cwd: Type.Optional(Type.String({ description: "Default: the image's working directory." })),
  env: Type.Optional(
    Type.Record(Type.String(), Type.String({ writeOnly: true }), {
      description: "Overrides the sandbox's environment.",
    }),
  ),
  envs: Type.Optional(
    Type.Record(Type.String(), Type.String({ writeOnly: true }), {
      description:
        'Another name of `env`, as SDKs of the compatible protocol have it. `env` takes precedence.',
    }),
  ),
  timeout: Type.Optional(
    Type.Number({ minimum: 0, maximum: 86_400, description: 'Seconds; 360 when absent or 0.' }),
  ),
  user: Type.Optional(
    Type.String({ description: "Name or uid, optionally `:group`. Default: the image's." }),
  ),
});
export type ProcessExecuteRequest = Static<typeof ProcessExecuteRequest>;

export const ProcessExecuteResponse = Type.Object({
  exitCode: Type.Integer(),
  result: Type.String({ description: 'Standard output and standard error, interleaved, as UTF-8.' }),
  truncated: Type.Optional(Type.Boolean({ description: 'The output was longer than 8 MiB.' })),
});
export type ProcessExecuteResponse = Static<typeof ProcessExecuteResponse>;

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

const singleOperations = {
  executeProcess: {
    server: 'toolbox',
    method: 'POST',
    path: '/process/execute',
    tag: 'Toolbox',
    summary: 'Run a command, and respond when it has ended',
    description: 'An unknown command gives 200 with `exitCode` 127.',
    security: 'sandbox',
    body: ProcessExecuteRequest,
    success: { status: 200, response: { description: 'It has ended.', schema: ProcessExecuteResponse } },
    errors: { ...invalid, ...errors, 408: 'The timeout of the command has passed; it was ended.' },
  },
  streamProcess: {
    server: 'toolbox',
    method: 'GET',
    path: '/process/stream',
    tag: 'Toolbox',
    summary: 'Run a command with its streams, over a WebSocket',
    description: '[toolbox.md](toolbox.md#processstream) describes its messages.',
    security: 'sandbox',
    websocket: PROCESS_STREAM_SOCKET,
    success: { status: 101, response: { description: 'The connection is a WebSocket.' } },
    errors: { ...invalid, ...errors },
  },
  uploadFile: {
    server: 'toolbox',
    method: 'POST',
    path: '/files/upload',
    tag: 'Toolbox',
    summary: 'Write a file',
    description:
      'Atomic: the file appears whole or not at all. It keeps the mode and owner of the file it replaces. ' +
      '`multipart/form-data` with a field `file` is accepted too.',
    security: 'sandbox',
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
    server: 'toolbox',
    method: 'GET',
    path: '/files/download',
    tag: 'Toolbox',
    summary: 'Read a file',
    description: 'A `Range` header with one range of bytes gives 206 with these bytes.',
    security: 'sandbox',
    query: PathQuery,
    success: {
      status: 200,
      response: { description: 'Its bytes.', schema: Type.String(), contentType: 'application/octet-stream' },
    },
    errors: { ...invalid, ...errors, 416: 'No byte of the file is in the range.' },
  },
  listFiles: {
    server: 'toolbox',
    method: 'GET',
    path: '/files',
    tag: 'Toolbox',
    summary: 'List a folder',
    description: 'At most 10000 entries; beyond that the header `x-releap-truncated: true` is set.',
    security: 'sandbox',
    query: Type.Object({ path: Type.Optional(Path) }),
    success: { status: 200, response: { description: 'Its entries.', schema: Type.Array(FileInfo) } },
    errors: { ...invalid, ...errors },
  },
  getFileInfo: {
    server: 'toolbox',
    method: 'GET',
    path: '/files/info',
    tag: 'Toolbox',
    summary: 'Describe a file or folder',
    description: 'Does not follow a symbolic link.',
    security: 'sandbox',
    query: PathQuery,
    success: { status: 200, response: { description: 'The description.', schema: FileInfo } },
    errors: { ...invalid, ...errors },
  },
  createFolder: {
    server: 'toolbox',
    method: 'POST',
    path: '/files/folder',
    tag: 'Toolbox',
    summary: 'Create a folder and its parents',
    security: 'sandbox',
    query: WriteQuery,
    success: {
      status: 201,
      response: { description: 'Created.', schema: Type.Object({ path: Type.String() }) },
    },
    errors: { ...invalid, ...errors, ...full },
  },
  deleteFile: {
    server: 'toolbox',
    method: 'DELETE',
    path: '/files',
    tag: 'Toolbox',
    summary: 'Delete a file or folder',
    security: 'sandbox',
    query: Type.Object({
      path: Path,
      recursive: Type.Optional(
        Type.Boolean({ default: false, description: 'Required for a folder that is not empty.' }),
      ),
    }),
    success: { status: 204, response: { description: 'Deleted.' } },
    errors: { ...invalid, ...errors },
  },
} as const satisfies Record<string, Operation>;

export const toolboxOperations = {
  ...singleOperations,
  ...toolboxFileOperations,
  ...toolboxSessionOperations,
  ...toolboxCodeOperations,
} as const;

export const toolboxResource = {
  tags: {
    Toolbox:
      'Commands and files of a running sandbox, below `{toolbox_proxy_url}/{vm_id}` of its region. [toolbox.md](toolbox.md) describes them in full.',
  },
  operations: toolboxOperations,
  schemas: {
    ProcessExecuteRequest,
    ProcessExecuteResponse,
    FileInfo,
    GatewayError: GatewayErrorBody,
    ...webSocketSchemas,
  },
} as const satisfies ApiResource;
