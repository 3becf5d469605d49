/** The error class of all failed calls. */

/**
 * `refused`: the service answered with an error status. `unreachable`: no connection, or one that broke. `timeout`: the
 * deadline of the call has passed. `aborted`: its signal was aborted. `malformed`: the response violates the contract.
 */
export type FailureKind = 'refused' | 'unreachable' | 'timeout' | 'aborted' | 'malformed';

export interface FailureDetails {
  /** HTTP status; only when refused. */
  status?: number;
  /** Seconds to wait before a retry, if the service sends them. */
  retryAfterSecs?: number;
  /** The request's id in the log of the service. */
  requestId?: string;
  /** URL of the request. */
  url?: URL;
  cause?: unknown;
}

export class ReleapError extends Error {
  readonly kind: FailureKind;
  readonly status: number | undefined;
  readonly retryAfterSecs: number | undefined;
  readonly requestId: string | undefined;
  readonly url: URL | undefined;

  constructor(kind: FailureKind, message: string, details: FailureDetails = {}) {
    super(message, details.cause === undefined ? undefined : { cause: details.cause });
    this.name = 'ReleapError';
    this.kind = kind;
    this.status = details.status;
    this.retryAfterSecs = details.retryAfterSecs;
    this.requestId = details.requestId;
    this.url = details.url;
  }
}
