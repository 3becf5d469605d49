/**
 * Commands and files of a running sandbox, below `{toolbox_proxy_url}/{vm_id}`. The gateway serves these operations;
 * docs/toolbox.md describes what they do. Where the wire protocol that other SDKs speak has an operation, this is it.
 */
import type { ApiResource } from '../platform/operation.ts';
import {
  InterpreterCode,
  InterpreterControl,
  InterpreterException,
  InterpreterStderr,
  InterpreterStdout,
  toolboxCodeOperations,
} from './code.ts';
import { FileInfo, toolboxFileOperations } from './files.ts';
import {
  ProcessError,
  ProcessExecuteRequest,
  ProcessExecuteResponse,
  ProcessExit,
  ProcessOutputEnd,
  ProcessResize,
  ProcessSignal,
  ProcessStart,
  ProcessStdinEnd,
  ProcessWarning,
  toolboxProcessOperations,
} from './process.ts';
import { TerminalStatus, toolboxSessionOperations } from './sessions.ts';
import { GatewayErrorBody } from './shared.ts';

/** The messages, as components of the OpenAPI document. */
export const webSocketSchemas = {
  ProcessStart,
  ProcessStdinEnd,
  ProcessResize,
  ProcessSignal,
  ProcessOutputEnd,
  ProcessExit,
  ProcessWarning,
  ProcessError,
  TerminalStatus,
  InterpreterCode,
  InterpreterStdout,
  InterpreterStderr,
  InterpreterException,
  InterpreterControl,
} as const;

export const toolboxOperations = {
  ...toolboxProcessOperations,
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
