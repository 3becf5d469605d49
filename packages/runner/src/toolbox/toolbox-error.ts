/** Failures of the toolbox, as HTTP sees them. */
import { GuestError, type GuestErrorCode } from '../guest/index.ts';

const STATUS: Record<GuestErrorCode, number> = {
  not_found: 404,
  exists: 409,
  is_directory: 400,
  not_directory: 400,
  permission: 403,
  no_space: 507,
  invalid: 400,
  not_empty: 409,
  frozen: 409,
  state: 409,
  too_large: 413,
  cancelled: 409,
  internal: 500,
  protocol: 502,
  disconnected: 502,
  timeout: 504,
  aborted: 500,
};

/** Carries the status that fastify answers with. */
export class ToolboxError extends Error {
  readonly statusCode: number;

  constructor(statusCode: number, message: string, options?: ErrorOptions) {
    super(message, options);
    this.name = 'ToolboxError';
    this.statusCode = statusCode;
  }
}

/** The body of an error: `message` is what SDKs of the compatible protocol show. */
export function errorBody(
  statusCode: number,
  error: string,
): { error: string; message: string; statusCode: number } {
  return { error, message: error, statusCode };
}

export function toToolboxError(error: unknown): Error {
  return error instanceof GuestError
    ? new ToolboxError(STATUS[error.code], error.message, { cause: error })
    : (error as Error);
}
