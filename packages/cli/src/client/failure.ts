/** Failures of calls as sentences for people, with the exit codes of the command line. */
import type { ReleapError } from '@releap/sdk';
import { CliError, interruptedError } from '../cli-error.ts';
import { EXIT } from '../exit-codes.ts';
import { printable } from '../terminal.ts';

/** @param hint401 hint for a refused token, appended to the service's message */
export function toCliError(error: ReleapError, baseUrl: string, hint401?: string): CliError {
  const { status, retryAfterSecs, message } = error;
  const { origin } = error.url ?? new URL(baseUrl);
  switch (error.kind) {
    case 'aborted':
      return interruptedError();
    case 'unreachable':
      return unreachable(error.cause, origin);
    case 'timeout':
      return new CliError(`cannot reach ${origin}: ${message}`, { exitCode: EXIT.unavailable, cause: error });
    case 'malformed':
      return new CliError(printable(message), { cause: error });
    case 'refused':
    default:
      return new CliError(
        `${printable(message)}${status === 401 && hint401 !== undefined ? `: ${hint401}` : ''}`,
        {
          ...(status === undefined ? {} : { status }),
          ...(retryAfterSecs === undefined ? {} : { retryAfterSecs }),
          exitCode: status === 401 ? EXIT.unavailable : status === 404 ? EXIT.notFound : EXIT.failed,
          cause: error,
        },
      );
  }
}

const REASONS: Readonly<Record<string, string>> = {
  ECONNREFUSED: 'nothing listens there. Is the service running?',
  ENOTFOUND: 'there is no such host',
  EAI_AGAIN: 'the host name cannot be looked up at the moment',
  ECONNRESET: 'the connection was cut',
  UND_ERR_SOCKET: 'the connection was cut',
  UND_ERR_CONNECT_TIMEOUT: 'no connection in time',
  UND_ERR_HEADERS_TIMEOUT: 'no answer in time',
  UND_ERR_BODY_TIMEOUT: 'the answer stopped in the middle',
};

/** What fetch or ws throws, as a sentence; a Ctrl-C in the middle of a call is one. */
export function networkError(error: unknown, url: URL, signal: AbortSignal): CliError {
  return signal.aborted ? interruptedError() : unreachable(error, url.origin);
}

function unreachable(error: unknown, origin: string): CliError {
  const { code, message } = deepest(error);
  const reason = REASONS[code ?? ''] ?? message ?? String(error);
  return new CliError(`cannot reach ${origin}: ${reason}`, { exitCode: EXIT.unavailable, cause: error });
}

/** `fetch failed` is caused by the error that says why, which may be several, one an address. */
function deepest(error: unknown): Partial<NodeJS.ErrnoException> {
  const nested = error instanceof AggregateError ? (error.errors[0] as unknown) : undefined;
  const below = nested ?? (error instanceof Error ? error.cause : undefined);
  return below instanceof Error ? deepest(below) : (error ?? {});
}
