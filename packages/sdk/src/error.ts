/** The one class of everything that can go wrong with a call. */

/**
 * `refused`: the service answered with an error status. `unreachable`: no connection, or one that broke. `timeout`: the
 * deadline of the call has passed. `aborted`: its signal was aborted. `malformed`: the answer is not what the contract says.
 */
export type FailureKind = 'refused' | 'unreachable' | 'timeout' | 'aborted' | 'malformed';

export interface FailureDetails {
  /** HTTP status; only when refused. */
  status?: number;
  /** Seconds after which another try makes sense; only when the service names them. */
  retryAfterSecs?: number;
  /** What the service calls this request in its log. */
  requestId?: string;
  /** Where the request went. */
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
