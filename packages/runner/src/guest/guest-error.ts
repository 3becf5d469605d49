/**
 * Codes that the agent answers with (`guest/internal/fault`), and those that this side adds:
 * `protocol` the guest broke the protocol and was cut off, `disconnected` the connection went,
 * `timeout` a deadline of ours passed, `aborted` our caller gave up.
 */
const GUEST_ERROR_CODES = [
  'not_found',
  'exists',
  'is_directory',
  'not_directory',
  'permission',
  'no_space',
  'invalid',
  'not_empty',
  'frozen',
  'state',
  'too_large',
  'cancelled',
  'internal',
  'protocol',
  'disconnected',
  'timeout',
  'aborted',
] as const;

export type GuestErrorCode = (typeof GUEST_ERROR_CODES)[number];

/** Everything that fails between us and a guest. The message may hold text that the guest chose: never markup. */
export class GuestError extends Error {
  readonly code: GuestErrorCode;

  constructor(code: GuestErrorCode, message: string, options?: ErrorOptions) {
    super(message, options);
    this.name = 'GuestError';
    this.code = code;
  }
}

/** A code as the guest sent it, or `internal` for one we do not know. */
export function guestErrorCode(text: unknown): GuestErrorCode {
  return GUEST_ERROR_CODES.find((code) => code === text) ?? 'internal';
}

/** Why a connection or request ended, as a GuestError whatever it was. */
export function toGuestError(error: unknown, fallback: GuestErrorCode): GuestError {
  if (error instanceof GuestError) return error;
  const text = error instanceof Error ? error.message : String(error);
  return new GuestError(fallback, text, { cause: error });
}
