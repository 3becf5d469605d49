/** What the operations of the toolbox share. */
import { Type } from 'typebox';
import { ErrorBody } from '../platform/errors.ts';

export const common = { server: 'toolbox', tag: 'Toolbox', security: 'sandbox' } as const;

export const Path = Type.String({
  description: "Relative to the image's working directory unless absolute.",
});
export const Mode = Type.String({ description: 'Permissions, octal, as in `0644`.' });
export const PathQuery = Type.Object({ path: Path });
export const WriteQuery = Type.Object({ path: Path, mode: Type.Optional(Mode) });

/** Errors of every toolbox operation, beside those that `operationErrors` adds. */
export const errors = {
  403: 'The file system denies it.',
  404: 'The sandbox, the file or the working directory does not exist.',
  409: 'The sandbox is not running, or is frozen for a snapshot; or a folder is not empty.',
  502: 'The sandbox did not respond, or closed the connection.',
  503: 'The credential cannot be checked now, or the host of the sandbox is being started again: nothing was done.',
  504: 'The sandbox did not respond in time.',
} as const;
export const invalid = { 400: 'The request is malformed, or the path names another type of file.' } as const;
export const full = { 507: "The sandbox's disk is full." } as const;

/** What the toolbox daemon of a sandbox adds to the errors of the toolbox. */
export const daemonErrors = { ...invalid, ...errors } as const;

const { error, code, request_id: requestId, retryable } = ErrorBody.properties;

/** An error of the toolbox or of a function: what the sandbox itself refuses has only the sentence. */
export const GatewayErrorBody = Type.Object({
  error,
  code: Type.Optional(code),
  request_id: Type.Optional(requestId),
  retryable: Type.Optional(retryable),
});

export const Env = Type.Record(Type.String(), Type.String({ writeOnly: true }));

/** Of the close code 1008. */
export const policy = 'The first message is not valid, or the sandbox refuses; the reason says why.';
