import { EXIT } from './exit-codes.ts';

/** A failure that is explained to the user in one or two sentences, without a stack trace. */
export class CliError extends Error {
  readonly exitCode: number;
  /** HTTP status when a service refused. */
  readonly status: number | undefined;
  /** Seconds after which trying again makes sense. */
  readonly retryAfterSecs: number | undefined;

  constructor(
    message: string,
    options: { exitCode?: number; status?: number; retryAfterSecs?: number; cause?: unknown } = {},
  ) {
    super(message, options.cause === undefined ? undefined : { cause: options.cause });
    this.name = 'CliError';
    this.exitCode = options.exitCode ?? EXIT.failed;
    this.status = options.status;
    this.retryAfterSecs = options.retryAfterSecs;
  }
}

export function usageError(message: string): CliError {
  return new CliError(message, { exitCode: EXIT.usage });
}

/** The user pressed Ctrl-C, or the process got SIGTERM. */
export function interruptedError(): CliError {
  return new CliError('interrupted', { exitCode: EXIT.interrupted });
}
