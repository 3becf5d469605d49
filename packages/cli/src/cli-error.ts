// Not all of the SDK, which would double the time of `rlp --help`.
import { type FailureKind, ReleapError } from '@releap/sdk/error';
import { EXIT } from './exit-codes.ts';
import { printable } from './terminal.ts';

/** A failure that is explained to the user in one or two sentences, without a stack trace. */
export class CliError extends Error {
  readonly exitCode: number;
  /** HTTP status when a service refused. */
  readonly status: number | undefined;
  /** What kind of refusal it is. */
  readonly code: ReleapError['code'];

  constructor(
    message: string,
    options: {
      exitCode?: number;
      status?: number | undefined;
      code?: ReleapError['code'];
      cause?: unknown;
    } = {},
  ) {
    super(message, options.cause === undefined ? undefined : { cause: options.cause });
    this.name = 'CliError';
    this.exitCode = options.exitCode ?? EXIT.failed;
    this.status = options.status;
    this.code = options.code;
  }
}

export function usageError(message: string): CliError {
  return new CliError(message, { exitCode: EXIT.usage });
}

/** The user pressed Ctrl-C, or the process got SIGTERM. */
export function interruptedError(): CliError {
  return new CliError('interrupted', { exitCode: EXIT.interrupted });
}

const EXIT_OF: Readonly<Record<FailureKind, number>> = {
  refused: EXIT.failed,
  unreachable: EXIT.unavailable,
  timeout: EXIT.unavailable,
  aborted: EXIT.interrupted,
  malformed: EXIT.failed,
  invalid: EXIT.usage,
  missing: EXIT.notFound,
  failed: EXIT.failed,
  pending: EXIT.failed,
};

/** What to do when that is missing. */
const HINTS: Readonly<Record<string, string>> = {
  host: 'rlp host ls lists them',
  organization: 'rlp org ls lists them',
  project: 'rlp project ls lists them',
  sandbox: 'rlp ps lists them',
  snapshot: 'rlp snapshot ls lists them',
  stdin: 'use --no-stdin, or < /dev/null',
  terminal: 'leave --tty out',
};

/** The failure as the user sees it; undefined for an unexpected error. */
export function toCliError(error: unknown): CliError | undefined {
  if (error instanceof CliError) return error;
  if (!(error instanceof ReleapError)) return undefined;
  const { kind, status, code, resource = '', message } = error;
  if (kind === 'aborted') return interruptedError();
  // The last lines of a build's log are lines; what a service refuses with is one.
  const lines = kind === 'failed' ? message.split('\n') : [message];
  const hint = HINTS[resource];
  return new CliError(`${lines.map(printable).join('\n')}${hint === undefined ? '' : `: ${hint}`}`, {
    exitCode:
      kind !== 'refused'
        ? EXIT_OF[kind]
        : status === 401
          ? EXIT.unavailable
          : status === 404
            ? EXIT.notFound
            : EXIT.failed,
    status,
    code,
    cause: error,
  });
}

/** The sentence of a failure that is part of another one. */
export function messageOf(error: unknown): string {
  return toCliError(error)?.message ?? (error instanceof Error ? error.message : String(error));
}
