import { ProcessError } from '../process/index.ts';
import type { ProcessFailure } from '../process/process-error.ts';

/** Why an image could not be had. `message` is fit to be shown to the user who asked for the image. */
export type ImageErrorCode =
  /** The reference itself is malformed. */
  | 'bad-reference'
  /** The registry knows no such repository, tag or digest; or there is no built-in image of that name. */
  | 'not-found'
  /** The registry wants other credentials than those it got (or any at all). */
  | 'unauthorized'
  /** No connection, no such host, or it broke off. */
  | 'unreachable'
  | 'tls'
  | 'rate-limited'
  /** What the registry sent is not what its digest says. */
  | 'lying-registry'
  /** The registry, or what it leads to, has an address that pulls may not connect to. */
  | 'private-address'
  /** Too many pulls wait already. */
  | 'busy'
  /** There is an image, but none for this machine's platform. */
  | 'no-platform'
  /** A kind of artifact or layer that is no container image we can boot. */
  | 'unsupported'
  /** The content breaks the rules of its own format, or tries to leave the root folder. */
  | 'invalid-image'
  /** Over one of `ImageLimits`. */
  | 'too-large'
  /** The Dockerfile, one of its steps or its context is at fault; or a limit of builds was reached. */
  | 'build-failed'
  | 'no-space'
  | 'tool-missing'
  | 'timeout'
  | 'aborted'
  /** A tool failed in a way we do not know; the message quotes it. */
  | 'failed';

const RETRYABLE: ReadonlySet<ImageErrorCode> = new Set([
  'unreachable',
  'rate-limited',
  'busy',
  'timeout',
  'no-space',
]);

export class ImageError extends Error {
  override readonly name = 'ImageError';
  readonly code: ImageErrorCode;

  constructor(code: ImageErrorCode, message: string, options?: ErrorOptions) {
    super(message, options);
    this.code = code;
  }

  /** True when the same request may succeed later with the same image. */
  get retryable(): boolean {
    return RETRYABLE.has(this.code);
  }
}

/** Turns any failure into an `ImageError`; system errors get a code and name what we were doing. */
export function toImageError(error: unknown, doing: string): ImageError {
  if (error instanceof ImageError) return error;
  if (error instanceof ProcessError) return fromProcessError(error);
  const { name, code, message } = error as NodeJS.ErrnoException;
  if (name === 'AbortError' || code === 'ABORT_ERR')
    return new ImageError('aborted', `${doing} was cancelled`);
  if (code === 'ENOSPC' || code === 'EDQUOT') {
    return new ImageError('no-space', `no space left on the image cache's disk while ${doing}`, {
      cause: error,
    });
  }
  return new ImageError('failed', `${doing} failed: ${message}`, { cause: error });
}

const CODE_OF_FAILURE: Partial<Record<ProcessFailure, ImageErrorCode>> = {
  missing: 'tool-missing',
  timeout: 'timeout',
  aborted: 'aborted',
  output: 'too-large',
};

function fromProcessError(error: ProcessError): ImageError {
  return new ImageError(CODE_OF_FAILURE[error.failure] ?? 'failed', error.message, { cause: error });
}

/** Whether a file is simply not there. */
export function isMissing(error: unknown): boolean {
  const { code } = error as NodeJS.ErrnoException;
  return code === 'ENOENT' || code === 'ENOTDIR';
}

/** Untrusted text (a name in an image, a tool's output) for a message: bounded, control characters escaped. */
export function show(text: string, most = 200): string {
  return JSON.stringify(text.length > most ? `${text.slice(0, most)}…` : text);
}
